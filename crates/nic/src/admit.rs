//! Admission: whether a received frame matches the QP's transport and peer, and is intact.

use bowline_wire::{OpKind, PacketView, solve_ip_id};

use crate::config::NicConfig;
use crate::counters::Counters;
use crate::frame::{FrameMeta, IpId};
use crate::qp::Qp;
use crate::shim::Shim;
use crate::train::Train;
use crate::tx::Flow;
use crate::types::QpState;

/// Bowline senders number the packets of a burst below this; see [`IpId`].
const OWN_IDS: u16 = 128;
/// After this many such numbers in a row the source is taken for a Bowline sender: from then on any
/// other number means corruption. A foreign sender that counts upwards has no run this long.
const OWN_ID_RUN: u16 = 512;
/// The run counter saturates here, so that a few mismatches are enough to reconsider.
const OWN_ID_RUN_MAX: u16 = 2 * OWN_ID_RUN;
/// The default partition, membership bit aside.
const PKEY_MASK: u16 = 0x7fff;

/// Why a frame is not for a QP.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stranger {
    /// The QP does not take such packets, at least not in its current state.
    State,
    Pkey,
    Peer,
}

/// What admission remembers about the source of a QP's frames.
#[derive(Debug, Default)]
pub(crate) struct Admission {
    /// The flow of the last accepted frame.
    flow: Option<Flow>,
    /// Consecutive frames of this flow whose IP identification is one that Bowline senders use.
    own_id_run: u16,
}

impl Admission {
    /// The QP gets another peer.
    pub(crate) fn forget_flow(&mut self) {
        *self = Admission::default();
    }

    /// The train that begins with this packet, which [`Qp::check_frame`] has accepted for the QP.
    pub(crate) fn train<'a>(
        &mut self,
        meta: &FrameMeta,
        first: &PacketView<'a>,
        bytes: &'a [u8],
        shim: Option<&'a mut (dyn Shim + 'static)>,
    ) -> Option<Train<'a>> {
        Train::new(first, bytes, meta, self.flow.as_mut()?, shim)
    }

    /// Records that frames of a train were intact.
    pub(crate) fn trust(&mut self, meta: &FrameMeta, frames: usize) {
        let (IpId::Known(first) | IpId::Guess(first)) = meta.ip_id else { return };
        let own = usize::from(OWN_IDS.saturating_sub(first)).min(frames);
        self.count_own(own as u16);
    }

    #[inline]
    fn count_own(&mut self, frames: u16) {
        self.own_id_run = self.own_id_run.saturating_add(frames).min(OWN_ID_RUN_MAX);
    }

    /// Checks a frame's ICRC, given what is known about its IP identification.
    #[inline]
    fn is_intact(
        &mut self,
        meta: &FrameMeta,
        packet: &PacketView<'_>,
        counters: &mut Counters,
    ) -> bool {
        let assumed = match meta.ip_id {
            IpId::Known(id) | IpId::Guess(id) => id,
            IpId::Unsummed => return true,
        };
        let bytes = packet.as_bytes();
        let Some(flow) = self.flow.as_mut() else { return false };
        let body = &bytes[..bytes.len().saturating_sub(4)];
        let Some((bth, rest)) = body.split_first_chunk() else { return false };
        let (behind_bth, _) = flow.icrc_behind_bth(bytes.len() as u32, bth, assumed);
        let computed = behind_bth.update(rest).finish();
        let received = packet.icrc();
        if computed == received {
            self.count_own(u16::from(assumed < OWN_IDS));
            return true;
        }
        if let IpId::Known(_) = meta.ip_id {
            return false;
        }
        match solve_ip_id(computed, received, assumed, bytes.len()) {
            Some(id) if id < OWN_IDS => {
                self.count_own(1);
                true
            }
            Some(_) if self.own_id_run < OWN_ID_RUN => {
                self.own_id_run = 0;
                counters.icrc_solved += 1;
                true
            }
            Some(_) => {
                // One corrupt frame in 65,536 gets here. Several in a row mean a foreign sender,
                // under whose address somebody has sent frames like ours.
                self.own_id_run /= 2;
                false
            }
            None => false,
        }
    }
}

impl Qp {
    /// Whether a frame is for this QP and intact; if not, counts the reason.
    #[inline]
    pub(crate) fn admits(
        &mut self,
        meta: &FrameMeta,
        packet: &PacketView<'_>,
        config: &NicConfig,
        counters: &mut Counters,
    ) -> bool {
        let drops = match self.check_frame(meta, packet, config) {
            Ok(()) if self.admission.is_intact(meta, packet, counters) => return true,
            Ok(()) => &mut counters.drop_icrc,
            Err(Stranger::State) => &mut counters.drop_state,
            Err(Stranger::Pkey) => &mut counters.drop_pkey,
            Err(Stranger::Peer) => &mut counters.drop_wrong_peer,
        };
        *drops += 1;
        false
    }

    /// Whether a frame is for this QP, assuming it is intact.
    #[inline]
    pub(crate) fn check_frame(
        &mut self,
        meta: &FrameMeta,
        packet: &PacketView<'_>,
        config: &NicConfig,
    ) -> Result<(), Stranger> {
        let core = &self.core;
        let receives =
            matches!(core.state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe);
        let opcode = packet.opcode();
        if !receives
            || self.moving.hold.is_deaf()
            || (!core.descriptor.opcodes.contains(opcode)
                && packet.info().kind != OpKind::Cnp
                && !self.shims.claims(opcode))
        {
            return Err(Stranger::State);
        }
        if packet.pkey() & PKEY_MASK != PKEY_MASK {
            return Err(Stranger::Pkey);
        }
        let known = self.admission.flow.as_ref().is_some_and(|flow| flow.is_from(meta));
        if known || self.learn_flow(meta, config) { Ok(()) } else { Err(Stranger::Peer) }
    }

    /// Adopts a flow as the source of the QP's frames; `false` if it is not from the QP's peer. A
    /// QP without a peer accepts any source.
    #[cold]
    fn learn_flow(&mut self, meta: &FrameMeta, config: &NicConfig) -> bool {
        let core = &self.core;
        if core.descriptor.connected && core.attrs.av.is_none_or(|av| av.dst != meta.src) {
            return false;
        }
        // What was learned about one source does not apply to another.
        let flow = Some(Flow::inbound(meta, config.udp_port));
        self.admission = Admission { flow, own_id_run: 0 };
        true
    }
}
