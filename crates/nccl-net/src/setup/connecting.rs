//! The connecting end. NCCL asks for the same connection until it is established.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::mpsc::{Receiver as Results, TryRecvError, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use bowline::Connector;

use super::handle::KEY_BYTES;
use super::{Handle, SendEnd, connect_to};
use crate::abi::HANDLE_BYTES;
use crate::comm::Sender;
use crate::config::Config;
use crate::devices;
use crate::objects::{self, Object};
use crate::status::Trouble;

/// Maximum number of connections being set up at a time.
const MAX_PENDING: usize = 4096;

/// A connection being set up.
struct Pending {
    result: Results<Result<SendEnd, Trouble>>,
    since: Instant,
}

/// The device, and the key of the handle, which is unique to the connection.
type Way = (c_int, [u8; KEY_BYTES]);

static PENDING: Mutex<BTreeMap<Way, Pending>> = Mutex::new(BTreeMap::new());

/// Connects to the end that made the handle; `None` until the connection is established.
pub(crate) fn connect(
    dev: c_int,
    bytes: &[u8; HANDLE_BYTES],
    traffic_class: u8,
) -> Result<Option<*mut c_void>, Trouble> {
    let (config, handle) = (Config::get()?, Handle::parse(bytes)?);
    let way = (dev, handle.key);
    let mut pending = PENDING.lock().unwrap_or_else(PoisonError::into_inner);
    // A caller that does not ask again has given up.
    pending.retain(|known, one| *known == way || one.since.elapsed() < 2 * config.setup_timeout);
    let Some(one) = pending.get(&way) else {
        if pending.len() >= MAX_PENDING {
            return Err(Trouble::system(format!(
                "too many connections are being set up: at most {MAX_PENDING}"
            )));
        }
        pending.insert(way, start(dev, handle, traffic_class, config.setup_timeout)?);
        return Ok(None);
    };
    let result = match one.result.try_recv() {
        Err(TryRecvError::Empty) => return Ok(None),
        Err(TryRecvError::Disconnected) => Err(Trouble::system("a thread ended early")),
        Ok(result) => result,
    };
    pending.remove(&way);
    drop(pending);
    let end = result?;
    let sender = Sender::new(end.nic, end.pd, end.link, end.peer);
    Ok(Some(objects::add(Object::Send(sender.into()))))
}

fn start(
    dev: c_int,
    handle: Handle,
    traffic_class: u8,
    timeout: Duration,
) -> Result<Pending, Trouble> {
    let nic = devices::get(dev)?;
    let (told, result) = channel();
    let steps = move || {
        let end = super::caught(|| {
            // If nothing answers there, the peer is at fault.
            let channel = Connector::new().with_timeout(timeout).connect(handle.addr);
            let channel = channel.map_err(|e| Trouble::remote(e.to_string()))?;
            connect_to(nic, &handle, traffic_class, channel)
        });
        // A caller that has given up is not told.
        let _ = told.send(end);
    };
    let thread = thread::Builder::new().name("bowline-connect".to_owned()).spawn(steps);
    thread.map_err(|e| Trouble::system(format!("cannot start a thread: {e}")))?;
    Ok(Pending { result, since: Instant::now() })
}
