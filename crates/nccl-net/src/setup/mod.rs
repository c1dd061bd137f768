//! Connection setup: a handle that NCCL carries, a TCP connection, a proof, queue pairs.
//!
//! NCCL polls: its calls return at once, and threads run the steps. A thread lasts at most as long
//! as the setup of a connection may take.

mod connecting;
mod handle;
mod listening;
mod proof;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use bowline::{Channel, Pd};

use crate::abi;
use crate::comm::Peer;
use crate::devices::{Nic, OpenNic};
use crate::link::{self, RecvLink, SendLink, Wanted};
use crate::status::Trouble;

pub(crate) use connecting::connect;
pub(crate) use listening::Listening;

use handle::Handle;

/// The parts of an end, once all steps have succeeded.
struct End<L: ?Sized> {
    nic: Arc<OpenNic>,
    pd: Pd,
    link: Box<L>,
    peer: Peer,
}

type SendEnd = End<dyn SendLink>;
type RecvEnd = End<dyn RecvLink>;

/// The steps of the connecting end, which sends.
fn connect_to(
    nic: &Nic,
    handle: &Handle,
    traffic_class: u8,
    mut channel: Channel,
) -> Result<SendEnd, Trouble> {
    proof::connect(&mut channel, handle, traffic_class)?;
    let nic = nic.open()?;
    let wanted = Wanted { transport: handle.transport, traffic_class };
    let (pd, link) = link::sender(&nic, wanted, &mut channel)?;
    let peer = settle(channel)?;
    Ok(End { nic, pd, link, peer })
}

/// The steps of the accepting end, which receives.
fn accept_from(
    nic: &Nic,
    handle: &Handle,
    timeout: Duration,
    mut channel: Channel,
) -> Result<RecvEnd, Trouble> {
    let traffic_class = proof::accept(&mut channel, handle, timeout)?;
    let nic = nic.open()?;
    let wanted = Wanted { transport: handle.transport, traffic_class };
    let (pd, link) = link::receiver(&nic, wanted, &mut channel)?;
    let peer = settle(channel)?;
    Ok(End { nic, pd, link, peer })
}

/// Waits until both ends are ready. From then on the setup connection only shows whether the peer
/// is alive.
fn settle(mut channel: Channel) -> Result<Peer, Trouble> {
    channel.barrier()?;
    channel.keep_alive()?;
    Ok(Peer::new(Some(channel)))
}

/// Runs the steps of a thread. A panic in them fails the connection.
fn caught<T>(steps: impl FnOnce() -> Result<T, Trouble>) -> Result<T, Trouble> {
    catch_unwind(AssertUnwindSafe(steps)).unwrap_or_else(|_| {
        Err(Trouble::new(abi::INTERNAL_ERROR, "setting up a connection failed inside Bowline"))
    })
}
