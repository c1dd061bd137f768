//! Receivers of a port's frames.

use bowline_nic::FrameMeta;

/// Receives frames. Any closure over a frame's envelope and bytes implements it.
pub trait FrameSink {
    /// Takes a frame, whose bytes are valid only during the call.
    fn frame(&mut self, meta: &FrameMeta, bytes: &[u8]);

    /// Takes frames that arrived as one datagram: `frame_len` bytes each but the last, which may be
    /// shorter. `meta` is the first one's.
    fn frames(&mut self, meta: &FrameMeta, bytes: &[u8], frame_len: usize) {
        let mut meta = *meta;
        for frame in bytes.chunks(frame_len) {
            self.frame(&meta, frame);
            meta.ip_id.skip(1);
        }
    }
}

impl<F: FnMut(&FrameMeta, &[u8])> FrameSink for F {
    fn frame(&mut self, meta: &FrameMeta, bytes: &[u8]) {
        self(meta, bytes);
    }
}
