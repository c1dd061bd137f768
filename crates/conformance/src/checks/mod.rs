//! The checks, by subject.

mod access;
mod atomics;
mod data;
mod datagrams;
mod express;
mod flow;
mod flush;
mod groups;
mod signals;
mod unreliable;
mod windows;

use bowline_nic::{Mtu, QpType, Remote};

use crate::{Case, Check, Lab, Outcome, Qp};

/// Guard bytes around a message.
pub(crate) const GUARD: usize = 16;
/// Their value.
pub(crate) const GUARD_BYTE: u8 = 0xee;

const fn check(name: &'static str, run: fn(&mut Lab, &Case) -> Outcome) -> Check {
    Check {
        name,
        run,
        every_mtu: false,
        survives_faults: false,
        needs_xp: false,
        fits_groups: false,
        needs_group: false,
    }
}

impl Check {
    const fn at_every_mtu(mut self) -> Check {
        self.every_mtu = true;
        self
    }

    const fn despite_faults(mut self) -> Check {
        self.survives_faults = true;
        self
    }

    const fn in_groups(mut self) -> Check {
        self.fits_groups = true;
        self
    }

    const fn to_several(mut self) -> Check {
        self.needs_group = true;
        self.in_groups()
    }

    const fn between_xp_ends(mut self) -> Check {
        self.needs_xp = true;
        self
    }
}

/// All checks.
pub static ALL: &[Check] = &[
    check("RC SEND of every length", data::sends).at_every_mtu().despite_faults().in_groups(),
    check("RC WRITE of every length", data::writes).at_every_mtu().despite_faults().in_groups(),
    check("RC READ of every length", |lab, case| data::reads(lab, case, QpType::Rc))
        .at_every_mtu()
        .despite_faults(),
    check("RC messages to two members", groups::to_two)
        .at_every_mtu()
        .despite_faults()
        .to_several(),
    check("RC messages of 256 KiB", data::long_messages).despite_faults(),
    check("RC immediates", data::immediates).despite_faults().in_groups(),
    check("RC many messages in flight", data::many_in_flight).despite_faults().in_groups(),
    check("RC READs beyond the limit", data::many_reads).despite_faults(),
    check("RC sequence numbers wrap", data::psn_wrap).despite_faults(),
    check("atomics return the original", atomics::originals).despite_faults(),
    check("atomics happen once", atomics::exactly_once).despite_faults(),
    check("atomics off alignment", atomics::misaligned),
    check("unsignaled sends", signals::unsignaled).despite_faults().in_groups(),
    check("inline sends", signals::inline).despite_faults().in_groups(),
    check("solicited receives", signals::solicited).in_groups(),
    check("fenced send after READ", signals::fence).despite_faults(),
    check("SEND with invalidate", signals::invalidate),
    check("RNR and recovery", flow::rnr_recovers).despite_faults().in_groups(),
    check("RNR retries exceeded", flow::rnr_exceeded).in_groups(),
    check("no such peer QP", flow::dead_peer).in_groups(),
    check("peer QP in error", flow::peer_in_error).in_groups(),
    check("wrong rkey", access::wrong_rkey),
    check("deregistered memory", access::deregistered),
    check("out of bounds", access::out_of_bounds),
    check("memory without the right", access::memory_rights),
    check("QP without the right", access::qp_rights),
    check("message longer than the receive", access::too_long_for_receive).in_groups(),
    check("flush in order after a NAK", flush::after_nak).in_groups(),
    check("flush in order after modify", flush::after_modify).in_groups(),
    check("local protection error", flush::local_protection).in_groups(),
    check("UC SEND of every length", |lab, case| unreliable::sends(lab, case, QpType::Uc))
        .at_every_mtu(),
    check("UC WRITE of every length", |lab, case| unreliable::writes(lab, case, QpType::Uc))
        .at_every_mtu(),
    check("UC SEND without a receive", unreliable::uc_without_receive),
    check("UC WRITE with a wrong rkey", |lab, case| unreliable::wrong_rkey(lab, case, QpType::Uc)),
    check("XP SEND of every length", |lab, case| unreliable::sends(lab, case, QpType::Xp))
        .at_every_mtu()
        .between_xp_ends(),
    check("XP WRITE of every length", |lab, case| unreliable::writes(lab, case, QpType::Xp))
        .at_every_mtu()
        .between_xp_ends(),
    check("XP READ of every length", |lab, case| data::reads(lab, case, QpType::Xp))
        .at_every_mtu()
        .between_xp_ends(),
    check("XP SEND without a receive", unreliable::xp_without_receive).between_xp_ends(),
    check("XP WRITE with a wrong rkey", |lab, case| unreliable::wrong_rkey(lab, case, QpType::Xp))
        .between_xp_ends(),
    check("memory windows on RC", windows::on_rc),
    check("memory windows on UC", windows::on_uc),
    check("XP over UC: SEND", express::sends).despite_faults(),
    check("XP over UC: WRITE with immediate", express::writes).despite_faults(),
    check("XP over UC: many messages", express::many).despite_faults(),
    check("XP over UC: deadlines", express::deadlines).despite_faults(),
    check("XP over UC: late packets", express::late_packets).despite_faults(),
    check("UD datagrams of every length", datagrams::lengths).at_every_mtu(),
    check("UD global route header", datagrams::grh),
    check("UD wrong Q_Key", datagrams::wrong_qkey),
    check("UD without a receive", datagrams::no_receive),
];

/// Lengths around packet boundaries and padding.
pub(crate) fn lengths(mtu: Mtu) -> Vec<usize> {
    let mtu = mtu.bytes() as usize;
    vec![0, 1, 2, 3, 4, 63, mtu - 1, mtu, mtu + 1, 2 * mtu - 1, 2 * mtu, 3 * mtu + 5]
}

/// Bytes that differ by offset and from message to message.
pub(crate) fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i ^ (i >> 8) ^ (i >> 16)).wrapping_add(seed.wrapping_mul(37)) as u8).collect()
}

/// An address in the memory beside a peer's queue pair.
pub(crate) fn at(qp: &Qp, offset: usize) -> Remote {
    Remote { addr: qp.region.addr + offset as u64, rkey: qp.region.rkey }
}

/// A message with untouched bytes before and after it.
pub(crate) fn guarded(payload: &[u8]) -> Vec<u8> {
    [&[GUARD_BYTE; GUARD], payload, &[GUARD_BYTE; GUARD]].concat()
}

/// The guards of a message of this length, and zeroes between.
pub(crate) fn blank(len: usize) -> Vec<u8> {
    guarded(&vec![0; len])
}
