//! The wire format of a stream: private data on connecting, and 32 bits with every write.

/// A piece of memory at the other end, as both ends write it into each other's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RemoteBuffer {
    pub(super) addr: u64,
    pub(super) key: u32,
    pub(super) len: u32,
}

impl RemoteBuffer {
    /// Bytes of an entry in memory.
    pub(super) const LEN: usize = 16;

    /// In the byte order of the reader's CPU.
    pub(super) fn to_memory(self, big_endian: bool) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        if big_endian {
            out[..8].copy_from_slice(&self.addr.to_be_bytes());
            out[8..12].copy_from_slice(&self.key.to_be_bytes());
            out[12..].copy_from_slice(&self.len.to_be_bytes());
        } else {
            out[..8].copy_from_slice(&self.addr.to_le_bytes());
            out[8..12].copy_from_slice(&self.key.to_le_bytes());
            out[12..].copy_from_slice(&self.len.to_le_bytes());
        }
        out
    }

    /// As this CPU wrote it, or a peer wrote it for this CPU.
    pub(super) fn from_memory(bytes: [u8; Self::LEN]) -> RemoteBuffer {
        let (addr, rest) = bytes.split_at(8);
        let (key, len) = rest.split_at(4);
        let word = |bytes: &[u8]| bytes.try_into().map_or(0, u32::from_ne_bytes);
        RemoteBuffer {
            addr: addr.try_into().map_or(0, u64::from_ne_bytes),
            key: word(key),
            len: word(len),
        }
    }
}

/// Whether this CPU is big-endian.
pub(super) const IS_BIG_ENDIAN: bool = cfg!(target_endian = "big");

/// The private data of REQ and REP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) big_endian: bool,
    /// Messages that may be outstanding at first.
    pub(super) credits: u16,
    /// Entries for mapped memory behind the target list.
    pub(super) maps: u16,
    /// Where to write which receive buffers are free: its length is in entries.
    pub(super) targets: RemoteBuffer,
    /// The first receive buffer.
    pub(super) buffer: RemoteBuffer,
}

const VERSION: u8 = 1;
const FLAG_BIG_ENDIAN: u8 = 1;
const FLAG_MAPS: u8 = 2;

impl Hello {
    pub(super) const LEN: usize = 40;

    pub(super) fn encode(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[0] = VERSION;
        out[1] = FLAG_MAPS | if self.big_endian { FLAG_BIG_ENDIAN } else { 0 };
        out[2..4].copy_from_slice(&self.credits.to_be_bytes());
        out[7] = to_scale(self.maps);
        out[8..24].copy_from_slice(&self.targets.to_memory(true));
        out[24..].copy_from_slice(&self.buffer.to_memory(true));
        out
    }

    /// `None` if it is of another protocol or version.
    pub(super) fn decode(bytes: &[u8]) -> Option<Hello> {
        let bytes: &[u8; Self::LEN] = bytes.first_chunk()?;
        let buffer = |at: usize| {
            let word = |at: usize| bytes[at..].first_chunk().map_or(0, |b| u32::from_be_bytes(*b));
            let addr = bytes[at..].first_chunk().map_or(0, |b| u64::from_be_bytes(*b));
            RemoteBuffer { addr, key: word(at + 8), len: word(at + 12) }
        };
        let has_maps = bytes[1] & FLAG_MAPS != 0;
        let hello = Hello {
            big_endian: bytes[1] & FLAG_BIG_ENDIAN != 0,
            credits: u16::from_be_bytes([bytes[2], bytes[3]]),
            maps: if has_maps { from_scale(bytes[7]) } else { 0 },
            targets: buffer(8),
            buffer: buffer(24),
        };
        (bytes[0] == VERSION && hello.targets.len > 0).then_some(hello)
    }
}

/// A number in eight bits: exact up to 128, in steps of 256 beyond.
pub(super) fn to_scale(value: u16) -> u8 {
    if value <= 128 { value as u8 } else { 128 | (value >> 8) as u8 }
}

pub(super) fn from_scale(value: u8) -> u16 {
    if value <= 128 { value.into() } else { u16::from(value & 127) << 8 }
}

/// The 32 bits that come with a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// So many bytes were written to the current receive buffer.
    Data(u32),
    /// Messages may be sent up to this number, and the target list may have changed.
    Credits(u16),
    /// An entry for mapped memory has changed.
    Map(u16),
    /// The other end is gone.
    Disconnect,
    /// A check whether this end is there.
    KeepAlive,
    /// The other end sends no more.
    Shutdown,
    /// A write to mapped memory. Never sent: it only appears in a completion.
    Direct(u32),
}

const PAYLOAD: u32 = (1 << 29) - 1;

impl Message {
    pub(super) fn encode(self) -> u32 {
        match self {
            Message::Data(len) => len & PAYLOAD,
            Message::Direct(len) => 2 << 29 | len & PAYLOAD,
            Message::Credits(upto) => 4 << 29 | u32::from(upto),
            Message::Map(index) => 6 << 29 | u32::from(index),
            Message::Disconnect => 7 << 29,
            Message::KeepAlive => 7 << 29 | 1,
            Message::Shutdown => 7 << 29 | 2,
        }
    }

    /// Nothing if it is of a kind that nobody knows.
    pub(super) fn decode(word: u32) -> Option<Message> {
        let payload = word & PAYLOAD;
        Some(match word >> 29 {
            0 => Message::Data(payload),
            2 => Message::Direct(payload),
            4 => Message::Credits(payload as u16),
            6 => Message::Map(payload as u16),
            7 => match payload {
                0 => Message::Disconnect,
                1 => Message::KeepAlive,
                2 => Message::Shutdown,
                _ => return None,
            },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_data_is_laid_out_as_other_rsockets_have_it() {
        let hello = Hello {
            big_endian: false,
            credits: 0x0180,
            maps: 3,
            targets: RemoteBuffer { addr: 0x1122_3344_5566_7788, key: 0x99aa_bbcc, len: 2 },
            buffer: RemoteBuffer { addr: 0x0102, key: 7, len: 65536 },
        };
        let bytes = hello.encode();
        assert_eq!(bytes[..8], [1, 2, 1, 0x80, 0, 0, 0, 3]);
        assert_eq!(bytes[8..16], 0x1122_3344_5566_7788_u64.to_be_bytes());
        assert_eq!(bytes[16..24], [0x99, 0xaa, 0xbb, 0xcc, 0, 0, 0, 2]);
        assert_eq!(bytes[36..], [0, 1, 0, 0]);
        assert_eq!(Hello::decode(&bytes), Some(hello));
        assert_eq!(Hello::decode(&bytes[..39]), None);
        let mut other = bytes;
        other[0] = 2;
        assert_eq!(Hello::decode(&other), None);
        other = bytes;
        other[23] = 0;
        assert_eq!(Hello::decode(&other), None, "a list without entries");
    }

    #[test]
    fn messages_round_trip_and_unknown_ones_are_nobody_s() {
        let all = [
            Message::Data(12345),
            Message::Direct(77),
            Message::Credits(65535),
            Message::Map(9),
            Message::Disconnect,
            Message::KeepAlive,
            Message::Shutdown,
        ];
        for message in all {
            assert_eq!(Message::decode(message.encode()), Some(message));
        }
        assert_eq!(Message::Credits(1).encode(), 0x8000_0001);
        assert_eq!(Message::Shutdown.encode(), 0xe000_0002);
        for word in [1 << 29, 3 << 29, 5 << 29, 0xe000_0003] {
            assert_eq!(Message::decode(word), None, "{word:x}");
        }
    }

    #[test]
    fn entries_suit_the_reader_s_cpu() {
        let entry = RemoteBuffer { addr: 1 << 40, key: 2, len: 3 };
        assert_eq!(RemoteBuffer::from_memory(entry.to_memory(IS_BIG_ENDIAN)), entry);
        assert_eq!(entry.to_memory(true)[15], 3);
        assert_eq!(entry.to_memory(false)[12], 3);
        for value in [0, 1, 128, 256, 512, 0x7f00] {
            assert_eq!(from_scale(to_scale(value)), value);
        }
    }
}
