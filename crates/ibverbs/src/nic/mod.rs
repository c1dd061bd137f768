//! A verbs device as protocols see it: the soft NIC's methods over verbs objects.

mod pace;
mod queue;

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::sync::{Arc, Weak};

use bowline_io::EventChannel;
use bowline_nic::{
    Access, Completion, Compute, ControlError, ControlledConnection, ControllerFactory, CqId,
    Feedback, ModifyError, MrKey, NicConfig, PdId, PostError, QpAttr, QpCounters, QpInit, QpState,
    QpType, RecvWr, Region, Rnic, SendWr, Sge, SrqId, Time, WcOpcode, WcStatus,
};
use bowline_wire::Qpn;

use crate::{Context, Cq, Mr, Pd, Qp, QpCaps, Srq, VerbsError};
use pace::Pace;
use queue::Queue;

/// Receives for a channel of datagrams. A NIC goes on receiving while no protocol has its turn,
/// unlike a lane.
const DATAGRAM_RECEIVES: u32 = 2048;

/// Objects of a verbs device that protocols use: queues by number, memory by key.
///
/// Protocols were written for the soft NIC, which has what verbs lack. Inline bytes of any length
/// go through memory of ours, because providers take few. Requests without a completion get one now
/// and then that nobody sees: a provider frees a send queue by completions alone. Rate controllers
/// hold requests back in software.
pub struct VerbsNic {
    context: Arc<Context>,
    config: NicConfig,
    pds: HashMap<PdId, Weak<Pd>>,
    // Before the queues that they use.
    qps: HashMap<Qpn, Queue>,
    srqs: HashMap<SrqId, Arc<Srq>>,
    cqs: HashMap<CqId, Arc<Cq>>,
    mrs: HashMap<MrKey, Mr>,
    /// Where completion queues that were armed report.
    events: Arc<EventChannel<u64>>,
    random: File,
    activity: u64,
}

impl VerbsNic {
    /// A device for protocols, with limits. Completion queues that are armed push something to
    /// `events`.
    pub fn new(
        context: &Arc<Context>,
        config: NicConfig,
        events: Arc<EventChannel<u64>>,
    ) -> Result<VerbsNic, VerbsError> {
        let random = File::open("/dev/urandom")
            .map_err(|source| VerbsError::Refused { what: "read randomness", source })?;
        Ok(VerbsNic {
            context: Arc::clone(context),
            config,
            pds: HashMap::new(),
            qps: HashMap::new(),
            srqs: HashMap::new(),
            cqs: HashMap::new(),
            mrs: HashMap::new(),
            events,
            random,
            activity: 0,
        })
    }

    /// Lets protocols use a domain, and gives its identifier.
    pub fn admit(&mut self, pd: &Arc<Pd>) -> PdId {
        self.pds.retain(|_, pd| pd.strong_count() > 0);
        self.pds.insert(pd.id(), Arc::downgrade(pd));
        pd.id()
    }

    /// Hands requests to the provider that were held back and are due.
    pub fn pump(&mut self, now: Time) {
        for queue in self.qps.values_mut() {
            self.activity += queue.pump(now);
        }
    }

    /// When the next request is due that was held back.
    pub fn deadline(&mut self, now: Time) -> Option<Time> {
        self.qps.values_mut().filter_map(|queue| queue.due(now)).min()
    }

    /// Grows whenever something was posted or has completed.
    pub fn activity(&self) -> u64 {
        self.activity
    }

    /// Asks for an event at the next completion of any queue.
    pub fn arm(&self) -> Result<(), VerbsError> {
        self.cqs.values().try_for_each(|cq| cq.arm(false))
    }

    fn pd(&self, pd: PdId) -> Result<Arc<Pd>, ControlError> {
        let known = self.pds.get(&pd).and_then(Weak::upgrade);
        known.ok_or(ControlError::NotFound { what: "protection domain" })
    }

    fn queue(&mut self, qpn: Qpn) -> Result<&mut Queue, ControlError> {
        self.qps.get_mut(&qpn).ok_or(ControlError::NotFound { what: "queue pair" })
    }

    fn make_qp(&self, init: &QpInit) -> Result<Queue, ControlError> {
        let missing = ControlError::NotFound { what: "completion queue" };
        let pd = self.pd(init.pd)?;
        let send_cq = self.cqs.get(&init.send_cq).ok_or(missing)?;
        let recv_cq = self.cqs.get(&init.recv_cq).ok_or(missing)?;
        let missing = ControlError::NotFound { what: "shared receive queue" };
        let srq = init.srq.map(|srq| self.srqs.get(&srq).ok_or(missing)).transpose()?;
        let asked = QpCaps {
            max_send_wr: init.max_send_wr,
            max_recv_wr: init.max_recv_wr,
            max_send_sge: init.max_send_sge.into(),
            max_recv_sge: init.max_recv_sge.into(),
            max_inline: 0,
        };
        let qp = Qp::create(init.qp_type, &pd, [send_cq, recv_cq], srq, asked, init.signal_all)?;
        Ok(Queue::new(qp, &pd, init)?)
    }

    /// Takes completions off a queue, without those that only free a send queue.
    fn take(&mut self, cq: &Cq, out: &mut [Completion]) -> Result<(usize, usize), ControlError> {
        let taken = cq.poll(out)?;
        let mut kept = 0;
        for index in 0..taken {
            let completion = out[index];
            let is_receive = matches!(completion.opcode, WcOpcode::Recv | WcOpcode::RecvWriteImm);
            // After a failure nothing but the status is told, and the queue pair is of no more use.
            let counts = completion.status == WcStatus::Success && !is_receive;
            let queue = self.qps.get_mut(&completion.qpn).filter(|_| counts);
            if queue.is_none_or(Queue::completed) {
                out[kept] = completion;
                kept += 1;
            }
        }
        self.activity += taken as u64;
        Ok((taken, kept))
    }
}

impl Rnic for VerbsNic {
    fn config(&self) -> &NicConfig {
        &self.config
    }

    fn datagram_receives(&self) -> u32 {
        DATAGRAM_RECEIVES
    }

    fn create_cq(&mut self, depth: u32) -> Result<CqId, ControlError> {
        let cq = Cq::create(&self.context, depth, Some((Arc::clone(&self.events), 0)))?;
        let id = cq.id();
        self.cqs.insert(id, Arc::new(cq));
        Ok(id)
    }

    fn destroy_cq(&mut self, cq: CqId) -> Result<(), ControlError> {
        let removed = self.cqs.remove(&cq);
        removed.map(drop).ok_or(ControlError::NotFound { what: "completion queue" })
    }

    fn poll_cq(&mut self, cq: CqId, out: &mut [Completion]) -> Result<usize, ControlError> {
        let missing = ControlError::NotFound { what: "completion queue" };
        let cq = Arc::clone(self.cqs.get(&cq).ok_or(missing)?);
        loop {
            let (taken, kept) = self.take(&cq, out)?;
            if kept > 0 || taken == 0 {
                return Ok(kept);
            }
        }
    }

    fn create_srq(&mut self, pd: PdId, max_wr: u32, max_sge: u8) -> Result<SrqId, ControlError> {
        let srq = Srq::create(&self.pd(pd)?, max_wr, max_sge)?;
        let id = srq.id();
        self.srqs.insert(id, Arc::new(srq));
        Ok(id)
    }

    fn destroy_srq(&mut self, srq: SrqId) -> Result<(), ControlError> {
        let removed = self.srqs.remove(&srq);
        removed.map(drop).ok_or(ControlError::NotFound { what: "shared receive queue" })
    }

    fn post_srq_recv(&mut self, srq: SrqId, wr: &RecvWr<'_>) -> Result<(), PostError> {
        self.srqs.get(&srq).ok_or(PostError::NotFound)?.post(wr)
    }

    fn create_qp(&mut self, init: &QpInit) -> Result<Qpn, ControlError> {
        let queue = self.make_qp(init)?;
        let qpn = queue.qp().qpn();
        self.qps.insert(qpn, queue);
        Ok(qpn)
    }

    fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), ControlError> {
        let removed = self.qps.remove(&qpn);
        removed.map(drop).ok_or(ControlError::NotFound { what: "queue pair" })
    }

    fn qp_type(&self, qpn: Qpn) -> Option<QpType> {
        Some(self.qps.get(&qpn)?.qp_type())
    }

    fn modify_qp(&mut self, _now: Time, qpn: Qpn, attr: &QpAttr) -> Result<(), ModifyError> {
        let queue = self.qps.get_mut(&qpn).ok_or(ModifyError::NoSuchQp(qpn))?;
        let changed = queue.qp().modify(attr);
        changed.map_err(|error| ModifyError::Refused { errno: error.errno() })?;
        if attr.state == Some(QpState::Reset) {
            queue.forget();
        }
        Ok(())
    }

    fn post_send(&mut self, now: Time, qpn: Qpn, wr: &SendWr<'_>) -> Result<(), PostError> {
        self.activity += 1;
        self.qps.get_mut(&qpn).ok_or(PostError::NotFound)?.post(now, wr)
    }

    fn post_recv(&mut self, qpn: Qpn, wr: &RecvWr<'_>) -> Result<(), PostError> {
        let queue = self.qps.get(&qpn).ok_or(PostError::NotFound)?;
        queue.qp().post_recv(std::slice::from_ref(wr)).map_err(|(_, error)| error)
    }

    fn register(
        &mut self,
        pd: PdId,
        region: Region,
        iova: u64,
        access: Access,
    ) -> Result<MrKey, ControlError> {
        let pd = self.pd(pd)?;
        // SAFETY: who made the region has promised that its memory lives until it is deregistered.
        let mr = unsafe { Mr::new(&pd, region, iova, access, None) }?;
        let key = MrKey(mr.lkey());
        self.mrs.insert(key, mr);
        Ok(key)
    }

    fn deregister(&mut self, key: MrKey) -> Result<(), ControlError> {
        let mr = self.mrs.remove(&key).ok_or(ControlError::NotFound { what: "memory region" })?;
        Ok(mr.deregister()?)
    }

    fn rkey(&self, key: MrKey) -> MrKey {
        self.mrs.get(&key).map_or(key, |mr| MrKey(mr.rkey()))
    }

    fn compute(
        &self,
        pd: PdId,
        reads: &[Sge],
        writes: &[Sge],
        f: &mut Compute<'_>,
    ) -> Result<(), ControlError> {
        let why = "a key, range or right does not check, or pieces overlap";
        let denied = ControlError::Invalid { what: "memory", why };
        self.pd(pd)?.compute(reads, writes, f).ok_or(denied)
    }

    fn check_bindable(
        &self,
        pd: PdId,
        key: MrKey,
        addr: u64,
        len: usize,
    ) -> Result<(), ControlError> {
        if self.pd(pd)?.is_writable(key.0, addr, len) {
            return Ok(());
        }
        let why = "it takes bytes of a region of the same domain with the right LOCAL_WRITE";
        Err(ControlError::Invalid { what: "receive", why })
    }

    fn fill_secret(&mut self, out: &mut [u8]) {
        // A secret that somebody could guess would be worse than none.
        self.random.read_exact(out).expect("the system's generator gives bytes once it is open");
    }

    fn set_rate_controller(
        &mut self,
        now: Time,
        qpn: Qpn,
        factory: Option<Arc<dyn ControllerFactory>>,
    ) -> Result<(), ControlError> {
        let mtu = self.config.max_mtu;
        let queue = self.queue(qpn)?;
        let connection = ControlledConnection::new(queue.qp_type().descriptor(), mtu);
        let controller = factory.map(|factory| factory.build(now, &connection));
        // Nobody answers XP's packets here: what waits for an answer would stay where it begins.
        let is_deaf = queue.qp_type() == QpType::Xp;
        let controller = controller.filter(|controller| !(is_deaf && controller.wants_feedback()));
        queue.set_pace(now, controller.map(Pace::new));
        Ok(())
    }

    fn rate_feedback(
        &mut self,
        now: Time,
        qpn: Qpn,
        feedback: &Feedback,
    ) -> Result<(), ControlError> {
        let queue = self.queue(qpn)?;
        queue.hear(now, feedback);
        let posted = queue.pump(now);
        self.activity += posted;
        Ok(())
    }

    fn qp_counters(&self, qpn: Qpn) -> Option<&QpCounters> {
        Some(self.qps.get(&qpn)?.counters())
    }
}
