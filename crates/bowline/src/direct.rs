//! Memory that two connected programs of one host share, so that WRITEs need no packets.
//!
//! ```text
//! offer:  version, 1 (1)  ticket of the door (32)  region count (2)
//!         regions: { rkey (4)  address (8)  length (8)  ticket (32) }
//! ```
//! All numbers are big-endian. An offer is the body of the barrier that ends
//! [`Channel::connect`](crate::Channel::connect); an end that does not understand it sends packets.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use bowline_device as device;
use bowline_io::{SharedMemory, Ticket};
use bowline_nic::{Access, Buffer, Door, MrKey, PeerRegion, QpType, Reach, Region};

use crate::{Device, Qp, RemoteMr};

/// Version of the offer.
const VERSION: u8 = 1;
/// A door has a page to itself.
const DOOR_BYTES: usize = Buffer::ALIGN;
/// Shared regions, and open doors, of one protection domain. Each takes a file descriptor.
const MOST: usize = 64;
/// How long an end waits for a write that is under way when it closes its door: longer than a
/// copy takes, even where the other process has to wait for a core.
const PATIENCE: Duration = Duration::from_millis(100);
const TICK: Duration = Duration::from_micros(20);

/// A region in memory that peers can map.
pub(crate) struct SharedRegion {
    memory: SharedMemory,
    buffer: Arc<Buffer>,
    /// Doors through which peers write it.
    doors: Mutex<Vec<Weak<OwnDoor>>>,
}

impl SharedRegion {
    /// Allocates memory that peers can map; `None` if they could not, or there is none left.
    pub(crate) fn create(device: &Device, len: usize, access: Access) -> Option<SharedRegion> {
        if len == 0 || !access.contains(Access::REMOTE_WRITE) || !device.inner.shares_memory() {
            return None;
        }
        let memory = SharedMemory::create(len, device::random_bytes().ok()?).ok()?;
        let buffer = memory.part(0, len)?;
        Some(SharedRegion { memory, buffer, doors: Mutex::default() })
    }

    pub(crate) fn buffer(&self) -> &Arc<Buffer> {
        &self.buffer
    }

    /// No peer writes it directly any longer.
    pub(crate) fn shut(&self) {
        for door in lock(&self.doors).drain(..).filter_map(|door| door.upgrade()) {
            door.shut();
        }
    }
}

/// The door of a queue pair of this program.
pub(crate) struct OwnDoor {
    memory: SharedMemory,
    door: Door,
}

impl OwnDoor {
    fn create() -> Option<OwnDoor> {
        let memory = SharedMemory::create(DOOR_BYTES, device::random_bytes().ok()?).ok()?;
        let door = Door::new(memory.part(0, DOOR_BYTES)?)?;
        Some(OwnDoor { memory, door })
    }

    /// Closes it, and waits until the write that is under way has ended. A peer that stands still
    /// in the middle of one is not waited for: until it goes on, it may still write the region, as
    /// a process that has it mapped always can.
    pub(crate) fn shut(&self) {
        self.door.close();
        let start = Instant::now();
        while !self.door.is_empty() && start.elapsed() < PATIENCE {
            thread::sleep(TICK);
        }
    }
}

impl Drop for OwnDoor {
    fn drop(&mut self) {
        self.shut();
    }
}

/// What a protection domain shares, and has mapped.
#[derive(Default)]
pub(crate) struct Sharing {
    regions: Vec<(MrKey, Weak<SharedRegion>)>,
    doors: Vec<Weak<OwnDoor>>,
    /// Memory of peers, which several queue pairs may write.
    mapped: Vec<(Ticket, Weak<Buffer>)>,
}

impl Sharing {
    /// Whether there may be one more region.
    pub(crate) fn has_room(&mut self) -> bool {
        self.regions.retain(|(_, region)| region.strong_count() > 0);
        self.regions.len() < MOST
    }

    pub(crate) fn add_region(&mut self, rkey: MrKey, region: &Arc<SharedRegion>) {
        self.regions.push((rkey, Arc::downgrade(region)));
    }

    fn region(&self, rkey: u32) -> Option<Arc<SharedRegion>> {
        self.regions.iter().find(|(key, _)| key.0 == rkey)?.1.upgrade()
    }

    fn add_door(&mut self) -> Option<Arc<OwnDoor>> {
        self.doors.retain(|door| door.strong_count() > 0);
        let door = Arc::new((self.doors.len() < MOST).then(OwnDoor::create)??);
        self.doors.push(Arc::downgrade(&door));
        Some(door)
    }

    /// Maps memory of a peer, or finds it mapped.
    fn map(&mut self, ticket: &Ticket, len: usize) -> Option<Arc<Buffer>> {
        self.mapped.retain(|(_, buffer)| buffer.strong_count() > 0);
        let known = self.mapped.iter().filter(|(known, _)| known == ticket);
        if let Some(buffer) = known.filter_map(|(_, buffer)| buffer.upgrade()).next() {
            return (buffer.len() == len).then_some(buffer);
        }
        let buffer = SharedMemory::open(ticket, len).ok()?.part(0, len)?;
        self.mapped.push((*ticket, Arc::downgrade(&buffer)));
        Some(buffer)
    }
}

/// A region as an offer names it.
#[derive(Debug, PartialEq, Eq)]
struct OfferedRegion {
    rkey: u32,
    addr: u64,
    len: u64,
    ticket: Ticket,
}

/// What an end offers to its peer.
#[derive(Debug, PartialEq, Eq)]
struct Offer {
    door: Ticket,
    regions: Vec<OfferedRegion>,
}

impl Offer {
    fn to_bytes(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        out.extend_from_slice(&self.door.to_bytes());
        out.extend_from_slice(&(self.regions.len() as u16).to_be_bytes());
        for region in &self.regions {
            out.extend_from_slice(&region.rkey.to_be_bytes());
            out.extend_from_slice(&region.addr.to_be_bytes());
            out.extend_from_slice(&region.len.to_be_bytes());
            out.extend_from_slice(&region.ticket.to_bytes());
        }
        out
    }

    /// `None` if it is not an offer, or one of another release.
    fn from_bytes(bytes: &[u8]) -> Option<Offer> {
        let ([VERSION], rest) = bytes.split_first_chunk()? else { return None };
        let (door, rest) = rest.split_first_chunk()?;
        let (count, mut rest) = rest.split_first_chunk()?;
        let door = Ticket::from_bytes(door)?;
        let count = usize::from(u16::from_be_bytes(*count));
        let mut regions = Vec::new();
        for _ in 0..count.min(MOST) {
            let (rkey, after) = rest.split_first_chunk()?;
            let (addr, after) = after.split_first_chunk()?;
            let (len, after) = after.split_first_chunk()?;
            let (ticket, after) = after.split_first_chunk()?;
            rest = after;
            regions.push(OfferedRegion {
                rkey: u32::from_be_bytes(*rkey),
                addr: u64::from_be_bytes(*addr),
                len: u64::from_be_bytes(*len),
                ticket: Ticket::from_bytes(ticket)?,
            });
        }
        Some(Offer { door, regions })
    }
}

impl Qp {
    /// Lets the peer write shared regions among these directly. Returns what the peer needs to know
    /// for that: nothing if there are none.
    pub(crate) fn offer_memory(&self, regions: &[RemoteMr]) -> Vec<u8> {
        self.try_offer(regions).map(|offer| offer.to_bytes()).unwrap_or_default()
    }

    fn try_offer(&self, regions: &[RemoteMr]) -> Option<Offer> {
        if !self.may_share() {
            return None;
        }
        let mut sharing = lock(self.sharing());
        let mut offered: Vec<(OfferedRegion, Arc<SharedRegion>)> = Vec::new();
        for RemoteMr { rkey, .. } in regions {
            let is_new = offered.iter().all(|(region, _)| region.rkey != *rkey);
            if is_new && let Some(shared) = sharing.region(*rkey) {
                let (addr, len) = (shared.buffer.addr(), shared.buffer.len() as u64);
                let ticket = shared.memory.ticket();
                offered.push((OfferedRegion { rkey: *rkey, addr, len, ticket }, shared));
            }
        }
        if offered.is_empty() {
            return None;
        }
        let door = sharing.add_door()?;
        let keys: Vec<MrKey> = offered.iter().map(|(region, _)| MrKey(region.rkey)).collect();
        let opened = self.control(|nic, _, qpn| nic.open_door(qpn, door.door.clone(), &keys));
        if !matches!(opened, Ok(Ok(()))) {
            return None;
        }
        for (_, shared) in &offered {
            lock(&shared.doors).push(Arc::downgrade(&door));
        }
        let ticket = door.memory.ticket();
        self.keep_door(door);
        Some(Offer { door: ticket, regions: offered.into_iter().map(|(r, _)| r).collect() })
    }

    /// Writes what the peer offers directly from now on, if it can be mapped here.
    pub(crate) fn accept_memory(&self, offer: &[u8]) {
        let reached = self.try_accept(offer);
        if let Some(regions) = reached {
            tracing::debug!(
                target: "bowline::setup",
                "queue pair {} writes {regions} regions of its peer directly",
                self.qpn()
            );
        }
    }

    fn try_accept(&self, offer: &[u8]) -> Option<usize> {
        let Offer { door, regions } = Offer::from_bytes(offer).filter(|_| self.may_share())?;
        let door = SharedMemory::open(&door, DOOR_BYTES).ok()?.part(0, DOOR_BYTES)?;
        let door = Door::new(door)?;
        let mut sharing = lock(self.sharing());
        let map = |region: &OfferedRegion| {
            let here = sharing.map(&region.ticket, usize::try_from(region.len).ok()?)?;
            Some(PeerRegion::new(MrKey(region.rkey), region.addr, Region::owned(here)))
        };
        let regions: Vec<PeerRegion> = regions.iter().filter_map(map).collect();
        let count = regions.len();
        let reach = Reach::new(door, regions);
        let set = self.control(|nic, _, qpn| nic.set_reach(qpn, reach));
        matches!(set, Ok(Ok(()))).then_some(count)
    }

    /// Whether its peer may be on the same host, with nothing in between.
    fn may_share(&self) -> bool {
        let device = self.device();
        self.qp_type() == QpType::Rc
            && device.shares_memory()
            && device.failover_account().is_none()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticket(number: u8) -> Ticket {
        Ticket::from_bytes(&[number; Ticket::LEN]).unwrap()
    }

    #[test]
    fn offers_survive_encoding_and_anything_else_is_none() {
        let region = |number: u8| OfferedRegion {
            rkey: u32::from(number),
            addr: 1 << 40,
            len: 4096,
            ticket: ticket(number),
        };
        let offer = Offer { door: ticket(9), regions: vec![region(1), region(2)] };
        let bytes = offer.to_bytes();
        assert_eq!(Offer::from_bytes(&bytes), Some(offer));
        for len in 0..bytes.len() {
            assert_eq!(Offer::from_bytes(&bytes[..len]), None, "{len} bytes of it");
        }
        let newer = [&[VERSION + 1], &bytes[1..]].concat();
        assert_eq!(Offer::from_bytes(&newer), None);
    }
}
