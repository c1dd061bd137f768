//! A switch that gets its tables from controllers on other hosts.

use std::error::Error;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use bowline::multicast::GroupSwitch;
use bowline::peers::TrustFiles;
use bowline::{Channel, Listener};

use super::{MAX_SENDERS, SwitchArgs};
use crate::output;
use crate::peers::{Gate, RecvPolicy};

/// Wait after the system has refused a connection, e.g. for lack of descriptors.
const LOOK: Duration = Duration::from_millis(100);

/// Serves controllers, each in its own thread.
pub(super) fn serve(switch: &Arc<GroupSwitch>, args: &SwitchArgs) -> Result<(), Box<dyn Error>> {
    let listener = Listener::bind((args.addr, args.listen))?;
    let files = TrustFiles::of_user().ok();
    if !args.addr.is_loopback() && !args.insecure {
        let authorized = files.as_ref().map(TrustFiles::authorized).transpose()?;
        if authorized.is_none_or(|keys| keys.is_empty()) {
            output::notice(
                "no key is trusted yet, so no controller can connect: run `bowline key trust KEY` \
                 here, with the key that `bowline key show` prints at the controller",
            );
        }
    }
    let policy = Arc::new(RecvPolicy::new(files, args.insecure).strict(args.secure));
    let gate = Gate::default();
    let via = switch.via();
    super::say(&format!("{} ({via}): waiting for controllers on port {}", args.addr, args.listen))?;
    loop {
        let channel = match listener.accept() {
            Ok(channel) => channel,
            Err(error) => {
                output::print_error(&error);
                thread::sleep(LOOK);
                continue;
            }
        };
        let Ok(from) = channel.peer_addr() else { continue };
        // A host that keeps many silent connections open gets no more.
        let Some(pass) = gate.enter(from.ip()) else { continue };
        // This loop and the reporter hold the other two references.
        if Arc::strong_count(switch) > MAX_SENDERS + 2 {
            output::notice(&format!("{from}: refused, {MAX_SENDERS} controllers are connected"));
            continue;
        }
        let (switch, policy) = (Arc::clone(switch), Arc::clone(&policy));
        thread::spawn(move || {
            let mut channel = channel;
            let admitted = channel.accept_peer(&policy.visit());
            drop(pass);
            let served = admitted.and_then(|_| serve_one(&switch, &mut channel));
            if let Err(error) = served {
                output::notice(&output::plain(&format!("{from}: {error}")));
            }
        });
    }
}

fn serve_one(switch: &GroupSwitch, channel: &mut Channel) -> Result<(), bowline::Error> {
    channel.keep_alive()?;
    switch.serve_controller(channel)
}
