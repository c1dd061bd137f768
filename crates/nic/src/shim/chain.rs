//! The chain of shims below a QP.

use bowline_wire::{Opcode, OpcodeSet, PacketView};

use super::{Shim, ShimOut, ShimPeer};
use crate::time::Time;
use crate::tx::{Flow, TxBatch};
use crate::types::TransportDescriptor;

/// The shims below a QP, innermost first.
pub(crate) struct Chain {
    shims: Vec<Box<dyn Shim>>,
    /// Opcodes that any of them claims.
    opcodes: OpcodeSet,
    /// Most packets that one of the transport's may become.
    max_out: usize,
}

impl Default for Chain {
    fn default() -> Self {
        Chain { shims: Vec::new(), opcodes: OpcodeSet::EMPTY, max_out: 1 }
    }
}

impl Chain {
    /// Adds a shim outside of all others.
    pub(crate) fn push(&mut self, shim: Box<dyn Shim>, transport: &TransportDescriptor) {
        self.opcodes = self.opcodes.union(shim.opcodes(transport));
        self.shims.push(shim);
        self.max_out = max_out(&self.shims);
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.shims.is_empty()
    }

    /// The shim, if there is exactly one.
    #[inline]
    pub(crate) fn alone(&mut self) -> Option<&mut (dyn Shim + 'static)> {
        match &mut self.shims[..] {
            [shim] => Some(&mut **shim),
            _ => None,
        }
    }

    /// Whether there are several.
    #[inline]
    pub(crate) fn has_several(&self) -> bool {
        self.shims.len() > 1
    }

    /// All of them, innermost first.
    #[inline]
    pub(crate) fn shims(&mut self) -> &mut [Box<dyn Shim>] {
        &mut self.shims
    }

    /// Whether one of them claims packets with this opcode.
    #[inline]
    pub(crate) fn claims(&self, opcode: Opcode) -> bool {
        self.opcodes.contains(opcode)
    }

    /// See [`Shim::ignores`].
    pub(crate) fn ignores(&mut self, packet: &PacketView<'_>) -> bool {
        self.shims.last_mut().is_some_and(|outermost| outermost.ignores(packet))
    }

    pub(crate) fn start(&mut self, now: Time, peer: &ShimPeer) {
        for shim in &mut self.shims {
            shim.started(now, peer);
        }
    }

    pub(crate) fn stop(&mut self) {
        for shim in &mut self.shims {
            shim.stopped();
        }
    }

    /// Most packets that one of the transport's may become.
    #[inline]
    pub(crate) fn max_out(&self) -> usize {
        self.max_out
    }

    /// See [`Shim::follows`]. Only a single shim has this fast path.
    #[inline]
    pub(crate) fn follows(&mut self, packet: &PacketView<'_>) -> bool {
        self.alone().is_some_and(|shim| shim.follows(packet))
    }

    /// Handles a packet that no shim has seen; a single shim has already said that it does not
    /// follow. Returns whether [`Chain::deadline`] may have changed.
    pub(crate) fn incoming(
        &mut self,
        now: Time,
        packet: &PacketView<'_>,
        up: &mut dyn FnMut(&PacketView<'_>),
    ) -> bool {
        match &mut self.shims[..] {
            [shim] => shim.incoming(now, packet, up),
            shims => climb(shims, now, packet, up),
        }
    }

    /// When the first of them wants [`Chain::handle_timeout`].
    #[inline]
    pub(crate) fn deadline(&self) -> Time {
        match &self.shims[..] {
            [] => Time::NEVER,
            [shim] => shim.poll_timeout().unwrap_or(Time::NEVER),
            shims => first_deadline(shims),
        }
    }

    /// Calls the shims whose timers are due. Returns packets and bytes sent.
    pub(crate) fn handle_timeout(
        &mut self,
        now: Time,
        (batch, flow): (&mut TxBatch, &mut Flow),
        data_ecn: u8,
        up: &mut dyn FnMut(&PacketView<'_>),
    ) -> (u32, u64) {
        let mut sum = (0, 0);
        for at in 0..self.shims.len() {
            let (inside, rest) = self.shims.split_at_mut(at);
            let Some((shim, outside)) = rest.split_first_mut() else { break };
            if shim.poll_timeout().is_none_or(|due| due > now) {
                continue;
            }
            let mut out = ShimOut::new(now, batch, flow, outside, data_ecn);
            if out.room() < shim.max_out() {
                // The next batch has space.
                continue;
            }
            shim.handle_timeout(now, &mut out, &mut |packet| {
                climb(inside, now, packet, up);
            });
            let (packets, bytes) = out.sent();
            sum = (sum.0 + packets, sum.1 + bytes);
        }
        sum
    }
}

#[cold]
fn first_deadline(shims: &[Box<dyn Shim>]) -> Time {
    shims.iter().filter_map(|shim| shim.poll_timeout()).min().unwrap_or(Time::NEVER)
}

/// Takes a packet from the outermost of some shims to the innermost, and on to `up`. Returns
/// whether a deadline may have changed.
fn climb(
    shims: &mut [Box<dyn Shim>],
    now: Time,
    packet: &PacketView<'_>,
    up: &mut dyn FnMut(&PacketView<'_>),
) -> bool {
    let Some((outer, inside)) = shims.split_last_mut() else {
        up(packet);
        return false;
    };
    if outer.follows(packet) {
        return climb(inside, now, packet, up);
    }
    let mut changed = false;
    let own = outer.incoming(now, packet, &mut |packet| {
        changed |= climb(inside, now, packet, up);
    });
    own || changed
}

/// Most packets that one packet may become on its way through some shims.
pub(super) fn max_out(shims: &[Box<dyn Shim>]) -> usize {
    shims.iter().map(|shim| shim.max_out().max(1)).product()
}
