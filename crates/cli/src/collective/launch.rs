//! Starts ranks on this machine.

use std::error::Error;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::Duration;

/// How often to check whether a rank has ended.
const PAUSE: Duration = Duration::from_millis(2);

/// The directory in which ranks meet. It is removed on drop.
struct MeetingDir(PathBuf);

impl Drop for MeetingDir {
    fn drop(&mut self) {
        // A leftover directory does no harm.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Starts this command once for each rank, and waits for all of them. If ranks must authenticate
/// each other, they meet at rank 0.
pub(super) fn run(ranks: u32, authenticated: bool) -> Result<ExitCode, Box<dyn Error>> {
    let program = std::env::current_exe()?;
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let name = format!("bowline-collective-{}", std::process::id());
    let dir = MeetingDir(std::env::temp_dir().join(name));
    let port = if authenticated { Some(free_port()?) } else { None };
    let mut children = Vec::new();
    for rank in 0..ranks {
        let mut command = Command::new(&program);
        command.args(&arguments).arg("--member").stdin(Stdio::null());
        command.env("RANK", rank.to_string()).env("WORLD_SIZE", ranks.to_string());
        match &port {
            Some(port) => {
                command.env("MASTER_ADDR", "127.0.0.1").env("BOWLINE_PORT", port);
                command.env_remove("BOWLINE_STORE");
            }
            None => {
                command.env("BOWLINE_STORE", format!("file://{}", dir.0.display()));
                command.env("BOWLINE_JOB", "collective").env_remove("MASTER_ADDR");
            }
        }
        if rank > 0 {
            command.stdout(Stdio::null());
        }
        match command.spawn() {
            Ok(child) => children.push((rank, child)),
            Err(error) => {
                end(&mut children);
                return Err(format!("cannot start rank {rank}: {error}").into());
            }
        }
    }
    let mut failed = false;
    while !children.is_empty() {
        let mut error = None;
        children.retain_mut(|(rank, child)| match child.try_wait() {
            Ok(None) => true,
            Ok(Some(status)) => {
                failed |= !status.success();
                if let Some(text) = killed(*rank, status) {
                    eprintln!("bowline: {text}");
                }
                false
            }
            Err(e) => {
                error = Some(e);
                false
            }
        });
        if let Some(error) = error {
            end(&mut children);
            return Err(error.into());
        }
        std::thread::sleep(PAUSE);
    }
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// A TCP port on loopback that was free a moment ago.
fn free_port() -> Result<String, String> {
    let port = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
    port.map(|addr| addr.port().to_string())
        .map_err(|e| format!("cannot find a free TCP port of 127.0.0.1: {e}"))
}

/// Describes the end of a rank that could not report it itself.
fn killed(rank: u32, status: ExitStatus) -> Option<String> {
    match status.code() {
        Some(0..=2) => None,
        _ => Some(format!("rank {rank} failed: {status}")),
    }
}

fn end(children: &mut Vec<(u32, Child)>) {
    for (_, child) in children.iter_mut() {
        // The process may have ended already.
        let _ = child.kill();
        let _ = child.wait();
    }
    children.clear();
}
