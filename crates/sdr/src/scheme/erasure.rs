//! Erasure coding: parity accompanies the data, so that the receiver can reconstruct losses.
//!
//! The sender adds each data chunk to its group's parity when it queues it, and sends the parity
//! after the group's data. The receiver reconstructs what is missing as soon as a group has enough
//! chunks. If a group does not get there, the receiver sends a NACK after the fallback timeout, and
//! its missing data chunks are retransmitted, as in selective repeat.

use bowline_codes::{ChunkSet, Code, Family};
use bowline_nic::Time;
use bowline_plan::{Coding, Erasure};

use super::repeat::Repeater;
use super::{Model, Part, RecvCx, Scheme, SchemeReceiver, SchemeSender, SendCx};
use crate::reliable::Shape;

/// Groups whose chunks are queued ahead of what has left: coding and sending overlap.
const GROUPS_AHEAD: u32 = 2;
/// Data chunks that are added to parity at a time: parity is read and written once for all of them,
/// and packets leave in between.
const RUN: u32 = 8;
/// Bytes that name a group and its missing chunks in a NACK: at most 256 chunks a group.
const ENTRY_HEADER: usize = 4;
const MAX_NACK: usize = 900;
/// Shortest silence after which a group counts as failed.
const MIN_IDLE_NS: u64 = 4_000_000;

/// Erasure coding with the connection's k and m.
#[derive(Clone, Debug)]
pub struct ErasureCoding {
    family: Family,
    alpha: f64,
}

impl ErasureCoding {
    /// Reed–Solomon: recovers any m losses of a group.
    pub fn mds() -> ErasureCoding {
        ErasureCoding { family: Family::Mds, alpha: 2.0 }
    }

    /// XOR by modulo: recovers one loss in each of m interleaved parts of a group.
    pub fn xor() -> ErasureCoding {
        ErasureCoding { family: Family::Xor, alpha: 2.0 }
    }

    /// Sets α: the delay that queues on the path may add, as a fraction of the round trip.
    pub fn alpha(self, alpha: f64) -> ErasureCoding {
        ErasureCoding { alpha: alpha.max(0.0), ..self }
    }
}

impl Scheme for ErasureCoding {
    fn name(&self) -> String {
        match self.family {
            Family::Mds => "ec-mds",
            Family::Xor => "ec-xor",
        }
        .to_owned()
    }

    fn uses_parity(&self) -> bool {
        true
    }

    fn model(&self, shape: &Shape, rtt_ns: u64) -> Option<Model> {
        let rtt = rtt_ns as f64;
        let floor = MIN_IDLE_NS as f64;
        (shape.m() > 0).then_some(Model::Erasure(Erasure {
            coding: match self.family {
                Family::Mds => Coding::Mds,
                Family::Xor => Coding::Xor,
            },
            k: shape.k(),
            m: shape.m(),
            beta: (self.alpha / 2.0 * rtt).max(floor) / rtt,
            // After the fallback, what is missing is requested again each round trip.
            rto_rtts: 1.0 + (rtt / 8.0).max(floor) / rtt,
        }))
    }

    fn sender(&self, shape: &Shape) -> Box<dyn SchemeSender> {
        Box::new(Encoder {
            codes: Codes::new(self.family, shape),
            next: 0,
            encoded: 0,
            left: 0,
            repeater: Repeater::new(shape, self.alpha),
        })
    }

    fn receiver(&self, shape: &Shape) -> Box<dyn SchemeReceiver> {
        Box::new(Decoder {
            codes: Codes::new(self.family, shape),
            alpha: self.alpha,
            done: vec![false; shape.groups() as usize],
            open: shape.groups(),
            first_seen: None,
            last_progress: Time::ZERO,
            last_nack: None,
        })
    }
}

/// The codes of a message: one for its last group, which may be shorter.
struct Codes {
    full: Option<Code>,
    short: Option<Code>,
    /// The shorter group, if there is one.
    short_group: Option<u32>,
}

impl Codes {
    fn new(family: Family, shape: &Shape) -> Codes {
        // Without parity there is no code, and the scheme relies on its fallback.
        let code = |group: u32| {
            let k = shape.group(group).len();
            Code::new(family, k, shape.parity_chunks(group) as usize).ok()
        };
        let last = shape.groups() - 1;
        let short_group = (shape.group(last).len() < shape.group(0).len()).then_some(last);
        Codes { full: code(0), short: short_group.and_then(code), short_group }
    }

    fn of(&self, group: u32) -> Option<&Code> {
        if self.short_group == Some(group) { self.short.as_ref() } else { self.full.as_ref() }
    }
}

/// The sending end.
struct Encoder {
    codes: Codes,
    /// Next data chunk to be queued.
    next: u32,
    /// Next data chunk to be added to its group's parity.
    encoded: u32,
    /// Data chunks whose first transmission has left.
    left: u32,
    repeater: Repeater,
}

impl Encoder {
    /// Queues chunks while not too many wait, each group's parity after its data.
    fn pump(&mut self, cx: &mut SendCx<'_>) {
        let shape = *cx.shape();
        let ahead = GROUPS_AHEAD * shape.group(0).len() as u32;
        while self.next < shape.chunks() && self.next < self.left + ahead {
            let chunk = self.next;
            self.next += 1;
            self.repeater.queued(chunk);
            cx.send(Part::Data(chunk));
            let group = shape.group_of(chunk);
            let Some(code) = self.codes.of(group) else { continue };
            let ends = chunk + 1 == shape.group(group).end;
            if ends || self.next - self.encoded == RUN {
                cx.encode(code, self.encoded..self.next);
                self.encoded = self.next;
            }
            if ends {
                for index in 0..shape.parity_chunks(group) {
                    cx.send(Part::Parity { group, index });
                }
            }
        }
    }
}

impl SchemeSender for Encoder {
    fn start(&mut self, cx: &mut SendCx<'_>) {
        self.repeater.meet(cx);
        self.pump(cx);
    }

    fn injected(&mut self, cx: &mut SendCx<'_>, part: Part) {
        if let Part::Data(chunk) = part {
            self.left = self.left.max(chunk + 1);
            self.repeater.left(cx.now(), chunk);
            self.pump(cx);
        }
    }

    /// Handles a NACK: groups, and which of their data chunks are missing.
    fn control(&mut self, cx: &mut SendCx<'_>, message: &[u8]) {
        let shape = *cx.shape();
        let mut rest = message;
        while let Some((head, tail)) = rest.split_first_chunk::<ENTRY_HEADER>() {
            let group = u32::from(u16::from_be_bytes([head[0], head[1]]));
            let bytes = usize::from(u16::from_be_bytes([head[2], head[3]]));
            let Some((bitmap, tail)) = tail.split_at_checked(bytes) else { return };
            rest = tail;
            if group >= shape.groups() {
                return;
            }
            for (j, chunk) in shape.group(group).enumerate() {
                if bitmap.get(j / 8).is_some_and(|byte| byte >> (j % 8) & 1 != 0) {
                    self.repeater.repeat(cx, chunk);
                }
            }
        }
    }

    fn timeout(&mut self, _cx: &mut SendCx<'_>) {}
}

/// The receiving end.
struct Decoder {
    codes: Codes,
    alpha: f64,
    done: Vec<bool>,
    /// Groups that are not done.
    open: u32,
    /// When the first chunk was seen.
    first_seen: Option<Time>,
    last_progress: Time,
    last_nack: Option<Time>,
}

impl Decoder {
    fn look(&mut self, cx: &mut RecvCx<'_>) {
        let shape = *cx.shape();
        for group in 0..shape.groups() {
            if self.done[group as usize] {
                continue;
            }
            let present = cx.present(group);
            let data = shape.group(group).len();
            let complete = ChunkSet::first(data).difference(&present).is_empty();
            let code = self.codes.of(group);
            let recovered = !complete
                && code.is_some_and(|code| {
                    code.recoverable(&present) && cx.reconstruct(code, group, &present)
                });
            if complete || recovered {
                self.done[group as usize] = true;
                self.open -= 1;
            }
        }
    }

    /// FTO: the message's time on the wire, plus half of what queues may add to it; and not while
    /// chunks keep arriving.
    fn fallback_at(&self, cx: &RecvCx<'_>) -> Option<Time> {
        let rtt = cx.rtt_ns();
        let slack = ((rtt as f64 * self.alpha / 2.0) as u64).max(MIN_IDLE_NS);
        let idle = self.last_progress.plus_nanos((rtt / 4).max(MIN_IDLE_NS));
        let at = match self.last_nack {
            Some(at) => at.plus_nanos(rtt + (rtt / 8).max(MIN_IDLE_NS)),
            None => self.first_seen?.plus_nanos(cx.wire_ns() + slack),
        };
        Some(at.max(idle))
    }

    /// Sends a NACK for the failed groups, with what they miss, as many as fit.
    fn nack(&mut self, cx: &mut RecvCx<'_>) {
        let shape = *cx.shape();
        let mut bytes = Vec::with_capacity(MAX_NACK);
        for group in (0..shape.groups()).filter(|g| !self.done[*g as usize]) {
            let data = shape.group(group).len();
            let bitmap_bytes = data.div_ceil(8);
            if bytes.len() + ENTRY_HEADER + bitmap_bytes > MAX_NACK {
                break;
            }
            bytes.extend((group as u16).to_be_bytes());
            bytes.extend((bitmap_bytes as u16).to_be_bytes());
            let at = bytes.len();
            bytes.resize(at + bitmap_bytes, 0);
            for j in ChunkSet::first(data).difference(&cx.present(group)).iter() {
                bytes[at + j / 8] |= 1 << (j % 8);
            }
        }
        self.last_nack = Some(cx.now());
        cx.tell(&bytes);
    }
}

impl SchemeReceiver for Decoder {
    fn start(&mut self, cx: &mut RecvCx<'_>) {
        // A message of which nothing has arrived may still be waiting at the sender.
        if (0..cx.shape().groups()).any(|group| !cx.present(group).is_empty()) {
            self.progress(cx);
        }
    }

    fn progress(&mut self, cx: &mut RecvCx<'_>) {
        self.last_progress = cx.now();
        self.first_seen.get_or_insert(cx.now());
        self.look(cx);
        if self.open == 0 {
            cx.complete();
        } else {
            let at = self.fallback_at(cx);
            cx.set_timer(at);
        }
    }

    fn probe(&mut self, cx: &mut RecvCx<'_>) {
        // The sender has long been silent: everything that will come has come.
        self.first_seen.get_or_insert(cx.now());
        self.timeout(cx);
    }

    fn timeout(&mut self, cx: &mut RecvCx<'_>) {
        if self.fallback_at(cx).is_some_and(|at| at <= cx.now()) {
            self.nack(cx);
        }
        let at = self.fallback_at(cx);
        cx.set_timer(at);
    }
}
