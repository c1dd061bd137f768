//! Two processes, and the messages that they exchange besides the plug-in, as NCCL's ranks do.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use nccl_net_bowline::abi::HANDLE_BYTES;

use crate::net::{Handle, Net};

/// Time limit for a step, even on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A result, or what went wrong.
pub(crate) type Outcome<T = ()> = Result<T, String>;

/// The connection to the other process.
enum Wire {
    Parent,
    Child(Child, ChildStdin, ChildStdout),
}

/// A process with the plug-in.
pub(crate) struct Rank {
    pub(crate) number: u32,
    pub(crate) net: Net,
    plugin: PathBuf,
    version: u32,
    /// Use the longest messages, however long that takes.
    pub(crate) is_full: bool,
    wire: Wire,
}

impl Rank {
    /// Rank 0, which starts rank 1 with the same arguments.
    pub(crate) fn parent(plugin: &Path, version: u32, is_full: bool) -> Outcome<Rank> {
        let exe = std::env::current_exe().map_err(|e| e.to_string())?;
        let mut child = Command::new(exe)
            .args(std::env::args_os().skip(1))
            .arg("--rank1")
            .env("BOWLINE_DEVICE", address(1))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| format!("cannot start rank 1: {e}"))?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let (Some(stdin), Some(stdout)) = (stdin, stdout) else { return Err("no pipes".into()) };
        let net = Net::load(plugin, version)?;
        let (plugin, wire) = (plugin.to_owned(), Wire::Child(child, stdin, stdout));
        Ok(Rank { number: 0, net, plugin, version, is_full, wire })
    }

    /// Rank 1.
    pub(crate) fn child(plugin: &Path, version: u32, is_full: bool) -> Outcome<Rank> {
        let net = Net::load(plugin, version)?;
        let (plugin, wire) = (plugin.to_owned(), Wire::Parent);
        Ok(Rank { number: 1, net, plugin, version, is_full, wire })
    }

    /// Unloads the plug-in and loads it again.
    pub(crate) fn reload(&mut self) -> Outcome {
        self.net.finalize().map_err(|status| format!("finalize: {status}"))?;
        self.net.unload();
        self.net = Net::load(&self.plugin, self.version)?;
        Ok(())
    }

    /// Sends bytes to the other rank.
    pub(crate) fn tell(&mut self, bytes: &[u8]) -> Outcome {
        let len = (bytes.len() as u32).to_be_bytes();
        let told = match &mut self.wire {
            Wire::Parent => write(&mut std::io::stdout(), &len, bytes),
            Wire::Child(_, stdin, _) => write(stdin, &len, bytes),
        };
        told.map_err(|e| format!("cannot tell the other rank: {e}"))
    }

    /// Receives bytes from the other rank.
    pub(crate) fn hear(&mut self) -> Outcome<Vec<u8>> {
        let heard = match &mut self.wire {
            Wire::Parent => read(&mut std::io::stdin()),
            Wire::Child(_, _, stdout) => read(stdout),
        };
        heard.map_err(|e| format!("the other rank says nothing: {e}"))
    }

    /// Waits until the other rank has got here too.
    pub(crate) fn meet(&mut self) -> Outcome {
        self.tell(b"here")?;
        self.hear().map(|_| ())
    }

    /// Kills rank 1 with SIGKILL.
    pub(crate) fn kill_other(&mut self) -> Outcome {
        match &mut self.wire {
            Wire::Child(child, ..) => {
                child.kill().and_then(|()| child.wait()).map(|_| ()).map_err(|e| e.to_string())
            }
            Wire::Parent => Err("rank 1 kills nobody".into()),
        }
    }

    /// Waits for rank 1, and returns whether it succeeded.
    pub(crate) fn finish(self) -> Outcome {
        match self.wire {
            Wire::Parent => Ok(()),
            Wire::Child(mut child, ..) => match child.wait() {
                Ok(status) if status.success() => Ok(()),
                status => Err(format!("rank 1: {status:?}")),
            },
        }
    }

    /// This rank's end of a new connection from one rank to the other.
    pub(crate) fn connection(&mut self, sender: u32) -> Outcome<Handle> {
        if self.number == sender {
            let handle = self.hear()?;
            return self.connect(&handle);
        }
        let listener = self.listen()?;
        let comm = wait("accept", || self.net.accept(listener))?;
        check(self.net.close_listen(listener), "close_listen")?;
        Ok(comm)
    }

    /// Listens, and tells the other rank where.
    pub(crate) fn listen(&mut self) -> Outcome<Handle> {
        let (handle, listener) = check(self.net.listen(0), "listen")?;
        self.tell(&handle)?;
        Ok(listener)
    }

    pub(crate) fn connect(&self, handle: &[u8]) -> Outcome<Handle> {
        let mut handle: [u8; HANDLE_BYTES] = handle.try_into().map_err(|_| "no handle")?;
        wait("connect", || self.net.connect(0, &mut handle))
    }

    /// The sizes of a request, once it has completed.
    pub(crate) fn wait_for(&self, request: Handle) -> Outcome<[i32; 8]> {
        wait("test", || self.net.test(request))
    }
}

/// The address of a rank. Other runs on this host have different addresses.
pub(crate) fn address(rank: u32) -> String {
    // Rank 0 is the parent of rank 1, and both must use the number that rank 0 has chosen.
    let run = std::env::var("NCCL_HARNESS_RUN").ok().and_then(|run| run.parse().ok());
    let run = run.unwrap_or_else(std::process::id);
    format!("127.93.{}.{}", run / 120 % 250, run % 120 * 2 + 1 + rank)
}

/// Calls until there is a result.
pub(crate) fn wait<T>(what: &str, mut call: impl FnMut() -> Result<Option<T>, i32>) -> Outcome<T> {
    let start = Instant::now();
    loop {
        match call() {
            Ok(Some(value)) => return Ok(value),
            Ok(None) if start.elapsed() > PATIENCE => return Err(format!("{what} hangs")),
            Ok(None) => std::thread::yield_now(),
            Err(status) => return Err(format!("{what} says {status}")),
        }
    }
}

/// Memory to register. It is leaked because connections are not closed if a scene fails.
pub(crate) fn memory(len: usize, value: u8) -> &'static mut [u8] {
    Box::leak(vec![value; len].into_boxed_slice())
}

/// Expects success.
pub(crate) fn check<T>(result: Result<T, i32>, what: &str) -> Outcome<T> {
    result.map_err(|status| format!("{what} says {status}"))
}

/// Expects a condition to hold.
pub(crate) fn ensure(is_so: bool, what: impl Into<String>) -> Outcome {
    if is_so { Ok(()) } else { Err(what.into()) }
}

fn write(out: &mut impl Write, len: &[u8], bytes: &[u8]) -> std::io::Result<()> {
    out.write_all(len)?;
    out.write_all(bytes)?;
    out.flush()
}

fn read(from: &mut impl Read) -> std::io::Result<Vec<u8>> {
    let mut len = [0; 4];
    from.read_exact(&mut len)?;
    let mut bytes = vec![0; u32::from_be_bytes(len).min(1 << 16) as usize];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}
