//! Sends trains on from the memory that they were received into: a copy for a member changes only
//! the headers and the ICRCs in between, and no payload.

use bowline_io::{Onward, Round};
use bowline_multicast::{Edit, Switch};
use bowline_nic::{FrameMeta, IpId, Time};
use bowline_wire::FlowKey;

use super::outgoing::{Copier, Outgoing, Train, Trains, bits};

/// Several trains that are shorter than this on average are copied, which lets them leave as one:
/// the kernel takes about as long for another datagram as for so many bytes.
const SHORT_BYTES: usize = 16 << 10;

/// Memory that is reused for every round.
#[derive(Default)]
pub(super) struct Forwarding {
    /// The envelope of each datagram; `None` if it is unusable.
    heads: Vec<Option<Head>>,
    onward: Vec<Onward>,
}

#[derive(Clone, Copy)]
struct Head {
    flow: FlowKey,
    tos: u8,
    frame_len: usize,
    ip_id: IpId,
}

impl Head {
    fn train<'a>(&self, bytes: &'a [u8]) -> Train<'a> {
        let Head { flow, tos, frame_len, ip_id } = *self;
        Train { flow, tos, bytes, frame_len, ip_id }
    }
}

impl Trains for dyn Round + '_ {
    fn train(&mut self, number: usize, _: &Edit) -> &mut [u8] {
        self.bytes(number)
    }
}

impl Copier {
    /// Passes the datagrams of a port at UDP port `dst_port` to the engine, and sends the copies
    /// from there. What the port does not take is put into `out`, which must be empty.
    pub fn forward(
        &mut self,
        now: Time,
        engine: &mut Switch,
        dst_port: u16,
        round: &mut dyn Round,
        out: &mut Outgoing,
    ) {
        self.clear();
        let mut forwarding = std::mem::take(&mut self.forwarding);
        forwarding.heads.clear();
        for datagram in 0..round.count() {
            let head = round.envelope(datagram).map(|(meta, frame_len)| {
                let FrameMeta { src, dst, src_port, tos, ip_id, .. } = meta;
                Head { flow: FlowKey { src, dst, src_port, dst_port }, tos, frame_len, ip_id }
            });
            if let Some(head) = &head {
                let train = head.train(round.bytes(datagram));
                self.judge(now, engine, datagram, &train, out);
            }
            forwarding.heads.push(head);
        }
        if self.goes_in_place(&forwarding.heads, round) {
            self.send_in_place(engine, &mut forwarding, round, out);
        } else {
            self.copy_all(engine, &forwarding.heads, round, (0, u64::MAX), out);
        }
        self.forwarding = forwarding;
    }

    /// Whether all trains with frames to copy can leave as they came: all frames of a train go to
    /// the same places, and the trains are long enough.
    fn goes_in_place(&self, heads: &[Option<Head>], round: &mut dyn Round) -> bool {
        let (mut trains, mut bytes) = (0, 0);
        for train in self.trains() {
            let datagram = train[0].train;
            let Some(head) = heads[datagram] else { return false };
            let len = round.bytes(datagram).len();
            let frames = len.div_ceil(head.frame_len.max(1));
            if Copier::len_of(train) != frames || !self.has_one_aim(train) {
                return false;
            }
            trains += 1;
            bytes += len;
        }
        trains == 1 || bytes >= trains * SHORT_BYTES
    }

    /// Sends all trains to one branch after the other.
    fn send_in_place(
        &mut self,
        engine: &mut Switch,
        forwarding: &mut Forwarding,
        round: &mut dyn Round,
        out: &mut Outgoing,
    ) {
        let Forwarding { heads, onward } = forwarding;
        let branches = self.trains().fold(0, |all, train| all | self.aim_of(train).branch_set());
        for branch in bits(branches) {
            self.rewrite(engine, branch, round);
            self.address(engine, branch, heads, onward);
            let sent = round.send(onward);
            if let Some(next) = onward.get(sent) {
                self.restore(round);
                let rest = branches & (u64::MAX << branch) << 1;
                self.copy_all(engine, heads, round, (next.datagram, 1 << branch), out);
                self.copy_all(engine, heads, round, (0, rest), out);
                return;
            }
        }
    }

    /// Collects the trains that a branch gets, and where they go.
    fn address(
        &self,
        engine: &mut Switch,
        branch: usize,
        heads: &[Option<Head>],
        onward: &mut Vec<Onward>,
    ) {
        onward.clear();
        for train in self.trains() {
            let (datagram, aim) = (train[0].train, self.aim_of(train));
            if aim.branch_set() >> branch & 1 != 0
                && let Some(Edit { flow, .. }) = engine.edit(aim, branch)
                && let Some(Head { tos, frame_len, .. }) = heads[datagram]
            {
                let (dst, dst_port) = (flow.dst, flow.dst_port);
                onward.push(Onward { datagram, dst, dst_port, tos, frame_len });
            }
        }
    }

    /// Copies all trains from a datagram on to some of the branches.
    fn copy_all(
        &self,
        engine: &mut Switch,
        heads: &[Option<Head>],
        round: &mut dyn Round,
        (from, among): (usize, u64),
        out: &mut Outgoing,
    ) {
        for (datagram, head) in heads.iter().enumerate().skip(from) {
            if let Some(head) = head {
                let train = head.train(round.bytes(datagram));
                self.copy_out(engine, datagram, &train, among, out);
            }
        }
    }
}
