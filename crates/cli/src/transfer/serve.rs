//! Accepts transfers from authorized senders.

use std::error::Error;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use bowline::peers::{Mode, TrustFiles};
use bowline::{Channel, Listener};

use super::args::RecvArgs;
use super::dir::Dir;
use super::pipe::{self, Spool};
use super::report::Report;
use super::turns::Turns;
use super::{Failure, finish, receiver};
use crate::peers::{FIRST_DELAY, Gate, MAX_TRIES, RecvPolicy, discovery};
use crate::{interrupt, output};

/// Number of transfers at a time. Each may take 128 MiB of memory. Further senders wait.
const MAX_TRANSFERS: usize = 4;
/// How often the main thread checks whether it should exit.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The result of a connection.
enum Ending {
    /// It was refused; `used_code` if it used up the open code.
    Refused { used_code: bool },
    /// A transfer took place.
    Transfer(Box<Result<Report, Failure>>),
}

/// State that all connections share.
struct Server {
    args: RecvArgs,
    policy: RecvPolicy,
    files: TrustFiles,
    turns: Turns,
    gate: Gate,
}

/// Runs the receiver.
pub(crate) fn recv(mut args: RecvArgs) -> Result<ExitCode, Box<dyn Error>> {
    interrupt::watch();
    if !pipe::is_stdio(std::slice::from_ref(&args.dir)) {
        return run(args);
    }
    // Output to stdout is checked as a whole first.
    let spool = Spool::directory().map_err(|e| e as Box<dyn Error>)?;
    args.dir = spool.path();
    args.once = true;
    // Stdout is for the file's contents.
    args.shown.be_quiet();
    let status = run(args)?;
    if status == ExitCode::SUCCESS {
        spool.copy_to_stdout().map_err(|e| format!("cannot write to stdout: {e}"))?;
    }
    Ok(status)
}

fn run(mut args: RecvArgs) -> Result<ExitCode, Box<dyn Error>> {
    // Report a bad directory now, not to the first sender.
    Dir::open(&args.dir, args.rights()).map_err(|e| e as Box<dyn Error>)?;
    args.once |= args.code;
    let files = TrustFiles::of_user()?;
    let listener = listen(&args, &files)?;
    let at = listener.local_addr()?;
    eprintln!("receiving into {} on {at}", args.dir.display());
    let policy = RecvPolicy::new(files.clone(), args.insecure);
    let turns = Turns::new(if args.once { 1 } else { MAX_TRANSFERS });
    let server = Server { args, policy, files, turns, gate: Gate::default() };
    let server = Arc::new(server);
    if server.args.code {
        open_code(&server)?;
        let answering = Arc::clone(&server);
        thread::spawn(move || {
            let is_open = || answering.policy.has_code();
            loop {
                if let Err(e) = discovery::answer(at.port(), is_open) {
                    return output::notice(&format!(
                        "cannot answer discovery ({e}): senders must name this host with --to"
                    ));
                }
                // While no code is open, no discovery question is answered.
                thread::sleep(LOOK_EVERY);
            }
        });
    }
    let (endings, ended) = mpsc::channel();
    let accepting = Arc::clone(&server);
    thread::spawn(move || accept(&accepting, &listener, &endings));
    watch(&server, &ended)
}

/// The address to listen on: all addresses once somebody is authorized.
fn listen(args: &RecvArgs, files: &TrustFiles) -> Result<Listener, Box<dyn Error>> {
    if let Some(name) = &args.device {
        return Ok(Listener::bind((name.addr()?, args.port))?);
    }
    if !args.code && !args.insecure && files.authorized()?.is_empty() {
        eprintln!(
            "bowline: no key is trusted yet, so only this host can send: use --code, or `bowline key \
             trust KEY` with the key that `bowline key show` prints at the sender"
        );
        return Ok(Listener::bind((IpAddr::V4(Ipv4Addr::LOCALHOST), args.port))?);
    }
    // Without IPv6 there is no address that covers both families.
    let both = Listener::bind((IpAddr::V6(Ipv6Addr::UNSPECIFIED), args.port));
    Ok(both.or_else(|_| Listener::bind((IpAddr::V4(Ipv4Addr::UNSPECIFIED), args.port)))?)
}

/// Opens and shows a new code.
fn open_code(server: &Server) -> Result<(), Box<dyn Error>> {
    let code = server.policy.open_code()?;
    eprintln!("code: {code}");
    eprintln!("on the other machine:  bowline send FILE --code {code}");
    let local = bowline_io::local_addresses().unwrap_or_default();
    if let Some(local) = local.iter().find(|local| !local.addr.is_loopback()) {
        eprintln!("if that finds nothing: bowline send FILE --to {} --code {code}", local.addr);
    }
    Ok(())
}

/// Accepts connections, each in its own thread.
fn accept(server: &Arc<Server>, listener: &Listener, endings: &Sender<Ending>) {
    loop {
        let channel = match listener.accept() {
            Ok(channel) => channel,
            Err(e) => {
                // For example, out of descriptors: other connections will end and free some.
                output::print_error(&e);
                thread::sleep(LOOK_EVERY);
                continue;
            }
        };
        let from = channel.peer_addr().map(|addr| addr.ip());
        // A host that keeps many silent connections open gets no more.
        let Some(pass) = from.ok().and_then(|from| server.gate.enter(from)) else { continue };
        let (server, endings) = (Arc::clone(server), endings.clone());
        thread::spawn(move || {
            let mut channel = channel;
            let admitted = admit(&server, &mut channel);
            drop(pass);
            let ending = match admitted {
                Ok(()) => {
                    let _turn = server.turns.wait();
                    Ending::Transfer(Box::new(receive(&server, channel)))
                }
                Err(used_code) => Ending::Refused { used_code },
            };
            // The main thread lives as long as the process.
            let _ = endings.send(ending);
        });
    }
}

/// Authenticates the peer and decides whether it may send. The error says whether it used up the
/// code.
fn admit(server: &Server, channel: &mut Channel) -> Result<(), bool> {
    let visit = server.policy.visit();
    let from = channel.peer_addr().map_or_else(|_| "?".to_owned(), |addr| addr.to_string());
    match channel.accept_peer(&visit) {
        Ok(mode) => {
            if let (Some(Mode::Code), true, Some(key)) =
                (mode, server.args.remember, channel.peer_key())
            {
                match server.files.trust_peer(key, &from) {
                    Ok(_) => output::notice(&format!("{} may send from now on", key.fingerprint())),
                    Err(e) => output::print_error(&e),
                }
            }
            Ok(())
        }
        Err(e) => {
            output::print_error(&*Failure::from(format!("{from}: {e}")));
            Err(visit.used_code())
        }
    }
}

fn receive(server: &Server, channel: Channel) -> Result<Report, Failure> {
    // The directory may be deleted and recreated between transfers.
    let dir = Dir::open(&server.args.dir, server.args.rights())?;
    receiver::receive(&server.args, &dir, channel, receiver::PATIENCE)
}

/// Reports the end of each transfer, until the last one.
fn watch(server: &Server, ended: &mpsc::Receiver<Ending>) -> Result<ExitCode, Box<dyn Error>> {
    let (mut tries, mut delay) = (0, FIRST_DELAY);
    loop {
        let ending = match ended.recv_timeout(LOOK_EVERY) {
            Ok(ending) => ending,
            Err(RecvTimeoutError::Timeout) => match interrupt::asked() {
                Some(signal) if server.turns.are_all_free() => {
                    eprintln!("bowline: interrupted; no transfer was running");
                    return Ok(ExitCode::from(128_u8.saturating_add(signal as u8)));
                }
                _ => continue,
            },
            Err(RecvTimeoutError::Disconnected) => return Err("it stopped listening".into()),
        };
        match ending {
            Ending::Refused { used_code: true } => {
                tries += 1;
                if tries == MAX_TRIES {
                    return Err(format!(
                        "{MAX_TRIES} wrong codes were tried: somebody may be guessing; start \
                         again for a new code"
                    )
                    .into());
                }
                thread::sleep(delay);
                delay *= 2;
                open_code(server)?;
            }
            Ending::Refused { used_code: false } => {}
            Ending::Transfer(outcome) => {
                let failed = outcome.is_err();
                let status = finish(*outcome, "received", server.args.show());
                if server.args.once || (failed && interrupt::asked().is_some()) {
                    return status;
                }
                status.map_or_else(|e| output::print_error(&*e), |_| ());
            }
        }
    }
}
