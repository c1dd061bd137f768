//! Which frames a QP takes: of its service, from its peer, and intact.

use bowline_wire::{OpKind, OpcodeSet, PacketView, solve_ip_id};

use crate::config::NicConfig;
use crate::counters::Counters;
use crate::frame::{FrameMeta, IpId};
use crate::qp::QpCore;
use crate::shim::Chain;
use crate::train::Train;
use crate::tx::Flow;
use crate::types::QpState;

/// Sends within a burst are numbered below this; see [`IpId`].
const OWN_IDS: u16 = 128;
/// A peer whose last frames all had such a number is one of ours: from then on any other number
/// means corruption. A foreign sender that counts upwards cannot have as many in a row.
const OWN_ID_RUN: u16 = 512;
/// The default partition, membership bit aside.
const PKEY_MASK: u16 = 0x7fff;

/// Why a frame is not for a QP.
#[derive(Clone, Copy, Debug)]
enum Stranger {
    /// The QP does not receive such packets, or none now.
    State,
    Pkey,
    Peer,
}

/// Whether a frame is for this QP and intact; counts why not. `claimed` are the opcodes of its shims.
#[inline]
pub(super) fn accepts(
    core: &mut QpCore,
    meta: &FrameMeta,
    packet: &PacketView<'_>,
    claimed: &OpcodeSet,
    config: &NicConfig,
    counters: &mut Counters,
) -> bool {
    let drops = match check(core, meta, packet, claimed, config) {
        Ok(()) if icrc_holds(core, meta, packet, counters) => return true,
        Ok(()) => &mut counters.drop_icrc,
        Err(Stranger::State) => &mut counters.drop_state,
        Err(Stranger::Pkey) => &mut counters.drop_pkey,
        Err(Stranger::Peer) => &mut counters.drop_wrong_peer,
    };
    *drops += 1;
    false
}

/// The train that a packet begins, if it is for this QP.
pub(super) fn train<'a>(
    core: &mut QpCore,
    meta: &FrameMeta,
    first: &PacketView<'a>,
    bytes: &'a [u8],
    shims: &'a mut Chain,
    config: &NicConfig,
) -> Option<Train<'a>> {
    check(core, meta, first, shims.opcodes(), config).ok()?;
    Some(Train::new(first, bytes, meta, core.rx_flow.as_mut()?, shims.alone()))
}

/// Takes note that frames of a train were intact.
pub(super) fn trust(core: &mut QpCore, meta: &FrameMeta, frames: usize) {
    let (IpId::Known(first) | IpId::Guess(first)) = meta.ip_id;
    let own = usize::from(OWN_IDS.saturating_sub(first)).min(frames);
    core.own_id_run = core.own_id_run.saturating_add(own as u16);
}

/// Whether a frame is for this QP, if it is intact.
#[inline]
fn check(
    core: &mut QpCore,
    meta: &FrameMeta,
    packet: &PacketView<'_>,
    claimed: &OpcodeSet,
    config: &NicConfig,
) -> Result<(), Stranger> {
    let receives = matches!(core.state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe);
    let opcode = packet.opcode();
    if !receives
        || core.hold.is_deaf()
        || (!core.descriptor.opcodes.contains(opcode)
            && packet.info().kind != OpKind::Cnp
            && !claimed.contains(opcode))
    {
        return Err(Stranger::State);
    }
    if packet.pkey() & PKEY_MASK != PKEY_MASK {
        return Err(Stranger::Pkey);
    }
    let known = core.rx_flow.as_ref().is_some_and(|flow| flow.is_from(meta));
    if known || learn_flow(core, meta, config) { Ok(()) } else { Err(Stranger::Peer) }
}

/// Takes a flow as the one that the QP's frames come in; `false` if it is not from the QP's peer.
/// A QP without a peer hears anybody.
#[cold]
fn learn_flow(core: &mut QpCore, meta: &FrameMeta, config: &NicConfig) -> bool {
    if core.descriptor.connected && core.attrs.av.is_none_or(|av| av.dst != meta.src) {
        return false;
    }
    core.rx_flow = Some(Flow::inbound(meta, config.udp_port));
    true
}

/// Checks a frame's ICRC, with what is known of its IP identification.
#[inline]
fn icrc_holds(
    core: &mut QpCore,
    meta: &FrameMeta,
    packet: &PacketView<'_>,
    counters: &mut Counters,
) -> bool {
    let assumed = match meta.ip_id {
        IpId::Known(id) | IpId::Guess(id) => id,
    };
    let bytes = packet.as_bytes();
    let Some(flow) = core.rx_flow.as_mut() else { return false };
    let body = &bytes[..bytes.len().saturating_sub(4)];
    let Some((bth, rest)) = body.split_first_chunk() else { return false };
    let (behind_bth, _) = flow.icrc_behind_bth(bytes.len() as u32, bth, assumed);
    let computed = behind_bth.update(rest).finish();
    let received = packet.icrc();
    if computed == received {
        core.own_id_run = core.own_id_run.saturating_add(u16::from(assumed < OWN_IDS));
        return true;
    }
    if let IpId::Known(_) = meta.ip_id {
        return false;
    }
    match solve_ip_id(computed, received, assumed, bytes.len()) {
        Some(id) if id < OWN_IDS => {
            core.own_id_run = core.own_id_run.saturating_add(1);
            true
        }
        Some(_) if core.own_id_run < OWN_ID_RUN => {
            core.own_id_run = 0;
            counters.icrc_solved += 1;
            true
        }
        _ => false,
    }
}
