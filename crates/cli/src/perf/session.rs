//! Two ends that have agreed on a test and are connected.

use std::error::Error;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bowline::{Channel, Connector, Device, Listener};

use super::args::{PerfArgs, Spec};
use super::reliable;
use super::report::Row;
use super::rig::Rig;

/// A test may last a day; the peer's end closes the connection, so nobody waits for a dead one.
const TEST_TIMEOUT: Duration = Duration::from_secs(100_000);
/// What a server answers when it agrees.
const AGREED: &[u8] = b"ok";

/// One end of a test and its connection to the other.
pub(crate) struct Session {
    pub(crate) rig: Rig,
    pub(crate) channel: Channel,
}

/// Two ends that have agreed on a test, and what this one has to work with.
pub(crate) enum Agreed {
    /// Over RC.
    Rc(Session),
    /// By a scheme.
    Scheme(reliable::End, Channel),
}

/// Waits for a client and agrees to what it asks for.
pub(crate) fn serve(args: &PerfArgs) -> Result<Agreed, Box<dyn Error>> {
    let addr = args.device.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let listener = Listener::bind((addr, args.port))?;
    eprintln!("waiting for a client on {}", listener.local_addr()?);
    let mut channel = listener.accept()?;
    let made = Spec::from_peer(&channel.recv()?, args.test)
        .map_err(Box::<dyn Error>::from)
        .and_then(|spec| Made::new(args, addr, spec));
    match made {
        Ok(made) => {
            channel.send(AGREED)?;
            made.join(channel)
        }
        Err(e) => {
            // The client should hear why; if it cannot be told, our own error says enough.
            let _ = channel.send(e.to_string().as_bytes());
            Err(e)
        }
    }
}

/// Connects to a server and tells it what to do.
pub(crate) fn connect(args: &PerfArgs, host: &str) -> Result<Agreed, Box<dyn Error>> {
    let mut channel = Connector::new().connect((host, args.port))?;
    let addr = match args.device {
        Some(addr) => addr,
        None => channel.local_addr()?.ip(),
    };
    let spec = Spec::new(args);
    spec.transport.check(spec.test)?;
    let made = Made::new(args, addr, spec.clone())?;
    channel.send(&serde_json::to_vec(&spec)?)?;
    let answer = channel.recv()?;
    if answer != AGREED {
        return Err(format!("the server refused: {}", String::from_utf8_lossy(&answer)).into());
    }
    made.join(channel)
}

/// What this end has made before it is connected.
enum Made {
    Rc(Rig),
    Scheme(reliable::End),
}

impl Made {
    fn new(args: &PerfArgs, addr: IpAddr, spec: Spec) -> Result<Made, Box<dyn Error>> {
        let device = open(args, addr)?;
        Ok(match spec.scheme {
            None => Made::Rc(Rig::new(device, spec)?),
            Some(_) => Made::Scheme(reliable::End::new(device, spec)?),
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
        }
    }
}

/// Opens the NIC as the options say.
fn open(args: &PerfArgs, addr: IpAddr) -> Result<Device, Box<dyn Error>> {
    let mut builder =
        Device::builder(addr).via(args.via).lanes(args.lanes).notice(crate::output::notice);
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
            let peer = channel.connect(&rig.qps[qp], &[rig.offer(qp)])?;
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

/// Tells the server that a test is over, and how it went.
pub(crate) fn tell(channel: &mut Channel, row: &Row) -> Result<(), Box<dyn Error>> {
    Ok(channel.send(&serde_json::to_vec(row)?)?)
}

/// Runs `serve` until the client has told its result, and returns that.
pub(crate) fn serve_until_told(
    channel: &mut Channel,
    serve: impl FnOnce(&AtomicBool) -> Result<(), Box<dyn Error>>,
) -> Result<Row, Box<dyn Error>> {
    let done = AtomicBool::new(false);
    let told = std::thread::scope(|scope| {
        let listener = scope.spawn(|| {
            let told = channel.recv();
            done.store(true, Ordering::Release);
            told
        });
        serve(&done)?;
        listener.join().map_err(|_| "the thread that listens to the client failed".into())
    });
    let told: Result<_, Box<dyn Error>> = told;
    Ok(serde_json::from_slice(&told??)?)
}
