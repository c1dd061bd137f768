//! Queue pairs with sealed (encrypted and authenticated) packets.

use bowline_wire::{BthView, ICRC_LEN, PacketView, Qpn, SEALED_TAG_LEN, SealedHeader};

use super::Nic;
use crate::admit::Stranger;
use crate::error::ControlError;
use crate::frame::{FrameMeta, IpId};
use crate::seal::{PacketSeal, Unopened};
use crate::time::Time;
use crate::train::Train;
use crate::types::QpState;

/// Bytes that sealing adds to a frame.
const OVERHEAD: usize = SealedHeader::LEN + SEALED_TAG_LEN + ICRC_LEN;
/// Bytes opened before the transport sees the first of them, few enough to stay in the L1 cache.
const RUN_BYTES: usize = 32 << 10;
/// Frames for the same QP share this prefix: opcode to destination QPN.
const QPN_END: usize = 8;

/// Length of the packet in a sealed frame, with the ICRC field that packets have by their format.
fn opened_len(frame_len: usize) -> usize {
    frame_len.saturating_sub(OVERHEAD) + ICRC_LEN
}

impl Nic {
    /// Seals all packets of a QP's next connection, those of shims and CNPs included, and drops
    /// received packets that are not sealed. Call it before the QP is ready to receive; a reset
    /// ends it. A sealed datagram QP can talk to one peer.
    pub fn seal_qp(&mut self, qpn: Qpn, seal: PacketSeal) -> Result<(), ControlError> {
        let qp = self.qp_mut(qpn)?;
        if qpn == Qpn::GSI {
            let why = "queue pair 1 talks to everybody, who cannot share a key";
            return Err(ControlError::Invalid { what: "queue pair", why });
        }
        if !matches!(qp.core.state, QpState::Reset | QpState::Init) {
            let why = "a QP is sealed before it is ready to receive";
            return Err(ControlError::Invalid { what: "state", why });
        }
        qp.core.sealer = Some(seal.sealer);
        qp.opener = Some(Box::new(seal.opener));
        Ok(())
    }

    /// Whether a QP's packets are sealed.
    pub fn is_sealed(&self, qpn: Qpn) -> bool {
        self.qp(qpn).is_some_and(|qp| qp.opener.is_some())
    }

    /// Handles a frame for a sealed QP. The packet is opened into a buffer of the NIC's own, and
    /// reaches the code that writes memory only if its tag is right.
    #[inline(never)]
    pub(super) fn take_sealed(&mut self, now: Time, meta: &FrameMeta, slot: u32, frame: &[u8]) {
        let mut opened = core::mem::take(&mut self.shared.opened);
        let len = opened_len(frame.len());
        if opened.len() < len {
            opened.resize(len, 0);
        }
        if self.open(now, meta, slot, frame, &mut opened[..len]) {
            self.take_opened(now, meta, slot, &opened[..len], frame.len());
        }
        self.shared.opened = opened;
    }

    /// Handles sealed frames of one QP that arrived together, as many as stay in the cache until
    /// the transport reads them; returns how many. Their packets may form a train, which costs less
    /// than handling them one by one.
    #[inline(never)]
    pub(super) fn take_sealed_run(
        &mut self,
        now: Time,
        meta: &FrameMeta,
        bytes: &[u8],
        frame_len: usize,
    ) -> usize {
        let Some(bth) = bytes.first_chunk() else { return 0 };
        let Some(slot) = self.slot(BthView::of(bth).dest_qpn()) else { return 0 };
        if self.qps[slot as usize].as_ref().is_none_or(|qp| qp.opener.is_none()) {
            return 0;
        }
        let mut opened = core::mem::take(&mut self.shared.opened);
        let len = opened_len(frame_len);
        let most = (RUN_BYTES / len).max(1);
        if opened.len() < most * len {
            opened.resize(most * len, 0);
        }
        let (mut taken, mut end) = (0, 0);
        let frames = bytes.chunks_exact(frame_len).take(most);
        for frame in frames.take_while(|frame| frame.starts_with(&bth[..QPN_END])) {
            taken += 1;
            if self.open(now, meta, slot, frame, &mut opened[end..end + len]) {
                end += len;
            }
        }
        self.shared.counters.rx_packets += taken as u64;
        self.shared.counters.rx_bytes += (taken * frame_len) as u64;
        self.take_opened_run(now, meta, slot, &opened[..end], frame_len);
        self.shared.opened = opened;
        taken
    }

    /// Handles authenticated packets, from frames of `frame_len` bytes.
    fn take_opened_run(
        &mut self,
        now: Time,
        meta: &FrameMeta,
        slot: u32,
        mut bytes: &[u8],
        frame_len: usize,
    ) {
        // The tag covers more than an ICRC.
        let meta = FrameMeta { ip_id: IpId::Unsummed, ..*meta };
        let len = opened_len(frame_len);
        while let Some(first) = bytes.get(..len) {
            let mut taken = 0;
            if Train::len_of(bytes, len) > 0
                && let Ok(first) = PacketView::parse(first)
            {
                // It goes to the QP whose key opened it, whatever QPN it names itself.
                taken = self.take_train(now, &meta, slot, &first, bytes);
                self.count_train(slot, taken, frame_len);
            }
            if taken == 0 {
                self.take_opened(now, &meta, slot, first, frame_len);
                taken = 1;
            }
            bytes = bytes.get(taken * len..).unwrap_or_default();
        }
    }

    /// Opens a frame; on failure counts the reason.
    fn open(
        &mut self,
        now: Time,
        meta: &FrameMeta,
        slot: u32,
        frame: &[u8],
        opened: &mut [u8],
    ) -> bool {
        let counters = &mut self.shared.counters;
        let Some(qp) = self.qps[slot as usize].as_mut() else { return false };
        let Some(opener) = qp.opener.as_mut() else { return false };
        let core = &qp.core;
        // Cheaper than checking the tag, and needs no key.
        if core.descriptor.connected && core.attrs.av.is_none_or(|av| av.dst != meta.src) {
            counters.drop_wrong_peer += 1;
            return false;
        }
        let sealed = &frame[..frame.len().saturating_sub(ICRC_LEN)];
        let Some((packet, icrc)) = opened.split_last_chunk_mut::<ICRC_LEN>() else { return false };
        // The packet format has this field.
        *icrc = [0; ICRC_LEN];
        let drops = match opener.open(now, sealed, packet) {
            Ok(()) => return true,
            Err(Unopened::NotSealed) => &mut counters.drop_unsealed,
            Err(Unopened::Epoch) => &mut counters.drop_epoch,
            Err(Unopened::Replayed) => &mut counters.drop_replayed,
            Err(Unopened::Forged) => &mut counters.drop_forged,
        };
        *drops += 1;
        false
    }

    /// Handles an authenticated packet. Its ICRC is not checked: the tag covers more.
    fn take_opened(&mut self, now: Time, meta: &FrameMeta, slot: u32, bytes: &[u8], len: usize) {
        let counters = &mut self.shared.counters;
        let Ok(packet) = PacketView::parse(bytes) else {
            counters.drop_malformed += 1;
            return;
        };
        let Some(qp) = self.qps[slot as usize].as_mut() else { return };
        let drops = match qp.check_frame(meta, &packet, &self.config) {
            Ok(()) => return self.take_packet(now, meta, slot, &packet, len),
            Err(Stranger::State) => &mut counters.drop_state,
            Err(Stranger::Pkey) => &mut counters.drop_pkey,
            Err(Stranger::Peer) => &mut counters.drop_wrong_peer,
        };
        *drops += 1;
    }
}
