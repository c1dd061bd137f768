//! Two ends that have agreed on a test and are connected.

use std::error::Error;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bowline::{Channel, Connector, Listener};

use super::args::{PerfArgs, Spec};
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

impl Session {
    /// Waits for a client and agrees to what it asks for.
    pub(crate) fn serve(args: &PerfArgs) -> Result<Session, Box<dyn Error>> {
        let addr = args.device.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let listener = Listener::bind((addr, args.port))?;
        eprintln!("waiting for a client on {}", listener.local_addr()?);
        let mut channel = listener.accept()?;
        let rig = Spec::from_peer(&channel.recv()?, args.test)
            .map_err(Box::<dyn Error>::from)
            .and_then(|spec| Rig::new(args, addr, spec));
        match rig {
            Ok(rig) => {
                channel.send(AGREED)?;
                Session::join(rig, channel)
            }
            Err(e) => {
                // The client should hear why; if it cannot be told, our own error says enough.
                let _ = channel.send(e.to_string().as_bytes());
                Err(e)
            }
        }
    }

    /// Connects to a server and tells it what to do.
    pub(crate) fn connect(args: &PerfArgs, host: &str) -> Result<Session, Box<dyn Error>> {
        let mut channel = Connector::new().connect((host, args.port))?;
        let addr = match args.device {
            Some(addr) => addr,
            None => channel.local_addr()?.ip(),
        };
        let spec = Spec::new(args);
        channel.send(&serde_json::to_vec(&spec)?)?;
        let rig = Rig::new(args, addr, spec)?;
        let answer = channel.recv()?;
        if answer != AGREED {
            return Err(format!("the server refused: {}", String::from_utf8_lossy(&answer)).into());
        }
        Session::join(rig, channel)
    }

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

    /// Tells the server that a test is over, and how it went.
    pub(crate) fn tell(&mut self, row: &Row) -> Result<(), Box<dyn Error>> {
        Ok(self.channel.send(&serde_json::to_vec(row)?)?)
    }

    /// Runs `serve` until the client has told its result, and returns that.
    pub(crate) fn serve_until_told(
        &mut self,
        serve: impl FnOnce(&Rig, &AtomicBool) -> Result<(), Box<dyn Error>>,
    ) -> Result<Row, Box<dyn Error>> {
        let Session { rig, channel } = self;
        let done = AtomicBool::new(false);
        let told = std::thread::scope(|scope| {
            let listener = scope.spawn(|| {
                let told = channel.recv();
                done.store(true, Ordering::Release);
                told
            });
            serve(rig, &done)?;
            listener.join().map_err(|_| "the thread that listens to the client failed".into())
        });
        let told: Result<_, Box<dyn Error>> = told;
        Ok(serde_json::from_slice(&told??)?)
    }
}
