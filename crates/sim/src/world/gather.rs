//! Frames that a port delivers together, like a socket that coalesces received packets.

use bowline_nic::{FrameMeta, Nic, Time};

use super::host::NicId;

/// The longest datagram: the maximum of an IPv4 length field, less the IP and UDP headers.
const MAX_DATAGRAM: usize = 65_507;

/// Consecutive frames for one engine.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    bytes: Vec<u8>,
    frames: usize,
    frame_len: usize,
    /// Their engine, and the metadata of the first.
    first: Option<(NicId, FrameMeta)>,
}

impl Gathered {
    /// Whether a frame can follow those that are there: its headers are the same, none is longer
    /// than the first, and only the last may be shorter.
    pub(super) fn takes(&self, nic: NicId, meta: &FrameMeta, frame: &[u8]) -> bool {
        let Some((first_nic, first)) = &self.first else { return false };
        let mut next = *first;
        next.ip_id.skip(self.frames);
        *first_nic == nic
            && next == *meta
            && self.bytes.len() == self.frames * self.frame_len
            && (1..=self.frame_len).contains(&frame.len())
            && self.bytes.len() + frame.len() <= MAX_DATAGRAM
    }

    /// Appends a frame, or starts with it.
    pub(super) fn push(&mut self, nic: NicId, meta: FrameMeta, frame: &[u8]) {
        if self.first.is_none() {
            self.first = Some((nic, meta));
            self.frame_len = frame.len();
        }
        self.bytes.extend_from_slice(frame);
        self.frames += 1;
    }

    /// The engine that the frames are for, if there are any.
    pub(super) fn nic(&self) -> Option<NicId> {
        self.first.map(|(nic, _)| nic)
    }

    /// Delivers the frames, all at once.
    pub(super) fn hand_over(&mut self, now: Time, nic: &mut Nic) {
        if let Some((_, meta)) = self.first.take() {
            nic.handle_frames(now, &meta, &self.bytes, self.frame_len);
            self.bytes.clear();
            self.frames = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use bowline_nic::IpId;

    use super::*;

    fn meta(ip_id: u16) -> FrameMeta {
        FrameMeta {
            src: [10, 0, 0, 1].into(),
            dst: [10, 0, 0, 2].into(),
            src_port: 4791,
            tos: 0,
            ttl: 64,
            ip_id: IpId::Guess(ip_id),
        }
    }

    #[test]
    fn only_frames_of_one_burst_are_gathered() {
        let nic = NicId(0);
        let mut gathered = Gathered::default();
        assert!(!gathered.takes(nic, &meta(0), &[0; 100]), "nothing is there to be behind of");
        gathered.push(nic, meta(0), &[0; 100]);
        gathered.push(nic, meta(1), &[0; 100]);

        assert!(gathered.takes(nic, &meta(2), &[0; 100]));
        assert!(gathered.takes(nic, &meta(2), &[0; 99]));
        assert!(!gathered.takes(NicId(1), &meta(2), &[0; 100]), "another engine's");
        assert!(!gathered.takes(nic, &meta(0), &[0; 100]), "of the next burst");
        assert!(!gathered.takes(nic, &meta(2), &[0; 101]), "longer than the first");
        assert!(!gathered.takes(nic, &FrameMeta { tos: 3, ..meta(2) }, &[0; 100]), "marked");

        gathered.push(nic, meta(2), &[0; 99]);
        assert!(!gathered.takes(nic, &meta(3), &[0; 99]), "a shorter one is the last");
    }

    #[test]
    fn a_datagram_is_no_longer_than_ip_can_say() {
        let mut gathered = Gathered::default();
        let frame = [0; 1000];
        let mut frames = 0;
        while frames == 0 || gathered.takes(NicId(0), &meta(frames), &frame) {
            gathered.push(NicId(0), meta(frames), &frame);
            frames += 1;
        }
        assert_eq!(frames, 65);
    }
}
