//! The receiving half: buffers in the order of the peer's messages, each bound to a slot of its
//! generation's root key.

use std::sync::Arc;

use bowline_nic::{MrKey, Rnic, Time};

use crate::config::SdrConfig;
use crate::error::SdrError;
use crate::retired::Retired;
use crate::send::Source;
use crate::table::RecvTable;

/// A message being received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RecvHandle(pub(crate) u64);

impl RecvHandle {
    /// The receive's number: the peer's message of the same number lands in it.
    pub fn number(self) -> u64 {
        self.0
    }
}

/// A message that has not been completed.
#[derive(Clone, Copy, Debug)]
struct Open {
    generation: u32,
    buffer: Source,
    len: u64,
}

/// The receiving half of an SDR QP.
pub(crate) struct Receiver {
    pub(crate) table: Arc<RecvTable>,
    /// Our root keys, one per generation: a late packet knows only its own generation's, where its
    /// slot is null, so it cannot touch the buffer of a newer message. Over datagrams there are
    /// none: [`Receiver::place_of`] determines where packets go.
    pub(crate) roots: Vec<MrKey>,
    /// Receives posted so far.
    pub(crate) posted: u64,
    /// The open ones among the latest messages, by ID.
    open: Box<[Option<Open>]>,
    open_count: u32,
    retired: Retired,
}

impl Receiver {
    pub(crate) fn new(table: Arc<RecvTable>, roots: Vec<MrKey>, config: &SdrConfig) -> Receiver {
        let ids = config.layout.ids() as usize;
        // A late packet has the address of an earlier use of its place, and is refused. Without
        // addresses, time has to pass.
        let lateness_ns = config.lateness_ns.or((!roots.is_empty()).then_some(0));
        Receiver {
            table,
            roots,
            posted: 0,
            open: vec![None; ids].into_boxed_slice(),
            open_count: 0,
            retired: Retired::new(lateness_ns),
        }
    }

    /// Whether the next `count` receives can be posted.
    pub(crate) fn check_room_for(
        &self,
        config: &SdrConfig,
        now: Time,
        count: u32,
    ) -> Result<(), SdrError> {
        if count > config.layout.ids() {
            return Err(SdrError::Full { max: config.layout.ids() });
        }
        (0..u64::from(count)).try_for_each(|i| self.check_room(config, now, self.posted + i))
    }

    fn check_room(&self, config: &SdrConfig, now: Time, number: u64) -> Result<(), SdrError> {
        let (_, id) = config.place(number);
        if self.open[id as usize].is_some() {
            return Err(SdrError::Full { max: config.layout.ids() });
        }
        match number.checked_sub(config.places()) {
            Some(last) if !self.retired.is_settled(now, last) => Err(SdrError::Quarantined),
            _ => Ok(()),
        }
    }

    /// The peer will send nothing more of its messages below this one.
    pub(crate) fn hear_retired(&mut self, now: Time, below: u64) {
        self.retired.hear(now, below);
    }

    /// Sets the recent round-trip variation of the path.
    pub(crate) fn hear_jitter(&mut self, jitter_ns: u64) {
        self.retired.hear_jitter(jitter_ns);
    }

    /// The peer's messages below this number are known to be over at the peer.
    pub(crate) fn retired(&self) -> u64 {
        self.retired.known()
    }

    /// Posts a buffer for the peer's next message.
    pub(crate) fn post(
        &mut self,
        nic: &mut dyn Rnic,
        now: Time,
        config: &SdrConfig,
        buffer: Source,
        len: u64,
    ) -> Result<RecvHandle, SdrError> {
        if len > config.max_message {
            return Err(SdrError::TooLong { len, max: config.max_message });
        }
        self.check_room(config, now, self.posted)?;
        let (generation, id) = config.place(self.posted);
        if let Some(root) = self.roots.get(generation as usize) {
            // Also without bytes: the previous owner must not reach the place.
            let to = (len > 0).then_some((buffer.key, buffer.addr, len as usize));
            nic.bind_slot(*root, config.slot(self.posted), to)?;
        }
        self.table.open(id, generation, config.packets(len));
        self.open[id as usize] = Some(Open { generation, buffer, len });
        self.open_count += 1;
        let handle = RecvHandle(self.posted);
        self.posted += 1;
        Ok(handle)
    }

    /// Where `len` bytes go that came with an immediate through a QP of `generation`; `None` if
    /// their message is over, or they do not fit. Any packet may be shorter than an MTU: the
    /// message may end before its buffer does.
    pub(crate) fn place_of(
        &self,
        config: &SdrConfig,
        generation: u32,
        imm: u32,
        len: u32,
    ) -> Option<Source> {
        let (id, packet, _) = config.layout.split(imm);
        let open = self.open.get(id as usize)?.filter(|open| open.generation == generation)?;
        let offset = u64::from(packet) * u64::from(config.mtu.bytes());
        // Empty packets carry fragments of the user's immediate, even beyond the end.
        let fits = len == 0 || (len <= config.mtu.bytes() && offset + u64::from(len) <= open.len);
        fits.then(|| Source { addr: open.buffer.addr.wrapping_add(offset), ..open.buffer })
    }

    /// Skips the peer's next message: its packets are discarded.
    pub(crate) fn skip(&mut self, config: &SdrConfig, now: Time) -> Result<RecvHandle, SdrError> {
        self.check_room(config, now, self.posted)?;
        let handle = RecvHandle(self.posted);
        self.posted += 1;
        Ok(handle)
    }

    /// The slot of a message that has not been completed.
    pub(crate) fn slot(&self, config: &SdrConfig, handle: RecvHandle) -> Result<u32, SdrError> {
        let (_, id) = config.place(handle.0);
        let ids = u64::from(config.layout.ids());
        let current = handle.0 < self.posted && handle.0 + ids >= self.posted;
        // Only the latest message with that ID can be open.
        if current && self.open[id as usize].is_some() { Ok(id) } else { Err(SdrError::Complete) }
    }

    /// Ends a message, however much has arrived: from now on its packets are discarded.
    pub(crate) fn complete(
        &mut self,
        nic: &mut dyn Rnic,
        config: &SdrConfig,
        handle: RecvHandle,
    ) -> Result<(), SdrError> {
        let id = self.slot(config, handle)?;
        let (generation, _) = config.place(handle.0);
        self.table.close(id);
        if let Some(root) = self.roots.get(generation as usize) {
            nic.bind_slot(*root, config.slot(handle.0), None)?;
        }
        self.open[id as usize] = None;
        self.open_count -= 1;
        Ok(())
    }
}
