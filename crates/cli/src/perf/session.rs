//! Sets up a session: two ends that have agreed on a test and are connected.

use std::error::Error;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bowline::{Channel, Connector, Device, Listener, SealRole};

use super::args::{PerfArgs, Spec};
use super::report::Row;
use super::rig::Rig;
use super::seal;
use super::{chain, reliable};
use crate::nic_name::NicName;
use crate::peers::{self, Target};
use crate::{interrupt, output};

/// A test may last a day. If the peer dies, its end of the connection closes, so nobody waits this
/// long for a dead one.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(100_000);
/// How often a server checks whether it should exit.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// A server's response if it agrees.
const AGREED: &[u8] = b"ok";
/// The first message of a server that seals.
const SEAL_HELLO: &[u8] = b"seal";

/// One end of a test and its connection to the other.
pub(crate) struct Session {
    pub(crate) rig: Rig,
    pub(crate) channel: Channel,
}

/// Two ends that have agreed on a test, and this end's resources.
pub(crate) enum Agreed {
    /// Over RC.
    Rc(Session),
    /// With a reliability scheme.
    Scheme(reliable::End, Channel),
    /// Over RC, in a chain of servers.
    Chain(chain::End, Channel),
}

/// Waits for a client and agrees to its request.
pub(crate) fn serve(args: &PerfArgs) -> Result<Agreed, Box<dyn Error>> {
    let addr = match &args.device {
        Some(nic) => nic.addr()?,
        None => IpAddr::V4(Ipv4Addr::LOCALHOST),
    };
    let listener = Listener::bind((addr, args.port))?;
    eprintln!("waiting for a client on {}", listener.local_addr()?);
    let mut channel = accept(args, &listener)?;
    // From here on, an interrupted server has results to print before it exits.
    interrupt::watch();
    let made = Spec::from_peer(&channel.recv()?, args.test)
        .map_err(Box::<dyn Error>::from)
        .and_then(|spec| Made::new(args, addr, spec, &channel));
    match made {
        Ok(made) => {
            channel.send(AGREED)?;
            made.join(channel)
        }
        Err(e) => {
            // The client should learn the reason. If it cannot be told, our own error is enough.
            let _ = channel.send(e.to_string().as_bytes());
            Err(e)
        }
    }
}

/// Accepts the first client that is allowed to connect.
fn accept(args: &PerfArgs, listener: &Listener) -> Result<Channel, Box<dyn Error>> {
    if let Some(path) = &args.seal_key {
        let key = seal::read_key(path)?;
        let mut channel = listener.accept()?;
        channel.seal(&key, SealRole::Responder)?;
        return Ok(channel);
    }
    if let Some(Some(_)) = &args.trust.code {
        return Err(
            "--code takes no words at the server: it prints the words for the client".into()
        );
    }
    peers::admit(listener, &args.trust)
}

/// Connects to a server and authenticates it.
pub(crate) fn reach(args: &PerfArgs, target: &Target) -> Result<Channel, Box<dyn Error>> {
    let Some(path) = &args.seal_key else {
        let trust = args.trust.of_client()?;
        return peers::connect(target, &trust).map_err(|e| e as Box<dyn Error>);
    };
    let key = seal::read_key(path)?;
    let mut channel = Connector::new().connect((target.host.as_str(), target.port))?;
    channel.seal(&key, SealRole::Initiator)?;
    Ok(channel)
}

/// Connects to a server and sends it the test's specification.
pub(crate) fn connect(args: &PerfArgs, host: &str) -> Result<Agreed, Box<dyn Error>> {
    let spec = Spec::new(args);
    spec.transport.check(spec.test)?;
    let mut channel = reach(args, &Target::parse(host, args.port)?)?;
    interrupt::watch();
    let addr = local_addr(args, &channel)?;
    let made = Made::new(args, addr, spec.clone(), &channel)?;
    ask(&mut channel, &spec)?;
    made.join(channel)
}

/// The address of this end's NIC.
pub(crate) fn local_addr(args: &PerfArgs, channel: &Channel) -> Result<IpAddr, Box<dyn Error>> {
    Ok(match &args.device {
        Some(nic) => nic.addr()?,
        None => channel.local_addr()?.ip(),
    })
}

/// Sends a server the test's specification, and waits until it agrees.
pub(crate) fn ask(channel: &mut Channel, spec: &Spec) -> Result<(), Box<dyn Error>> {
    channel.send(&serde_json::to_vec(spec)?)?;
    let answer = channel.recv()?;
    if answer.starts_with(SEAL_HELLO) {
        return Err(
            "the server seals its packets: give this end its key, with --seal-key FILE".into()
        );
    }
    if answer != AGREED {
        return Err(format!("the server refused: {}", String::from_utf8_lossy(&answer)).into());
    }
    Ok(())
}

/// This end's resources before it is connected.
enum Made {
    Rc(Rig),
    Scheme(reliable::End),
    Chain(chain::End),
}

impl Made {
    fn new(
        args: &PerfArgs,
        addr: IpAddr,
        spec: Spec,
        channel: &Channel,
    ) -> Result<Made, Box<dyn Error>> {
        if spec.transport.is_datagram() && channel.is_sealing() {
            let why = "datagrams cannot be sealed: use --transport rc, uc or xp, or --insecure";
            return Err(why.into());
        }
        let device = open(args, addr)?;
        Ok(match (&spec.scheme, spec.chain) {
            (None, None) => Made::Rc(Rig::new(device, spec)?),
            (None, Some(_)) => Made::Chain(chain::End::new(device, spec)?),
            (Some(_), _) => Made::Scheme(reliable::End::new(device, spec)?),
        })
    }

    fn join(self, mut channel: Channel) -> Result<Agreed, Box<dyn Error>> {
        match self {
            Made::Rc(rig) => Ok(Agreed::Rc(Session::join(rig, channel)?)),
            Made::Scheme(end) => {
                end.connect(&mut channel)?;
                channel.set_timeout(TEST_TIMEOUT);
                Ok(Agreed::Scheme(end, channel))
            }
            Made::Chain(mut end) => {
                end.connect(&mut channel)?;
                channel.set_timeout(TEST_TIMEOUT);
                Ok(Agreed::Chain(end, channel))
            }
        }
    }
}

/// Opens the NIC with these options.
pub(crate) fn open(args: &PerfArgs, addr: IpAddr) -> Result<Device, Box<dyn Error>> {
    let builder = args.device.as_ref().map_or_else(|| Device::builder(addr), NicName::builder);
    let mut builder =
        builder.via(args.via).lanes(args.lanes).notice(output::notice).detail(output::detail);
    if let Some(mtu) = args.mtu {
        builder = builder.mtu(mtu);
    }
    if let Some(link) = &args.link {
        builder = builder.link(link.clone());
    }
    if let Some(file) = &args.pcap {
        builder = builder.pcap(file);
    }
    if let Some(cc) = &args.cc {
        builder = builder.congestion_control(cc.clone());
    }
    if let Some(mode) = args.fec {
        builder = builder.fec(mode);
    }
    if let Some(failover) = args.failover.request() {
        builder = builder.failover(failover);
    }
    Ok(builder.open()?)
}

impl Session {
    fn join(mut rig: Rig, mut channel: Channel) -> Result<Session, Box<dyn Error>> {
        for qp in 0..rig.qps.len() {
            let offer = [rig.offer(qp)];
            let peer = match rig.spec.transport.is_datagram() {
                false => channel.connect(&rig.qps[qp], &offer)?,
                true => {
                    let peer = channel.exchange(&rig.qps[qp], &offer)?;
                    rig.qps[qp].activate()?;
                    rig.datagrams.push(peer.endpoint.datagram(rig.qps[qp].qkey()));
                    channel.barrier()?;
                    peer
                }
            };
            let [remote] = peer.regions[..] else {
                return Err("the peer offers no memory: run the same release on both ends".into());
            };
            if remote.len < rig.spec.max_size() as u64 {
                return Err("the peer offers too little memory for the test".into());
            }
            rig.remotes.push(remote);
        }
        rig.post_all_receives()?;
        channel.set_timeout(TEST_TIMEOUT);
        Ok(Session { rig, channel })
    }
}

/// Tells the server that a test is over, and its result.
pub(crate) fn tell(channel: &mut Channel, row: &Row) -> Result<(), Box<dyn Error>> {
    Ok(channel.send(&serde_json::to_vec(row)?)?)
}

/// Runs `serve` until the client has reported its result, and returns that.
pub(crate) fn serve_until_told(
    channel: &mut Channel,
    device: &Device,
    serve: impl FnOnce(&AtomicBool) -> Result<(), Box<dyn Error>>,
) -> Result<Row, Box<dyn Error>> {
    let done = AtomicBool::new(false);
    let (started, before) = (Instant::now(), received_bytes(device));
    let told = std::thread::scope(|scope| {
        let listener = scope.spawn(|| {
            let told = channel.recv();
            done.store(true, Ordering::Release);
            told
        });
        serve(&done)?;
        while !done.load(Ordering::Acquire) {
            if let Some(signal) = interrupt::asked() {
                end(signal, started.elapsed(), received_bytes(device) - before);
            }
            std::thread::sleep(LOOK_EVERY);
        }
        listener.join().map_err(|_| "the thread that listens to the client failed".into())
    });
    let told: Result<_, Box<dyn Error>> = told;
    Ok(serde_json::from_slice(&told??)?)
}

/// Bytes of messages that have arrived; 0 if the kernel counts them.
fn received_bytes(device: &Device) -> u64 {
    device.counters().map_or(0, |counters| counters.rx_message_bytes)
}

/// Prints a summary and exits. Exiting cleanly would mean waiting for the client, which measures.
fn end(signal: i32, elapsed: Duration, bytes: u64) -> ! {
    let seconds = elapsed.as_secs_f64();
    output::notice(&format!(
        "interrupted after {seconds:.1} s: {:.3} GB of messages had arrived ({:.3} Gb/s)",
        bytes as f64 / 1e9,
        bytes as f64 * 8e-9 / seconds.max(1e-9)
    ));
    std::process::exit(128 + signal)
}
