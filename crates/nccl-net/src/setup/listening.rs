//! The listening end. It accepts only peers that have the key.

use std::ffi::{c_int, c_void};
use std::sync::mpsc::{Receiver as Results, Sender as Told, channel};
use std::thread;
use std::time::Duration;

use bowline::{Channel, Error, Listener, SetupError};
use bowline_device::random_bytes;

use super::{Handle, RecvEnd, accept_from};
use crate::abi::HANDLE_BYTES;
use crate::comm::Receiver;
use crate::config::Config;
use crate::devices::{self, Nic};
use crate::log;
use crate::objects::{self, Object};
use crate::status::Trouble;

/// Maximum number of incoming connections being set up at a time. Others wait in the kernel.
const MAX_INCOMING: usize = 16;

/// A listening end.
pub(crate) struct Listening {
    nic: &'static Nic,
    listener: Listener,
    handle: Handle,
    timeout: Duration,
    told: Told<Result<RecvEnd, Trouble>>,
    results: Results<Result<RecvEnd, Trouble>>,
    incoming: usize,
}

impl Listening {
    /// Listens on a device's address. Also returns the handle for the other end.
    pub(crate) fn start(dev: c_int) -> Result<(Listening, [u8; HANDLE_BYTES]), Trouble> {
        let (config, nic) = (Config::get()?, devices::get(dev)?);
        let listener = Listener::bind((nic.addr(), 0))?.with_timeout(config.setup_timeout);
        let key = random_bytes().map_err(|e| Trouble::system(format!("no randomness: {e}")))?;
        let addr = listener.local_addr()?;
        let handle = Handle { addr, transport: config.transport, seal: config.seal, key };
        let bytes = handle.to_bytes();
        let (told, results) = channel();
        let timeout = config.setup_timeout;
        let listening = Listening { nic, listener, handle, timeout, told, results, incoming: 0 };
        Ok((listening, bytes))
    }

    /// The next connection, if one is ready.
    pub(crate) fn accept(&mut self) -> Result<Option<*mut c_void>, Trouble> {
        while self.incoming < MAX_INCOMING {
            match self.listener.accept_timeout(Duration::ZERO) {
                Ok(channel) => self.let_in(channel)?,
                Err(Error::Setup(SetupError::TimedOut { .. })) => break,
                Err(Error::System { what, source }) if is_exhausted(&source) => {
                    return Err(Trouble::system(format!("cannot {what}: {source}")));
                }
                // The peer has hung up meanwhile.
                Err(error) => {
                    log::info(&format!("not accepted: {error}"));
                    break;
                }
            }
        }
        while let Ok(result) = self.results.try_recv() {
            self.incoming -= 1;
            match result {
                Ok(end) => {
                    let receiver = Receiver::new(end.nic, end.pd, end.link, end.peer);
                    return Ok(Some(objects::add(Object::Recv(receiver.into()))));
                }
                // Strangers may try to connect: keep waiting for the right peer.
                Err(trouble) => log::info(&format!("not accepted: {}", trouble.message)),
            }
        }
        Ok(None)
    }

    fn let_in(&mut self, channel: Channel) -> Result<(), Trouble> {
        let (nic, handle, timeout) = (self.nic, self.handle.clone(), self.timeout);
        let told = self.told.clone();
        let steps = move || {
            // If no thread listens any more, the connection ends here.
            let _ = told.send(super::caught(|| accept_from(nic, &handle, timeout, channel)));
        };
        let thread = thread::Builder::new().name("bowline-accept".to_owned()).spawn(steps);
        thread.map_err(|e| Trouble::system(format!("cannot start a thread: {e}")))?;
        self.incoming += 1;
        Ok(())
    }
}

/// Whether the system has run out of a resource, which waiting does not change.
fn is_exhausted(error: &std::io::Error) -> bool {
    let lacking = [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::ENOBUFS];
    error.raw_os_error().is_some_and(|code| lacking.contains(&code))
}
