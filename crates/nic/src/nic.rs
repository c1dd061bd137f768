//! stub
#![allow(unused_variables, missing_docs)]
use crate::*;
use bowline_wire::Qpn;
/// The NIC.
pub struct Nic { config: NicConfig }
/// What a QP is.
#[derive(Clone, Debug)]
pub struct QpInfo { pub state: QpState, pub attr: QpAttr, pub init: QpInit }
impl Nic {
    pub fn new(config: NicConfig) -> Result<Nic, ControlError> { Ok(Nic { config }) }
    pub fn config(&self) -> &NicConfig { &self.config }
    pub fn alloc_pd(&mut self) -> Result<PdId, ControlError> { todo!() }
    pub fn dealloc_pd(&mut self, pd: PdId) -> Result<(), ControlError> { todo!() }
    pub fn register(&mut self, pd: PdId, region: Region, iova: u64, access: Access) -> Result<MrKey, ControlError> { todo!() }
    pub fn deregister(&mut self, key: MrKey) -> Result<(), ControlError> { todo!() }
    pub fn create_cq(&mut self, depth: u32) -> Result<CqId, ControlError> { todo!() }
    pub fn destroy_cq(&mut self, cq: CqId) -> Result<(), ControlError> { todo!() }
    /// Ask for one `Event::CqNotify` at the next completion (or the next solicited or failed one).
    pub fn arm_cq(&mut self, cq: CqId, solicited_only: bool) -> Result<(), ControlError> { todo!() }
    pub fn poll_cq(&mut self, cq: CqId, out: &mut [Completion]) -> Result<usize, ControlError> { todo!() }
    pub fn create_srq(&mut self, pd: PdId, max_wr: u32, max_sge: u8) -> Result<SrqId, ControlError> { todo!() }
    pub fn set_srq_limit(&mut self, srq: SrqId, limit: u32) -> Result<(), ControlError> { todo!() }
    pub fn destroy_srq(&mut self, srq: SrqId) -> Result<(), ControlError> { todo!() }
    pub fn post_srq_recv(&mut self, srq: SrqId, wr: &RecvWr<'_>) -> Result<(), PostError> { todo!() }
    pub fn create_qp(&mut self, init: &QpInit) -> Result<Qpn, ControlError> { todo!() }
    pub fn modify_qp(&mut self, now: Time, qpn: Qpn, attr: &QpAttr) -> Result<(), ModifyError> { todo!() }
    pub fn query_qp(&self, qpn: Qpn) -> Option<QpInfo> { todo!() }
    pub fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), ControlError> { todo!() }
    pub fn post_send(&mut self, now: Time, qpn: Qpn, wr: &SendWr<'_>) -> Result<(), PostError> { todo!() }
    pub fn post_recv(&mut self, qpn: Qpn, wr: &RecvWr<'_>) -> Result<(), PostError> { todo!() }
    pub fn set_rate_control(&mut self, now: Time, qpn: Qpn, control: RateControl) -> Result<(), ControlError> { todo!() }
    /// Gives the QP a window of its own instead of its share of the peer's.
    pub fn set_window(&mut self, qpn: Qpn, bytes: u32) -> Result<(), ControlError> { todo!() }
    pub fn handle_frame(&mut self, now: Time, meta: &FrameMeta, frame: &[u8]) { todo!() }
    pub fn handle_timeout(&mut self, now: Time) { todo!() }
    /// Appends packets until the batch is full or nothing is ready.
    pub fn poll_transmit(&mut self, now: Time, batch: &mut TxBatch) { todo!() }
    /// When to call `handle_timeout`, if nothing happens before.
    pub fn poll_timeout(&self) -> Option<Time> { todo!() }
    pub fn poll_event(&mut self) -> Option<Event> { todo!() }
    pub fn counters(&self) -> &Counters { todo!() }
    pub fn qp_counters(&self, qpn: Qpn) -> Option<&QpCounters> { todo!() }
}
