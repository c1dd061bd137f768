//! The messages of the control connection next to the data.
//!
//! The sender greets the receiver and lists its tree. The receiver claims the blocks that it has,
//! and the sender denies the claims that do not hold. Then blocks flow, and the sender sends the
//! hashes of each segment. At the end the receiver reports what it has, and the sender confirms
//! that this is what it sent.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::digest::BlockHash;
use super::filter::Filter;

/// Version of this protocol; both ends must have the same.
pub(super) const VERSION: u32 = 7;
/// Claims in one message: well below the limit of a setup message.
pub(super) const MAX_CLAIMS: usize = 1024;
/// Approximate bytes of entries in one message.
pub(super) const ENTRIES_BYTES: usize = 32 << 10;
/// Maximum bytes of entries in the first message, which needs room for patterns too.
pub(super) const FIRST_ENTRIES_BYTES: usize = 8 << 10;
/// The longest path that is sent or accepted.
pub(super) const MAX_PATH: usize = 4096;
/// Maximum bytes of one entry's extended attributes, names and values together.
pub(super) const MAX_XATTR_BYTES: usize = 16 << 10;
/// Maximum number of entries in one [`Message::LeftOut`], and maximum bytes of each reason.
pub(super) const MAX_FAILURES: usize = 64;
pub(super) const MAX_REASON: usize = 512;

/// The sender's first message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) version: u32,
    pub(super) scheme: String,
    /// Path MTU of its NIC, in bytes.
    pub(super) mtu: u32,
    /// Lanes of its NIC.
    pub(super) lanes: u16,
    /// Maximum length of a segment.
    pub(super) segment_bytes: u32,
    /// Report what would happen, and change nothing.
    pub(super) dry_run: bool,
    /// Delete what the sender does not have, in directories that it sends.
    pub(super) delete: bool,
    /// What the sender excludes. This is not deleted either.
    pub(super) filter: Filter,
    /// There are other receivers. A block that any of them lacks goes to all.
    pub(super) group: bool,
    /// The sender's queue pair, created for a receiver with a NIC like its own. A group gets no
    /// offer.
    pub(super) offer: Option<Offer>,
    /// The first part of the tree.
    pub(super) entries: Vec<Entry>,
    /// Whether more of the tree follows.
    pub(super) has_more_entries: bool,
}

/// A queue pair to connect to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Offer {
    pub(super) addr: IpAddr,
    /// A [`ReliableInfo`](bowline::ReliableInfo).
    pub(super) info: Vec<u8>,
}

/// The receiver's response, if it does not refuse.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Welcome {
    pub(super) mtu: u32,
    /// Number of lanes that carry the blocks: no more than either end has.
    pub(super) lanes: u16,
    /// The receiver's queue pair, connected to the offered one. If there is none, the offer did not
    /// fit, and both ends create and exchange new ones.
    pub(super) offer: Option<Offer>,
}

/// A file, a directory or a link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Entry {
    /// Path relative to the receiver's directory, with components separated by slashes. It may
    /// contain any bytes that file systems allow.
    pub(super) path: Vec<u8>,
    pub(super) kind: Kind,
    /// Permission bits.
    pub(super) mode: u32,
    /// Modification time since the epoch.
    pub(super) mtime: Timestamp,
    /// User and group, if the sender was asked to send them.
    pub(super) owner: Option<(u32, u32)>,
    /// User extended attributes, if the sender was asked to send them.
    pub(super) xattrs: Vec<Xattr>,
}

/// An extended attribute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Xattr {
    pub(super) name: Vec<u8>,
    pub(super) value: Vec<u8>,
}

/// A point in time, as in file systems.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Timestamp {
    pub(super) secs: i64,
    pub(super) nanos: u32,
}

/// The kind of an entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Kind {
    Directory,
    /// A file of this length. If it is sparse at the sender, runs of zeros become holes.
    File {
        bytes: u64,
        sparse: bool,
    },
    /// A symbolic link, and its target.
    Symlink(Vec<u8>),
    /// Another name of an earlier entry, given by its index.
    HardLink(u32),
}

impl Entry {
    /// Bytes of a file; 0 for everything else.
    pub(super) fn bytes(&self) -> u64 {
        match self.kind {
            Kind::File { bytes, .. } => bytes,
            _ => 0,
        }
    }

    pub(super) fn is_file(&self) -> bool {
        matches!(self.kind, Kind::File { .. })
    }

    pub(super) fn is_dir(&self) -> bool {
        matches!(self.kind, Kind::Directory)
    }

    /// The name as text.
    pub(super) fn name(&self) -> String {
        String::from_utf8_lossy(&self.path).into_owned()
    }
}

/// A block that the receiver has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Claim {
    /// Number of the block in the tree.
    pub(super) block: u32,
    pub(super) hash: BlockHash,
}

/// An entry that is left out, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LeftOut {
    pub(super) entry: u32,
    pub(super) why: String,
}

/// The messages of either end after the greeting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Message {
    /// Keep-alive.
    Alive,
    /// Sender: a part of the tree.
    Entries(Vec<Entry>),
    /// Sender: end of the tree.
    EndOfEntries,
    /// Receiver: blocks that it has.
    Claims(Vec<Claim>),
    /// Receiver: end of its claims. If there were none, nothing can be denied, and the receiver
    /// continues.
    EndOfClaims,
    /// Sender: the number of claimed blocks compared so far. It shows waiting receivers that there
    /// is progress while large files are read.
    Checked(u32),
    /// Sender: claimed blocks that differ from its files.
    Denied(Vec<u32>),
    /// Sender: end of its denials. Both ends now know what to move.
    EndOfDenied,
    /// Receiver: entries that it cannot take.
    LeftOut(Vec<LeftOut>),
    /// Receiver of a group: it has reported everything that it has and that it leaves out.
    Standing,
    /// Sender to a group: blocks that some receiver lacks, as pairs of a first block and an
    /// exclusive end.
    Moving(Vec<(u32, u32)>),
    /// Sender to a group: end of these blocks.
    EndOfMoving,
    /// Receiver: it agrees, and has posted this many receives on each lane.
    Ready { posted: Vec<u64> },
    /// Sender: hashes of a segment's blocks, and the blocks that it could not read.
    Hashes { segment: u32, hashes: Vec<BlockHash>, unread: Vec<u32> },
    /// Receiver: a segment arrived damaged.
    Again { segment: u32 },
    /// Receiver: paths that it has deleted, or would delete.
    Removed(Vec<Vec<u8>>),
    /// Receiver: all files are complete; the hash of all files' hashes.
    Complete { digest: BlockHash },
    /// Sender: confirms the digest.
    Agreed,
    /// Either end: it gives up, with the reason.
    Abort(String),
}
