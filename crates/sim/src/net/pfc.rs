//! Priority flow control (IEEE 802.1Qbb): a switch pauses its senders before its buffers are full.

use super::egress::CLASSES;
use super::network::PortId;

/// Buffer limits of a switch, per port and class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PfcConfig {
    /// The lossless classes, as bits. A packet's class is the upper three bits of its TOS or
    /// traffic class.
    pub classes: u8,
    /// Queued bytes of one port and class at which the switch pauses the sender.
    pub xoff_bytes: u64,
    /// Queued bytes to which they have to fall before the sender resumes.
    pub xon_bytes: u64,
    /// Bytes accepted beyond `xoff_bytes`: what arrives until a pause takes effect. Nothing is lost
    /// if this is at least what the cable carries in a round trip, and two packets.
    pub headroom_bytes: u64,
}

/// Statistics of priority flow control.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PfcStats {
    /// Pause frames sent that stop a sender.
    pub pauses: u64,
    /// Pause frames sent that let it go on.
    pub resumes: u64,
    /// Packets of lossless classes dropped because the headroom was used up.
    pub headroom_drops: u64,
    /// Most bytes of one port and class in a switch's queues.
    pub ingress_peak_bytes: u64,
}

impl PfcStats {
    /// Adds another switch's.
    pub fn merge(&mut self, other: &PfcStats) {
        self.pauses += other.pauses;
        self.resumes += other.resumes;
        self.headroom_drops += other.headroom_drops;
        self.ingress_peak_bytes = self.ingress_peak_bytes.max(other.ingress_peak_bytes);
    }
}

/// A signal to the other end of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signal {
    Pause,
    Resume,
}

/// A switch's queued bytes, by ingress port and class.
#[derive(Debug)]
pub(super) struct Pfc {
    config: PfcConfig,
    ingress: Vec<[Ingress; CLASSES]>,
    stats: PfcStats,
}

#[derive(Clone, Copy, Debug, Default)]
struct Ingress {
    bytes: u64,
    is_paused: bool,
}

impl Pfc {
    pub(super) fn new(config: PfcConfig, ports: usize) -> Pfc {
        let ingress = vec![[Ingress::default(); CLASSES]; ports];
        Pfc { config, ingress, stats: PfcStats::default() }
    }

    pub(super) fn stats(&self) -> &PfcStats {
        &self.stats
    }

    pub(super) fn is_lossless(&self, class: u8) -> bool {
        self.config.classes & (1 << class) != 0
    }

    /// Takes a packet of a lossless class; `Err` if not even the headroom has space.
    pub(super) fn take(
        &mut self,
        port: PortId,
        class: u8,
        bytes: u32,
    ) -> Result<Option<Signal>, NoHeadroom> {
        let ingress = &mut self.ingress[usize::from(port.0)][usize::from(class)];
        let after = ingress.bytes + u64::from(bytes);
        if after > self.config.xoff_bytes + self.config.headroom_bytes {
            self.stats.headroom_drops += 1;
            return Err(NoHeadroom);
        }
        ingress.bytes = after;
        self.stats.ingress_peak_bytes = self.stats.ingress_peak_bytes.max(after);
        if after > self.config.xoff_bytes && !ingress.is_paused {
            ingress.is_paused = true;
            self.stats.pauses += 1;
            return Ok(Some(Signal::Pause));
        }
        Ok(None)
    }

    /// A packet of a lossless class has left.
    pub(super) fn release(&mut self, port: PortId, class: u8, bytes: u32) -> Option<Signal> {
        let ingress = &mut self.ingress[usize::from(port.0)][usize::from(class)];
        ingress.bytes -= u64::from(bytes);
        if ingress.is_paused && ingress.bytes <= self.config.xon_bytes {
            ingress.is_paused = false;
            self.stats.resumes += 1;
            return Some(Signal::Resume);
        }
        None
    }
}

/// A packet of a lossless class does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoHeadroom;
