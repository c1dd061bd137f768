//! Parameters of a reliable QP, and what its ends exchange.

use std::sync::Arc;

use super::shape::Shape;
use super::stripe::Stripe;
use crate::config::{SdrConfig, Transport};
use crate::error::SdrError;
use crate::info::SdrInfo;
use crate::scheme::{self, Scheme};

/// Parameters of a reliable QP. Both ends must agree on all except rate and timeout.
#[derive(Clone, Debug)]
pub struct ReliableConfig {
    /// Those of the SDR QP; its longest message follows from `k` and the chunk size.
    pub sdr: SdrConfig,
    /// Longest message in bytes.
    pub max_write: u64,
    /// Data chunks of a group.
    pub k: u32,
    /// Parity chunks of a group; 0 if no scheme needs any.
    pub m: u32,
    /// The schemes that messages can choose from.
    pub schemes: Vec<Arc<dyn Scheme>>,
    /// A message fails if nothing is heard about it for this long.
    pub timeout_ns: u64,
    /// The QP's place among those that carry messages together.
    pub stripe: Stripe,
}

impl Default for ReliableConfig {
    fn default() -> ReliableConfig {
        ReliableConfig {
            sdr: SdrConfig::default(),
            max_write: 16 << 20,
            k: 32,
            m: 8,
            schemes: scheme::standard(),
            timeout_ns: 30_000_000_000,
            stripe: Stripe::WHOLE,
        }
    }
}

impl ReliableConfig {
    /// Index of the scheme of that name.
    pub fn scheme(&self, name: &str) -> Result<usize, SdrError> {
        let found = self.schemes.iter().position(|scheme| scheme.name() == name);
        found.ok_or_else(|| SdrError::NoSuchScheme(name.to_owned()))
    }

    /// Checks that the values are consistent.
    pub fn check(&self) -> Result<(), SdrError> {
        let fail = |what, why: String| Err(SdrError::Config { what, why });
        if self.k == 0 || self.k.saturating_add(self.m) > 256 {
            return fail("k and m", format!("{} and {} do not sum up to 1 to 256", self.k, self.m));
        }
        if self.max_write == 0 {
            return fail("longest message", "it must have at least one byte".to_owned());
        }
        let Stripe { index, of } = self.stripe;
        if index >= of || of > MAX_STRIPES {
            let why = format!("{index} of {of} is no place among 1 to {MAX_STRIPES}");
            return fail("stripe", why);
        }
        if !(1..=250).contains(&self.schemes.len()) {
            return fail("schemes", format!("{} is not between 1 and 250", self.schemes.len()));
        }
        self.sdr_config().check()?;
        // Computed in full width: what does not fit a u32 is refused before it is truncated.
        let groups = self.max_write.div_ceil(self.group_bytes()).div_ceil(self.stripe.of.into());
        let places = groups.saturating_mul(if self.m > 0 { 2 } else { 1 });
        let ids = u64::from(self.sdr.layout.ids());
        if places > ids {
            let why = format!(
                "{} bytes in groups of {} chunks of {} take {places} message IDs of {ids}: \
                 choose larger chunks or groups",
                self.max_write, self.k, self.sdr.chunk_bytes
            );
            return fail("longest message", why);
        }
        Ok(())
    }

    /// The SDR QP's parameters.
    pub(super) fn sdr_config(&self) -> SdrConfig {
        let chunks = u64::from(self.k.max(self.m));
        let groups = chunks * u64::from(self.sdr.chunk_bytes);
        let parity = u64::from(self.m) * u64::from(self.sdr.chunk_bytes);
        let max_message = groups.min(self.max_write.max(parity));
        SdrConfig { max_message: max_message.max(1), ..self.sdr.clone() }
    }

    /// How a message of `len` bytes is divided.
    pub fn shape(&self, len: u64) -> Shape {
        Shape {
            len,
            chunk_bytes: self.sdr.chunk_bytes,
            mtu: self.sdr.mtu.bytes(),
            k: self.k,
            m: self.m,
        }
    }

    /// Groups in the QP's share of the longest message.
    pub(super) fn groups(&self) -> u32 {
        self.shape(self.max_write).groups().div_ceil(self.stripe.of)
    }

    /// Bytes of a full group's data.
    pub(super) fn group_bytes(&self) -> u64 {
        u64::from(self.k) * u64::from(self.sdr.chunk_bytes)
    }

    /// SDR messages per message.
    pub(super) fn places(&self) -> u32 {
        self.groups() * if self.m > 0 { 2 } else { 1 }
    }

    /// Messages that can be outstanding at once.
    pub fn max_outstanding(&self) -> u32 {
        self.sdr.layout.ids() / self.places()
    }
}

/// QPs that can carry messages together.
const MAX_STRIPES: u32 = 64;

/// What one end of a reliable connection tells the other.
#[derive(Clone, Debug, PartialEq)]
pub struct ReliableInfo {
    /// One for each QP that carries messages together.
    sdr: Vec<SdrInfo>,
    max_write: u64,
    k: u32,
    m: u32,
    schemes: Vec<String>,
}

impl ReliableInfo {
    pub(super) fn new(config: &ReliableConfig, sdr: SdrInfo) -> ReliableInfo {
        ReliableInfo {
            sdr: vec![sdr],
            max_write: config.max_write,
            k: config.k,
            m: config.m,
            schemes: config.schemes.iter().map(|scheme| scheme.name()).collect(),
        }
    }

    /// The SDR connections underneath, in the order of their stripes.
    pub fn parts(&self) -> &[SdrInfo] {
        &self.sdr
    }

    /// What carries the packets.
    pub fn transport(&self) -> Option<Transport> {
        self.sdr.first().map(|part| part.config.transport)
    }

    /// Joins the information of QPs that carry messages together, in the order of their stripes.
    pub fn join(parts: impl IntoIterator<Item = ReliableInfo>) -> Option<ReliableInfo> {
        let mut parts = parts.into_iter();
        let mut whole = parts.next()?;
        whole.sdr.extend(parts.flat_map(|part| part.sdr));
        Some(whole)
    }

    /// The peer of a QP with these parameters, if the two match.
    pub(super) fn check_against(&self, ours: &ReliableConfig) -> Result<&SdrInfo, SdrError> {
        let numbers = [
            ("a lane count of", ours.stripe.of.into(), self.sdr.len() as u64),
            ("messages of at most", ours.max_write, self.max_write),
            ("groups of", ours.k.into(), self.k.into()),
            ("parity of", ours.m.into(), self.m.into()),
        ];
        let names = ours.schemes.iter().map(|s| s.name()).collect::<Vec<_>>().join(",");
        let strings =
            numbers.map(|(what, ours, theirs)| (what, ours.to_string(), theirs.to_string()));
        for (what, ours, theirs) in
            strings.into_iter().chain([("schemes", names, self.schemes.join(","))])
        {
            if ours != theirs {
                return Err(SdrError::Mismatch { what, ours, theirs });
            }
        }
        self.sdr.get(ours.stripe.index as usize).ok_or(SdrError::Info("it ends early"))
    }

    /// Encodes it for transfer to the peer by any means.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(self.max_write.to_be_bytes());
        let counts = [self.k, self.m, self.sdr.len() as u32];
        out.extend(counts.map(|count| (count as u16).to_be_bytes()).concat());
        for part in self.sdr.iter().map(SdrInfo::to_bytes) {
            out.extend((part.len() as u16).to_be_bytes());
            out.extend(part);
        }
        for name in &self.schemes {
            let name = &name.as_bytes()[..name.len().min(255)];
            out.push(name.len() as u8);
            out.extend(name);
        }
        out
    }

    /// Decodes what a peer has sent.
    pub fn from_bytes(bytes: &[u8]) -> Result<ReliableInfo, SdrError> {
        let early = || SdrError::Info("it ends early");
        let (max_write, rest) = bytes.split_first_chunk::<8>().ok_or_else(early)?;
        let (k, rest) = take_u16(rest).ok_or_else(early)?;
        let (m, rest) = take_u16(rest).ok_or_else(early)?;
        let (parts, mut rest) = take_u16(rest).ok_or_else(early)?;
        if !(1..=MAX_STRIPES).contains(&parts.into()) {
            return Err(SdrError::Info("its messages must be spread over 1 to 64 QPs"));
        }
        let mut sdr = Vec::new();
        for _ in 0..parts {
            let (len, tail) = take_u16(rest).ok_or_else(early)?;
            let (part, tail) = tail.split_at_checked(len.into()).ok_or_else(early)?;
            sdr.push(SdrInfo::from_bytes(part)?);
            rest = tail;
        }
        let mut schemes = Vec::new();
        while let Some((len, tail)) = rest.split_first() {
            let (name, tail) = tail.split_at_checked((*len).into()).ok_or_else(early)?;
            let name = str::from_utf8(name).map_err(|_| SdrError::Info("a scheme has no name"))?;
            schemes.push(name.to_owned());
            rest = tail;
        }
        let max_write = u64::from_be_bytes(*max_write);
        Ok(ReliableInfo { sdr, max_write, k: k.into(), m: m.into(), schemes })
    }
}

fn take_u16(bytes: &[u8]) -> Option<(u16, &[u8])> {
    let (number, rest) = bytes.split_first_chunk::<2>()?;
    Some((u16::from_be_bytes(*number), rest))
}
