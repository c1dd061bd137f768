//! Received packets, and the responses that a switch makes.

use bowline_wire::{
    Aeth, Bth, CNP_RESERVED_LEN, FlowKey, ICRC_LEN, Opcode, PacketView, Psn, Qpn, Syndrome,
    icrc_of, solve_ip_id,
};

use crate::counters::Counters;

/// A packet that arrived.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<'a> {
    /// Addresses and ports.
    pub flow: FlowKey,
    /// IPv4 identification; `None` if the driver does not see it. Meaningless for IPv6.
    pub ip_id: Option<u16>,
    /// BTH to ICRC.
    pub bytes: &'a [u8],
}

impl Arrival<'_> {
    /// Whether the ICRC is right.
    pub(crate) fn check_icrc(&self, packet: &PacketView<'_>, counters: &mut Counters) -> bool {
        let Some((body, _)) = self.bytes.split_last_chunk::<ICRC_LEN>() else { return false };
        let assumed = self.ip_id.unwrap_or(0);
        let computed = icrc_of(&self.flow, assumed, body);
        if computed == packet.icrc() {
            return true;
        }
        let is_solved = self.ip_id.is_none()
            && self.flow.src.is_ipv4()
            && solve_ip_id(computed, packet.icrc(), assumed, self.bytes.len()).is_some();
        counters.icrc_solved += u64::from(is_solved);
        counters.drop_icrc += u64::from(!is_solved);
        is_solved
    }
}

/// BTH, reserved bytes of a CNP, ICRC: the longest response, of a switch or of a member.
pub const MAX_ANSWER_LEN: usize = Bth::LEN + CNP_RESERVED_LEN + ICRC_LEN;

/// A response to the sender, with IPv4 identification 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Addresses and ports.
    pub flow: FlowKey,
    bytes: [u8; MAX_ANSWER_LEN],
    len: usize,
}

impl Answer {
    /// An acknowledgement, positive or not.
    pub(crate) fn acknowledge(flow: FlowKey, qpn: Qpn, psn: Psn, aeth: Aeth) -> Answer {
        let mut answer = Answer::new(flow, Opcode::RC_ACK, qpn, psn, Aeth::LEN);
        if let Some(place) = answer.bytes[Bth::LEN..].first_chunk_mut() {
            aeth.emit(place);
        }
        answer.seal()
    }

    /// A congestion notification.
    pub(crate) fn cnp(flow: FlowKey, qpn: Qpn) -> Answer {
        let mut answer = Answer::new(flow, Opcode::CNP, qpn, Psn::new(0), CNP_RESERVED_LEN);
        let mut bth = Bth::new(Opcode::CNP, qpn, Psn::new(0));
        bth.becn = true;
        answer.put_bth(&bth);
        answer.seal()
    }

    fn new(flow: FlowKey, opcode: Opcode, qpn: Qpn, psn: Psn, behind: usize) -> Answer {
        let len = Bth::LEN + behind + ICRC_LEN;
        let mut answer = Answer { flow, bytes: [0; MAX_ANSWER_LEN], len };
        answer.put_bth(&Bth::new(opcode, qpn, psn));
        answer
    }

    fn put_bth(&mut self, bth: &Bth) {
        if let Some(place) = self.bytes.first_chunk_mut() {
            bth.emit(place);
        }
    }

    fn seal(mut self) -> Answer {
        let body = self.len - ICRC_LEN;
        let icrc = icrc_of(&self.flow, 0, &self.bytes[..body]);
        self.bytes[body..self.len].copy_from_slice(&icrc.to_le_bytes());
        self
    }

    /// BTH to ICRC.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// An acknowledgement without credits.
pub(crate) const ACK: Syndrome = Syndrome::Ack { credits: Syndrome::NO_CREDITS };
