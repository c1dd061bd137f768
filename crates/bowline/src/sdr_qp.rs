//! Messages that complete chunk by chunk: SDR's own interface, below any reliability scheme.

use std::collections::HashMap;
use std::net::IpAddr;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bowline_device::Host;
use bowline_io::{Task, TaskId};
use bowline_nic::{AddressVector, Rnic, Time};
use bowline_sdr::{RecvHandle, SdrConfig, SdrError, SdrInfo, SdrQp as Engine, SendHandle};

use crate::pd::PdInner;
use crate::{Error, Mr, Pd};

/// A queue pair whose messages may arrive in part: a bitmap shows which chunks did (`docs/sdr.md`).
///
/// Messages match the peer's receives in posting order. Nothing is retransmitted unless the program
/// does so, by [`send_continue`](SdrQp::send_continue); [`ReliableQp`](crate::ReliableQp) does it
/// by a scheme.
///
/// ```
/// use bowline::{Access, Device, SdrConfig, SdrQp};
///
/// let end = |addr| -> Result<_, bowline::Error> {
///     let pd = Device::open(addr)?.alloc_pd()?;
///     let mr = pd.register(1 << 20, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
///     Ok((SdrQp::new(&pd, &SdrConfig::default())?, mr))
/// };
/// let ((a, from), (b, to)) = (end("127.9.2.5")?, end("127.9.2.6")?);
/// a.connect("127.9.2.6".parse().unwrap(), &b.info()?)?;
/// b.connect("127.9.2.5".parse().unwrap(), &a.info()?)?;
/// let receive = b.recv_post(&to, 0..1 << 20)?;
/// from.write_at(0, b"in part or whole");
/// let message = a.send_post(&from, 0..1 << 20, Some(7))?;
/// while !(a.send_poll(message)? && b.recv_bitmap(receive)?.iter().all(|byte| *byte == 0xff)) {}
/// assert_eq!(b.recv_imm(receive)?, Some(7));
/// b.recv_complete(receive)?;
/// assert_eq!(to.to_vec(0, 16), b"in part or whole");
/// # Ok::<(), bowline::Error>(())
/// ```
pub struct SdrQp {
    pd: Arc<PdInner>,
    host: Host,
    running: Arc<Mutex<Running>>,
    task: TaskId,
    /// Memory in use by unfinished messages.
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    sends: HashMap<SendHandle, Vec<Mr>>,
    recvs: HashMap<RecvHandle, Mr>,
}

/// The lane's task.
struct Running {
    /// Taken when the queue pair is dropped.
    engine: Option<Engine>,
}

impl Task for Running {
    fn run(&mut self, nic: &mut dyn Rnic, now: Time) {
        if let Some(engine) = &mut self.engine {
            engine.drive(nic, now);
        }
    }

    fn deadline(&self) -> Option<Time> {
        self.engine.as_ref()?.poll_timeout()
    }
}

impl SdrQp {
    /// Creates a queue pair in a protection domain. On a verbs device its packets are datagrams,
    /// whatever the parameters say.
    pub fn new(pd: &Pd, config: &SdrConfig) -> Result<SdrQp, Error> {
        let pd = Arc::clone(&pd.inner);
        let host = pd.device().host(None)?;
        let pd_id = host.pd(&pd.core)?;
        let engine = host.with(|nic, _| {
            let config = config.on(nic);
            Engine::new(nic, pd_id, &config)
        })??;
        let running = Arc::new(Mutex::new(Running { engine: Some(engine) }));
        let task = host.add_task(running.clone())?;
        Ok(SdrQp { pd, host, running, task, held: Mutex::default() })
    }

    /// Runs `f` on the engine, in the lane.
    fn with<R>(
        &self,
        f: impl FnOnce(&mut Engine, &mut dyn Rnic, Time) -> Result<R, SdrError>,
    ) -> Result<R, Error> {
        let done = self.host.with(|nic, now| {
            let mut running = lock(&self.running);
            let engine = running.engine.as_mut().ok_or(SdrError::NotConnected)?;
            let done = f(engine, nic, now);
            engine.drive(nic, now);
            done
        })?;
        Ok(done?)
    }

    /// Drives the device, and looks at the engine.
    fn look<R>(&self, f: impl FnOnce(&Engine) -> Result<R, SdrError>) -> Result<R, Error> {
        self.host.poll()?;
        let running = lock(&self.running);
        Ok(f(running.engine.as_ref().ok_or(SdrError::NotConnected)?)?)
    }

    /// What the peer needs to know to connect.
    pub fn info(&self) -> Result<SdrInfo, Error> {
        self.with(|engine, _, _| Ok(engine.info()))
    }

    /// Connects to a peer at an address.
    pub fn connect(&self, addr: IpAddr, peer: &SdrInfo) -> Result<(), Error> {
        let av = AddressVector::new(addr);
        self.with(|engine, nic, now| engine.connect(nic, now, av, peer))
    }

    /// Begins a message of `len` bytes into the peer's next receive, to be filled piece by piece.
    pub fn send_start(&self, len: u64, imm: Option<u32>) -> Result<SendHandle, Error> {
        self.with(|engine, _, _| engine.send_start(len, imm))
    }

    /// Sends a part of a region as the bytes of a message from `offset` on: they start at a packet
    /// boundary, and end at one or at the message's end. The same bytes may be sent again; `urgent`
    /// ones leave before all others.
    pub fn send_continue(
        &self,
        message: SendHandle,
        offset: u64,
        mr: &Mr,
        range: Range<usize>,
        urgent: bool,
    ) -> Result<(), Error> {
        let (source, len) = mr.source(&self.pd, range)?;
        self.with(|engine, _, _| engine.send_continue(message, offset, len, source, urgent))?;
        lock(&self.held).sends.entry(message).or_default().push(mr.clone());
        Ok(())
    }

    /// Nothing more will be added to the message.
    pub fn send_end(&self, message: SendHandle) -> Result<(), Error> {
        self.with(|engine, _, _| engine.send_end(message))
    }

    /// Ends a message, and drops what has not left yet.
    pub fn send_cancel(&self, message: SendHandle) -> Result<(), Error> {
        self.with(|engine, _, _| engine.send_cancel(message))
    }

    /// Sends a part of a region into the peer's next receive.
    pub fn send_post(
        &self,
        mr: &Mr,
        range: Range<usize>,
        imm: Option<u32>,
    ) -> Result<SendHandle, Error> {
        let (source, len) = mr.source(&self.pd, range)?;
        let message = self.with(|engine, _, _| engine.send_post(source, len, imm))?;
        lock(&self.held).sends.entry(message).or_default().push(mr.clone());
        Ok(message)
    }

    /// Whether all of an ended message has left, so that its memory is the program's again. Drives
    /// the device meanwhile.
    pub fn send_poll(&self, message: SendHandle) -> Result<bool, Error> {
        let is_done = self.look(|engine| Ok(engine.send_poll(message)))?;
        if is_done {
            let held = lock(&self.held).sends.remove(&message);
            // Deregistering locks the lane.
            drop(held);
        }
        Ok(is_done)
    }

    /// Posts a part of a region for the peer's next message. The region needs remote write access,
    /// and is held until [`recv_complete`](SdrQp::recv_complete).
    pub fn recv_post(&self, mr: &Mr, range: Range<usize>) -> Result<RecvHandle, Error> {
        let (buffer, len) = mr.source(&self.pd, range)?;
        let receive = self.with(|engine, nic, now| engine.recv_post(nic, now, buffer, len))?;
        lock(&self.held).recvs.insert(receive, mr.clone());
        Ok(receive)
    }

    /// Which chunks of a message have arrived: chunk c is bit c % 8, from the lowest up, of byte c
    /// / 8. Bits beyond the last chunk are ones. Drives the device meanwhile.
    pub fn recv_bitmap(&self, receive: RecvHandle) -> Result<Vec<u8>, Error> {
        self.look(|engine| {
            let chunks = engine.recv_bitmap(receive)?;
            let words = (0..chunks.len().div_ceil(64)).map(|index| chunks.word(index));
            let mut bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
            bytes.truncate(chunks.len().div_ceil(8) as usize);
            if let Some(last) = bytes.last_mut()
                && !chunks.len().is_multiple_of(8)
            {
                *last |= u8::MAX << (chunks.len() % 8);
            }
            Ok(bytes)
        })
    }

    /// The sender's immediate, once enough packets have come. Drives the device meanwhile.
    pub fn recv_imm(&self, receive: RecvHandle) -> Result<Option<u32>, Error> {
        self.look(|engine| engine.recv_imm(receive))
    }

    /// Ends a receive, complete or not: from now on packets of its message are discarded, and its
    /// memory is the program's again.
    pub fn recv_complete(&self, receive: RecvHandle) -> Result<(), Error> {
        self.with(|engine, nic, _| engine.recv_complete(nic, receive))?;
        let held = lock(&self.held).recvs.remove(&receive);
        // Deregistering locks the lane.
        drop(held);
        Ok(())
    }
}

impl Drop for SdrQp {
    fn drop(&mut self) {
        // A device that has ended has nothing to remove.
        let _ = self.host.remove_task(self.task);
        let _ = self.host.with(|nic, _| {
            if let Some(engine) = lock(&self.running).engine.take() {
                engine.destroy(nic);
            }
        });
    }
}

impl std::fmt::Debug for SdrQp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SdrQp(of {})", self.pd.device().addr())
    }
}

/// No panic can leave these half-changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
