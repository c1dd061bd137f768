//! A controller's connection to a switch on another host.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use bowline_wire::Qpn;

use super::message::{self, Info, Request};
use super::{GroupSpec, LEASE, RemoteStatus};
use crate::multicast::Reserved;
use crate::{Channel, Error};

/// How often the controller shows that it is alive: three may be late before the lease ends.
const RENEW_EVERY: std::time::Duration = LEASE.checked_div(4).expect("not by zero");

/// A switch on another host, which runs
/// [`GroupSwitch::serve_controller`](crate::multicast::GroupSwitch::serve_controller) or
/// `bowline switch --managed`.
///
/// While this lives, so do the groups that were created over it. A thread renews the lease.
#[derive(Debug)]
pub struct RemoteSwitch {
    link: Arc<Link>,
    info: Info,
}

#[derive(Debug)]
struct Link {
    /// `None` after an error: a channel is unusable then.
    channel: Mutex<Option<Channel>>,
    is_lost: AtomicBool,
}

impl Link {
    /// Asks the switch, and waits for its answer. Requests are answered in order.
    fn ask(&self, request: &Request) -> Result<Vec<u8>, Error> {
        let mut channel = self.channel.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(open) = channel.as_mut() else {
            return Err(crate::setup::SetupError::Closed.into());
        };
        let bytes = request.encode()?;
        let answer = open.send(&bytes).and_then(|()| open.recv());
        if answer.is_err() {
            *channel = None;
            self.is_lost.store(true, Ordering::Relaxed);
        }
        answer
    }
}

impl RemoteSwitch {
    /// Greets the switch at the other end of a channel, which has been authenticated if it must be.
    ///
    /// # Errors
    /// If there is no managed switch there, or one of another version.
    pub fn new(channel: Channel) -> Result<RemoteSwitch, Error> {
        let channel = Mutex::new(Some(channel));
        let link = Arc::new(Link { channel, is_lost: AtomicBool::new(false) });
        let info = message::decode_info(&link.ask(&Request::Hello)?)?;
        let renewed = Arc::downgrade(&link);
        let thread = std::thread::Builder::new().name("bowline-lease".to_owned());
        thread.spawn(move || renew(&renewed)).map_err(|e| Error::system("start a thread", e))?;
        Ok(RemoteSwitch { link, info })
    }

    /// Whether the connection has been lost. The switch then has removed the groups, or is gone.
    pub fn is_lost(&self) -> bool {
        self.link.is_lost.load(Ordering::Relaxed)
    }

    pub(super) fn info(&self) -> Info {
        self.info
    }

    pub(super) fn reserve(&self, count: usize) -> Result<Reserved, Error> {
        let answer = self.link.ask(&Request::Reserve { group: None, count })?;
        let (group, ids) = message::decode_reserved(&answer, count)?;
        Ok(Reserved { group, ids })
    }

    pub(super) fn reserve_one(&self, group: Qpn) -> Result<Qpn, Error> {
        let answer = self.link.ask(&Request::Reserve { group: Some(group), count: 1 })?;
        let (_, ids) = message::decode_reserved(&answer, 1)?;
        ids.first().copied().ok_or_else(|| super::RemoteError::Malformed("ID").into())
    }

    pub(super) fn install(&self, spec: GroupSpec) -> Result<(), Error> {
        let answer = self.link.ask(&Request::Install(Box::new(spec)))?;
        Ok(message::decode_done(&answer)?)
    }

    pub(super) fn remove(&self, group: Qpn) -> Result<(), Error> {
        Ok(message::decode_done(&self.link.ask(&Request::Remove { group })?)?)
    }

    pub(super) fn evict(&self, group: Qpn, member: Qpn) -> Result<(), Error> {
        Ok(message::decode_done(&self.link.ask(&Request::Evict { group, member })?)?)
    }

    pub(super) fn status(&self, group: Qpn) -> Result<RemoteStatus, Error> {
        Ok(message::decode_status(&self.link.ask(&Request::Status { group })?)?)
    }
}

/// Renews the lease while the connection is in use.
fn renew(link: &Weak<Link>) {
    loop {
        std::thread::sleep(RENEW_EVERY);
        let Some(link) = link.upgrade() else { return };
        if let Err(error) = link.ask(&Request::Renew) {
            tracing::warn!(target: "bowline::multicast", "a managed switch is gone: {error}");
            return;
        }
    }
}
