//! A device's connection manager. Its state machine runs in the first lane, over queue pair 1.
//!
//! If several processes share the address, each of them sees every message. A process leaves the
//! messages of other processes to them. One process speaks for all, and answers messages that
//! belong to nobody ([`Services`]).

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bowline_cm::mad::{Destination, GSI_QKEY, MAD_LEN};
use bowline_cm::{CmManager, Config, Event, ServiceId};
use bowline_io::{EventChannel, Lane, LaneError, Services, Task, TaskId};
use bowline_nic::{
    Access, AddressVector, Buffer, Completion, ControlError, CqId, MrKey, Nic, Payload, PdId,
    QpInit, QpType, RecvWr, Region, Rnic, SendFlags, SendOp, SendWr, Sge, Time, UdDest, WcOpcode,
    WcStatus,
};
use bowline_wire::{Grh, Qpn, ud_source};

use crate::events::LostPeers;
use crate::linger::{self, Linger};
use crate::{Device, DeviceError, random_bytes};

/// Number of posted receives. A message that finds none is lost, and is sent again.
const RECEIVES: u32 = 1024;
/// Number of sends that may wait.
const SENDS: u32 = 1024;
/// Bytes of a receive: the MAD follows a GRH.
const SLOT: usize = 512;
const _: () = assert!(Grh::LEN + MAD_LEN <= SLOT);
/// Maximum number of events kept for the application.
const MAX_EVENTS: usize = 1 << 18;

/// An event of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectionEvent {
    /// An event of the connection manager.
    Cm(Event),
    /// The peer of a watched queue pair ([`Qp::watch_peer`](crate::Qp::watch_peer)) is gone.
    /// [`CmManager::peer_lost`] ends its connection.
    PeerLost(Qpn),
}

/// The connections of a device: the manager, its queue pair, and a channel for events.
pub struct Connections {
    lane: Arc<Lane>,
    running: Arc<Mutex<Running>>,
    task: TaskId,
    events: Arc<EventChannel<ConnectionEvent>>,
    peers: Arc<LostPeers>,
}

impl Connections {
    /// Starts the connection manager of a device. A device has one at a time.
    pub fn open(device: &Device, config: Config) -> Result<Connections, DeviceError> {
        device.needs_soft_nic("the connection manager")?;
        let lane = Arc::clone(device.lane(0));
        let seed = random_bytes().map_err(DeviceError::system("read randomness"))?;
        let events =
            EventChannel::new(MAX_EVENTS).map_err(DeviceError::system("make a channel"))?;
        let events = Arc::new(events);
        let channel = Arc::clone(&events);
        let qp = lane.with(QueuePair::new)??;
        let prefix = lane.with(|nic, _| nic.config().qpn_prefix)?;
        let joined = match prefix {
            0 => None,
            _ => Services::join(&device.udp, prefix).map_err(bowline_io::PortError::from)?,
        };
        let comm_id_prefix = joined.is_some().then_some(prefix);
        let cm = CmManager::new(Config { comm_id_prefix, ..config }, seed);
        let addr = device.addr();
        let sharing = joined.map(|services| Shared { services, prefix, addr });
        let at = SocketAddr::new(addr, device.udp.udp_port);
        let (claimed, linger) = (HashSet::new(), Linger::default());
        let mut running = Running { cm, qp, sharing, at, claimed, linger, events: channel };
        running.go_on(lane.now());
        let running = Arc::new(Mutex::new(running));
        let task = lane.add_task(running.clone())?;
        let peers = Arc::clone(&device.peers);
        peers.tell(Some(Arc::clone(&events)));
        Ok(Connections { lane, running, task, events, peers })
    }

    /// Calls the manager, and sends the messages that it produces.
    ///
    /// A message to another process on this address may arrive at our own socket, from which we
    /// forward it. This happens before the call returns, because the caller may exit the process
    /// next and thereby close the socket.
    pub fn call<R>(&self, call: impl FnOnce(&mut CmManager, Time) -> R) -> Result<R, LaneError> {
        let (result, to_neighbours) = self.lane.with(|nic, now| {
            let mut running = self.running();
            let result = call(&mut running.cm, now);
            (result, running.flush(nic, now))
        })?;
        if to_neighbours {
            self.lane.poll(|_, _| ())?;
            self.lane.stop_polling();
        }
        Ok(result)
    }

    /// Listens for a service. Returns `false` if a process on this address already does.
    pub fn listen(&self, service: ServiceId, backlog: usize) -> Result<bool, LaneError> {
        self.lane.with(|nic, now| {
            let mut running = self.running();
            let listens = running.listen(now, service, backlog);
            running.flush(nic, now);
            listens
        })
    }

    /// Stops listening. For a moment, requests wait for another listener of this process before
    /// they are refused.
    pub fn unlisten(&self, service: ServiceId) -> Result<(), LaneError> {
        self.lane.with(|_, now| self.running().unlisten(now, service))
    }

    /// The events of connections. The descriptor is readable while events are pending.
    pub fn events(&self) -> &EventChannel<ConnectionEvent> {
        &self.events
    }

    fn running(&self) -> MutexGuard<'_, Running> {
        // If a task panicked, its lane has ended, so nobody sees an inconsistent state.
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        self.peers.tell(None);
        // A lane that has ended needs no cleanup.
        let _ = self.lane.remove_task(self.task);
        self.running().leave();
        let _ = self.lane.with(|nic, _| self.running().qp.close(nic));
    }
}

/// State for sharing the address with other processes.
struct Shared {
    services: Services,
    prefix: u8,
    /// The shared address.
    addr: IpAddr,
}

struct Running {
    cm: CmManager,
    qp: QueuePair,
    /// `None` if no other process can use this address.
    sharing: Option<Shared>,
    /// The address of its device.
    at: SocketAddr,
    claimed: HashSet<ServiceId>,
    linger: Linger,
    events: Arc<EventChannel<ConnectionEvent>>,
}

impl Running {
    /// Takes over the services that a device of this process listened for here a moment ago.
    fn go_on(&mut self, now: Time) {
        for service in linger::recall(self.at) {
            self.linger.begin(now, service);
        }
    }

    /// Leaves its services to this process's next device, which may be opened soon.
    fn leave(&mut self) {
        for service in std::mem::take(&mut self.claimed) {
            linger::remember(self.at, service);
            self.reserve(service);
        }
        for service in self.linger.services() {
            linger::remember(self.at, service);
        }
    }

    fn listen(&mut self, now: Time, service: ServiceId, backlog: usize) -> bool {
        let claimed = match &self.sharing {
            // If the registry fails, nobody is known to have claimed the service.
            Some(shared) => shared.services.claim(service.0).unwrap_or(true),
            None => true,
        };
        if !claimed || self.cm.listen(service, backlog).is_err() {
            return false;
        }
        self.claimed.insert(service);
        for (from, mad) in self.linger.end(service) {
            self.cm.handle_mad(now, from, &mad);
        }
        true
    }

    fn unlisten(&mut self, now: Time, service: ServiceId) {
        let listened = self.claimed.remove(&service);
        self.cm.unlisten(service);
        if listened && self.linger.begin(now, service) {
            self.reserve(service);
        } else if let (true, Some(shared)) = (listened, &self.sharing) {
            shared.services.release(service.0);
        }
    }

    /// Handles requests for services that got no other listener in time.
    fn end_lingering(&mut self, now: Time) {
        while let Some(service) = self.linger.due(now) {
            // Another process may listen for the service by now. Our own reservation does not
            // count, because it may end slightly later than this.
            let is_anothers = |shared: &Shared| shared.services.is_claimed_by_another(service.0);
            let is_ours = !self.sharing.as_ref().is_some_and(is_anothers);
            for (from, mad) in self.linger.end(service).into_iter().filter(|_| is_ours) {
                self.cm.handle_mad(now, from, &mad);
            }
        }
    }

    fn receive(&mut self, now: Time, from: IpAddr, mad: &[u8; MAD_LEN]) {
        let held = match Destination::of(mad) {
            Some(Destination::Service(service)) if !self.cm.is_listening(service) => {
                self.linger.hold(service, (from, *mad))
            }
            _ => false,
        };
        if !held && self.is_ours(mad) {
            self.cm.handle_mad(now, from, mad);
        }
    }

    /// Releases a service. For a moment, other processes on this address do not answer for it.
    fn reserve(&self, service: ServiceId) {
        if let Some(shared) = &self.sharing {
            shared.services.reserve(service.0, linger::LINGER);
        }
    }

    /// Whether this process should answer a message.
    fn is_ours(&self, mad: &[u8; MAD_LEN]) -> bool {
        let Some(Shared { services, prefix, .. }) = &self.sharing else { return true };
        match Destination::of(mad) {
            Some(Destination::Service(service)) => {
                self.cm.is_listening(service)
                    || (!services.is_of_another(service.0) && services.speaks())
            }
            Some(Destination::Connection(id)) => {
                let of = (id.0 >> 24) as u8;
                of == *prefix || (!services.is_present(of) && services.speaks())
            }
            // The sender gave up and knows only its own ID. The process that has the connection
            // handles it.
            Some(Destination::Origin) => true,
            None => false,
        }
    }

    /// Sends the manager's messages and delivers its events. Returns whether any message went to
    /// the processes on this address.
    fn flush(&mut self, nic: &mut dyn Rnic, now: Time) -> bool {
        let mut to_neighbours = false;
        while let Some(out) = self.cm.poll_transmit() {
            to_neighbours |= self.sharing.as_ref().is_some_and(|shared| shared.addr == out.to);
            self.qp.send(nic, now, out.to, &out.mad);
        }
        while let Some(event) = self.cm.poll_event() {
            self.events.push(ConnectionEvent::Cm(event));
        }
        to_neighbours
    }
}

impl Task for Running {
    fn run(&mut self, nic: &mut dyn Rnic, now: Time) {
        let mut batch = [Completion::default(); 32];
        loop {
            let taken = nic.poll_cq(self.qp.cq, &mut batch).unwrap_or(0);
            for completion in &batch[..taken] {
                if completion.opcode != WcOpcode::Recv {
                    continue;
                }
                if let Some((from, mad)) = self.qp.read(completion) {
                    self.receive(now, from, &mad);
                }
                self.qp.post_receive(nic, completion.wr_id);
            }
            if taken < batch.len() {
                break;
            }
        }
        self.end_lingering(now);
        if self.cm.poll_timeout().is_some_and(|due| due <= now) {
            self.cm.handle_timeout(now);
        }
        self.flush(nic, now);
    }

    fn deadline(&self) -> Option<Time> {
        [self.cm.poll_timeout(), self.linger.deadline()].into_iter().flatten().min()
    }
}

/// Queue pair 1 and its memory.
struct QueuePair {
    cq: CqId,
    pd: PdId,
    key: MrKey,
    buffer: Arc<Buffer>,
}

impl QueuePair {
    fn new(nic: &mut Nic, now: Time) -> Result<QueuePair, ControlError> {
        let buffer = Buffer::new(SLOT * RECEIVES as usize);
        let pd = nic.alloc_pd()?;
        let key = nic.register(pd, Region::owned(Arc::clone(&buffer)), 0, Access::LOCAL_WRITE)?;
        let cq = nic.create_cq(RECEIVES + SENDS)?;
        let init = QpInit {
            max_send_wr: SENDS,
            max_recv_wr: RECEIVES,
            max_inline: MAD_LEN as u32,
            ..QpInit::new(QpType::Ud, pd, cq)
        };
        let qp = QueuePair { cq, pd, key, buffer };
        let why = "queue pair 1 cannot be brought up";
        let made = nic.create_gsi_qp(&init).and_then(|qpn| {
            nic.activate(now, qpn, GSI_QKEY)
                .map_err(|_| ControlError::Invalid { what: "queue pair", why })
        });
        if let Err(error) = made {
            qp.free(nic);
            return Err(error);
        }
        for slot in 0..RECEIVES {
            qp.post_receive(nic, u64::from(slot));
        }
        Ok(qp)
    }

    fn post_receive(&self, nic: &mut dyn Rnic, slot: u64) {
        let sges = [Sge::new(self.key, slot * SLOT as u64, SLOT as u32)];
        // The queue has room for every slot.
        let _ = nic.post_recv(Qpn::GSI, &RecvWr::new(slot, &sges));
    }

    /// Sends a MAD. If there is no room, it counts as lost.
    fn send(&self, nic: &mut dyn Rnic, now: Time, to: IpAddr, mad: &[u8; MAD_LEN]) {
        let wr = SendWr {
            payload: Payload::Inline(mad),
            flags: SendFlags::empty(),
            ud: Some(UdDest { av: AddressVector::new(to), qpn: Qpn::GSI, qkey: GSI_QKEY }),
            ..SendWr::new(0, SendOp::Send, &[])
        };
        let _ = nic.post_send(now, Qpn::GSI, &wr);
    }

    /// A received MAD and its source.
    fn read(&self, completion: &Completion) -> Option<(IpAddr, [u8; MAD_LEN])> {
        let whole = completion.byte_len as usize == Grh::LEN + MAD_LEN;
        if completion.status != WcStatus::Success || !whole {
            return None;
        }
        let slot = usize::try_from(completion.wr_id).ok()?;
        let (mut grh, mut mad) = ([0; Grh::LEN], [0; MAD_LEN]);
        self.buffer.read_at(slot * SLOT, &mut grh);
        self.buffer.read_at(slot * SLOT + Grh::LEN, &mut mad);
        Some((ud_source(&grh)?, mad))
    }

    fn close(&self, nic: &mut Nic) {
        // If the NIC no longer has it, nothing needs removing.
        let _ = nic.destroy_qp(Qpn::GSI);
        self.free(nic);
    }

    fn free(&self, nic: &mut Nic) {
        let _ = nic.destroy_cq(self.cq);
        let _ = nic.deregister(self.key);
        let _ = nic.dealloc_pd(self.pd);
    }
}
