//! The server side of the control socket, in the process that owns the device.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::{MAX_REQUEST, name_prefix};
use crate::sys::{effective_uid, peer_uid, spawn_background};

/// How long a client may take to send its request.
const PATIENCE: Duration = Duration::from_millis(500);

/// Answers requests about a device while the device is open, on a thread that otherwise sleeps.
pub struct ControlServer {
    name: String,
    stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl ControlServer {
    /// Starts answering for `device`. `handler` maps a request line to its answer.
    pub fn start(
        device: &str,
        handler: impl Fn(&str) -> String + Send + 'static,
    ) -> io::Result<ControlServer> {
        // A process may have several devices of one name, one after another or at once.
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let device = device.replace('/', "_");
        let pid = std::process::id();
        let name = format!("{}{pid}/{count}/{device}", name_prefix(effective_uid()));
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
        let stopping = Arc::new(AtomicBool::new(false));
        let for_thread = Arc::clone(&stopping);
        let thread =
            spawn_background("bowline-control", move || serve(&listener, &for_thread, &handler))?;
        Ok(ControlServer { name, stopping, thread: Some(thread) })
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Release);
        // Connect to ourselves, to end the blocking accept.
        let woken = SocketAddr::from_abstract_name(&self.name)
            .and_then(|addr| UnixStream::connect_addr(&addr));
        // This may be the server's own thread, if its handler dropped the last handle. That thread
        // ends by itself.
        let own = |thread: &JoinHandle<()>| thread.thread().id() == std::thread::current().id();
        if let (Ok(_), Some(thread)) = (woken, self.thread.take().filter(|thread| !own(thread))) {
            // A handler that panicked has ended its thread already.
            let _ = thread.join();
        }
    }
}

fn serve(listener: &UnixListener, stopping: &AtomicBool, handler: &dyn Fn(&str) -> String) {
    let me = effective_uid();
    for connection in listener.incoming() {
        if stopping.load(Ordering::Acquire) {
            return;
        }
        match connection {
            // Abstract names have no permissions of their own.
            Ok(stream) if peer_uid(&stream).is_ok_and(|uid| uid == me || uid == 0) => {
                // Ignore clients that disconnect or never send a request.
                let _ = answer(stream, handler);
            }
            Ok(_) => {}
            // Out of descriptors, most likely: do not spin on it.
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

fn answer(stream: UnixStream, handler: &dyn Fn(&str) -> String) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut line = String::new();
    BufReader::new(&stream).take(MAX_REQUEST).read_line(&mut line)?;
    (&stream).write_all(handler(line.trim()).as_bytes())
}
