//! Parameters of an SDR QP.

use bowline_nic::{Mtu, QpType, RateControl, Rnic};

use crate::error::SdrError;
use crate::imm::ImmLayout;

/// What carries the packets of messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Transport {
    /// Unreliable connections: a packet is a WRITE, which the NIC puts in place.
    #[default]
    Uc,
    /// Unreliable datagrams, for NICs without unreliable connections: a packet is a SEND, which the
    /// receiver copies into place.
    Ud,
}

impl Transport {
    pub(crate) fn qp_type(self) -> QpType {
        match self {
            Transport::Uc => QpType::Uc,
            Transport::Ud => QpType::Ud,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Transport::Uc => "UC",
            Transport::Ud => "UD",
        }
    }
}

/// Parameters of an SDR QP. Both ends must agree on all except rate and congestion control.
#[derive(Clone, Debug, PartialEq)]
pub struct SdrConfig {
    /// What carries the packets.
    pub transport: Transport,
    /// How the bits of the transport immediate are divided.
    pub layout: ImmLayout,
    /// Payload of a packet.
    pub mtu: Mtu,
    /// Bytes per bit of a bitmap: a power of two packets.
    pub chunk_bytes: u32,
    /// Longest message in bytes.
    pub max_message: u64,
    /// How many times all message IDs can be used before a packet from the first time could be
    /// mistaken for one from the last.
    pub generations: u32,
    /// QPs over which the packets of a message are spread.
    pub channels: u32,
    /// Bits per second at which packets leave, all channels together; `None` is as fast as the port
    /// accepts them.
    pub rate_bps: Option<u64>,
    /// Upper bound of the rate, however it is determined; `None` is no limit.
    pub max_rate_bps: Option<u64>,
    /// Rate control that determines the rate if `rate_bps` does not; `None` is none.
    pub congestion: Option<RateControl>,
    /// How long packets may linger in the network, in nanoseconds: after all generations, a
    /// message's place is not reused before that. `None` is zero over UC, where late packets have
    /// another address, and derived from round-trip variation over UD.
    pub lateness_ns: Option<u64>,
}

impl Default for SdrConfig {
    fn default() -> SdrConfig {
        SdrConfig {
            transport: Transport::Uc,
            layout: ImmLayout::STANDARD,
            mtu: Mtu::B4096,
            chunk_bytes: 64 << 10,
            max_message: 2 << 20,
            generations: 8,
            channels: 1,
            rate_bps: None,
            max_rate_bps: None,
            congestion: None,
            lateness_ns: None,
        }
    }
}

/// How many times all places are used before a slot number recurs: often enough that a replay
/// window has long moved past the last use, however few packets messages have.
const LAPS: u64 = 1 << 16;

impl SdrConfig {
    /// Checks that the values are consistent.
    pub fn check(&self) -> Result<(), SdrError> {
        let mtu = u64::from(self.mtu.bytes());
        let fail = |what, why: String| Err(SdrError::Config { what, why });
        let packets_a_chunk = u64::from(self.chunk_bytes) / mtu;
        if !u64::from(self.chunk_bytes).is_multiple_of(mtu) || !packets_a_chunk.is_power_of_two() {
            let why = format!("{} is not a power of two times the MTU, {mtu}", self.chunk_bytes);
            return fail("chunk size", why);
        }
        let max = u64::from(self.layout.max_packets()) * mtu;
        if self.max_message == 0 || self.max_message > max {
            let why = format!(
                "{} is not between 1 and {max}, what the immediate can number",
                self.max_message
            );
            return fail("longest message", why);
        }
        if !(1..=16).contains(&self.generations) {
            return fail("generations", format!("{} is not between 1 and 16", self.generations));
        }
        if !(1..=32).contains(&self.channels) {
            return fail("channels", format!("{} is not between 1 and 32", self.channels));
        }
        Ok(())
    }

    /// The same on this NIC: UD if the NIC does not support UC.
    pub fn on(&self, nic: &dyn Rnic) -> SdrConfig {
        let transport = if nic.has_indirect_keys() { self.transport } else { Transport::Ud };
        SdrConfig { transport, ..self.clone() }
    }

    /// Packets of a message of `len` bytes; an empty one has one.
    #[inline]
    pub(crate) fn packets(&self, len: u64) -> u32 {
        len.div_ceil(u64::from(self.mtu.bytes())).max(1) as u32
    }

    /// A chunk has two to this power packets.
    pub(crate) fn chunk_shift(&self) -> u32 {
        (self.chunk_bytes / self.mtu.bytes()).trailing_zeros()
    }

    /// A message spans two to this power bytes of the root key's address space.
    pub(crate) fn slot_shift(&self) -> u32 {
        self.max_message.next_power_of_two().trailing_zeros()
    }

    /// The slot of message `number` under its generation's root key. Messages that share a place
    /// have different slots, for longer than any packet can be delayed.
    #[inline]
    pub(crate) fn slot(&self, number: u64) -> u64 {
        let (_, id) = self.place(number);
        let lap = number / self.places() % LAPS;
        lap * u64::from(self.layout.ids()) + u64::from(id)
    }

    /// Bytes under each root key.
    pub(crate) fn root_len(&self) -> u64 {
        (LAPS * u64::from(self.layout.ids())) << self.slot_shift()
    }

    /// Messages until the same generation and ID recur.
    pub(crate) fn places(&self) -> u64 {
        u64::from(self.layout.ids()) * u64::from(self.generations)
    }

    /// The generation and ID of message `number`.
    #[inline]
    pub(crate) fn place(&self, number: u64) -> (u32, u32) {
        let ids = u64::from(self.layout.ids());
        ((number / ids % u64::from(self.generations)) as u32, (number % ids) as u32)
    }
}
