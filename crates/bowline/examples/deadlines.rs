//! Best effort with deadlines: messages over a lossy link, without retransmission.
//!
//! `cargo run --release --example deadlines -p bowline [CAPTURE.pcap]`

use std::error::Error;
use std::time::Duration;

use bowline::{
    Access, Completion, CompletionExt, Cq, Device, EndMark, Mr, Qp, QpType, RecvWr, Remote, SendOp,
    SendWr, XpOptions,
};

const MESSAGE: usize = 200_000;
const MESSAGES: u64 = 8;
/// What a message may take.
const DEADLINE: Duration = Duration::from_millis(20);
const PATIENCE: Duration = Duration::from_secs(5);

/// A device with a queue pair and memory.
struct End {
    cq: Cq,
    mr: Mr,
    qp: Qp,
}

impl End {
    fn new(addr: &str, link: &str, pcap: Option<&String>) -> Result<End, Box<dyn Error>> {
        let mut builder = Device::builder(addr.parse()?).link(link.parse()?);
        if let Some(file) = pcap {
            builder = builder.pcap(file);
        }
        let device = builder.open()?;
        let (pd, cq) = (device.alloc_pd()?, device.create_cq(64)?);
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let mr = pd.register(MESSAGE, access)?;
        // Packets shortly after the last one count, and missing parts are recorded.
        let options = XpOptions { grace_ns: 1_000_000, loss_log: 16, ..XpOptions::default() };
        let qp = pd.qp(QpType::Xp, &cq).xp(options).build()?;
        Ok(End { cq, mr, qp })
    }

    /// Posts a receive that ends by the deadline.
    fn recv(&self, wr_id: u64) -> Result<(), bowline::Error> {
        let sges = [self.mr.sge(0..MESSAGE)?];
        let deadline = self.qp.deadline_in(DEADLINE)?;
        self.qp.post_recv(&RecvWr { deadline, ..RecvWr::new(wr_id, &sges) })
    }

    fn post(&self, wr_id: u64, op: SendOp) -> Result<(), bowline::Error> {
        let sges = [self.mr.sge(0..MESSAGE)?];
        let deadline = self.qp.deadline_in(DEADLINE)?;
        self.qp.post_send(&SendWr { deadline, ..SendWr::new(wr_id, op, &sges) })
    }

    fn next(&self) -> Result<Completion, bowline::Error> {
        Ok(self.cq.next(PATIENCE)?.ok()?)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let pcap = std::env::args().nth(1);
    let sender = End::new("127.9.3.1", "loss=1%,seed=5", pcap.as_ref())?;
    let receiver = End::new("127.9.3.2", "loss=1%,seed=6", None)?;
    sender.qp.connect(&receiver.qp.endpoint())?;
    receiver.qp.connect(&sender.qp.endpoint())?;
    sender.mr.fill(0, MESSAGE, 7);
    let target = receiver.mr.remote();
    let memory = Remote { addr: target.addr, rkey: target.rkey };

    println!("{:<24} {:>8}  {:<9} missing", "message", "bytes", "ended by");
    for number in 0..MESSAGES {
        let imm = number as u32;
        let (name, op) = match number % 3 {
            0 => ("SEND", SendOp::Send),
            1 => ("SEND with immediate", SendOp::SendImm(imm)),
            _ => ("WRITE with immediate", SendOp::WriteImm(memory, imm)),
        };
        receiver.recv(number)?;
        sender.post(number, op)?;
        sender.next()?;
        let got = receiver.next()?;
        report(&format!("{number} {name}"), &got, &receiver)?;
    }
    sender.post(MESSAGES, SendOp::Read(memory))?;
    let got = sender.next()?;
    report("READ", &got, &sender)?;
    receiver.recv(MESSAGES)?;
    let got = receiver.next()?;
    report("nothing was sent", &got, &receiver)
}

fn report(name: &str, got: &Completion, end: &End) -> Result<(), Box<dyn Error>> {
    let ended = match got.end {
        EndMark::Whole => "all bytes",
        EndMark::Last => "last",
        EndMark::Deadline => "deadline",
        EndMark::Preempted => "preempted",
    };
    let missing = end.qp.take_loss()?.map_or(Vec::new(), |loss| loss.missing);
    println!("{name:<24} {:>8}  {ended:<9} {missing:?}", got.byte_len);
    Ok(())
}
