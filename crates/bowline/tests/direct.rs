//! WRITEs copied straight into memory that the programs of one host share.

mod common;

use std::thread;
use std::time::Duration;

use bowline::{
    Access, Channel, ConnectOptions, Connector, Cq, Device, Error, Listener, Mr, Qp, QpType,
    RemoteMr, SendFlags, SendOp, SendWr, WcStatus,
};
use common::random_addr;

const RIGHTS: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE);
const LEN: usize = 1 << 20;
const LIMIT: Duration = Duration::from_secs(20);
/// Gives up after some tens of milliseconds.
const HASTY: ConnectOptions = ConnectOptions {
    timeout: 10,
    retry_count: 3,
    rnr_retry: 7,
    min_rnr_timer: 12,
    traffic_class: 0,
    window_bytes: None,
};

/// One end of a connection.
struct End {
    device: Device,
    cq: Cq,
    mr: Mr,
    qp: Qp,
    /// The peer's memory.
    remote: RemoteMr,
}

impl End {
    /// Connects a new queue pair to the one at the other end of the channel.
    fn connect(link: Option<&str>, channel: &mut Channel) -> Result<End, Error> {
        let mut builder = Device::builder(random_addr()).via("shm".parse().unwrap());
        if let Some(link) = link {
            builder = builder.link(link.parse().unwrap());
        }
        let device = builder.open()?;
        let pd = device.alloc_pd()?;
        let (cq, mr) = (device.create_cq(64)?, pd.register_shared(LEN, RIGHTS)?);
        let qp = pd.qp(QpType::Rc, &cq).max_send_wr(16).build()?;
        let remote = channel.connect_with(&qp, &[mr.remote()], &HASTY)?.regions[0];
        Ok(End { device, cq, mr, qp, remote })
    }

    /// Writes a part of its own memory to the same place at the peer's, and waits.
    fn write(&self, start: usize, len: usize) -> WcStatus {
        let sges = [self.mr.sge(start..start + len).unwrap()];
        let mut remote = self.remote.start();
        remote.addr += start as u64;
        let wr = SendWr {
            flags: SendFlags::SIGNALED,
            ..SendWr::new(start as u64, SendOp::Write(remote), &sges)
        };
        self.qp.post_send(&wr).unwrap();
        self.outcome()
    }

    /// What becomes of the oldest request.
    fn outcome(&self) -> WcStatus {
        match self.cq.next(LIMIT) {
            Ok(completion) => completion.status,
            Err(Error::Completion(error)) => error.status,
            Err(error) => panic!("{error}"),
        }
    }

    fn direct_writes(&self) -> u64 {
        self.device.counters().unwrap().direct_writes
    }
}

/// Two ends in this process, the second one over a link if there is one.
fn pair(link: Option<&str>) -> [End; 2] {
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            let mut channel = Connector::new().connect(address).unwrap();
            End::connect(link, &mut channel).unwrap()
        });
        let one = End::connect(None, &mut listener.accept().unwrap()).unwrap();
        [one, other.join().unwrap()]
    })
}

#[test]
fn writes_of_all_lengths_arrive_without_packets() {
    let [writer, reader] = pair(None);
    let bytes: Vec<u8> = (0..LEN).map(|i| (i % 251) as u8).collect();
    writer.mr.write_at(0, &bytes);
    let lengths = [1, 7, 8, 63, 64, 65, 4096, 100_000, 700_001];
    let before = writer.device.counters().unwrap().tx_packets;
    let mut start = 0;
    for len in lengths {
        assert_eq!(writer.write(start, len), WcStatus::Success);
        assert_eq!(reader.mr.to_vec(start, len), &bytes[start..start + len], "{len} bytes");
        start += len;
    }
    assert_eq!(reader.mr.to_vec(start, LEN - start), vec![0; LEN - start], "nothing else");
    let counters = writer.device.counters().unwrap();
    assert!(counters.direct_writes > 0, "{counters:?}");
    assert!(counters.tx_packets - before < 700_001 / 4096, "{counters:?}");
}

#[test]
fn both_ends_may_write() {
    let ends = pair(None);
    for (end, peer, value) in [(&ends[0], &ends[1], 3), (&ends[1], &ends[0], 4)] {
        end.mr.fill(0, 100, value);
        assert_eq!(end.write(0, 100), WcStatus::Success);
        assert_eq!(peer.mr.to_vec(0, 100), [value; 100]);
    }
}

#[test]
fn a_region_that_is_gone_is_not_written() {
    let [writer, reader] = pair(None);
    assert_eq!(writer.write(0, 64), WcStatus::Success);
    let buffer = reader.mr.buffer().clone();
    reader.mr.deregister().unwrap();
    writer.mr.fill(0, LEN, 9);
    assert_eq!(writer.write(0, 64), WcStatus::RemAccessErr);
    assert_eq!(buffer.to_vec(0, 64), [0; 64]);
}

#[test]
fn a_queue_pair_that_has_failed_is_not_written() {
    let [writer, reader] = pair(None);
    assert_eq!(writer.write(0, 64), WcStatus::Success);
    reader.qp.close().unwrap();
    writer.mr.fill(0, LEN, 9);
    assert_eq!(writer.write(0, 64), WcStatus::RetryExcErr);
    assert_eq!(reader.mr.to_vec(0, 64), [0; 64]);
}

#[test]
fn a_queue_pair_that_is_gone_is_not_written() {
    let [writer, reader] = pair(None);
    assert_eq!(writer.write(0, 64), WcStatus::Success);
    let End { qp, mr, device: _device, .. } = reader;
    drop(qp);
    writer.mr.fill(0, LEN, 9);
    assert_eq!(writer.write(0, 64), WcStatus::RetryExcErr);
    assert_eq!(mr.to_vec(0, 64), [0; 64]);
}

#[test]
fn a_write_beyond_the_region_fails_as_with_packets() {
    let [writer, reader] = pair(None);
    assert_eq!(writer.write(0, 64), WcStatus::Success);
    let sges = [writer.mr.sge(0..64).unwrap()];
    let mut remote = writer.remote.start();
    remote.addr += (LEN - 63) as u64;
    writer.mr.fill(0, 64, 9);
    writer.qp.post_send(&SendWr::new(1, SendOp::Write(remote), &sges)).unwrap();
    assert_eq!(writer.outcome(), WcStatus::RemAccessErr);
    assert_eq!(reader.mr.to_vec(LEN - 63, 63), [0; 63]);
}

#[test]
fn an_emulated_link_is_not_bypassed() {
    let ends = pair(Some("delay=1ms"));
    for end in &ends {
        assert_eq!(end.write(0, 64), WcStatus::Success);
        assert_eq!(end.write(64, 100_000), WcStatus::Success);
        assert_eq!(end.direct_writes(), 0);
    }
}

#[test]
fn rate_control_is_not_bypassed() {
    let [writer, _reader] = pair(None);
    writer.qp.set_rate_control("fixed:100Mbps".parse().unwrap()).unwrap();
    for _ in 0..3 {
        assert_eq!(writer.write(0, 4096), WcStatus::Success);
    }
    assert_eq!(writer.direct_writes(), 0);
}

/// Faults at either end concern every WRITE.
#[test]
fn faults_are_not_bypassed() {
    for faulty in [0, 1] {
        let ends = pair(None);
        assert_eq!(ends[0].write(0, 64), WcStatus::Success);
        ends[faulty].device.fault(&"down".parse().unwrap());
        // Until the device's thread has noticed.
        thread::sleep(Duration::from_millis(100));
        ends[0].mr.fill(0, 64, 9);
        assert_eq!(ends[0].write(0, 64), WcStatus::RetryExcErr, "fault at end {faulty}");
        assert_eq!(ends[1].mr.to_vec(0, 64), [0; 64]);
    }
}
