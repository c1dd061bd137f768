//! What the two ends tell each other beside the data.
//!
//! The sender greets and lists its tree; the receiver claims the blocks that it has; the sender
//! says which claims do not hold. Then blocks flow, each segment with its hashes. In the end the
//! receiver says what it has, and the sender whether that is what it sent.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::digest::BlockHash;
use super::filter::Filter;

/// Of this exchange; both ends must have the same.
pub(super) const VERSION: u32 = 7;
/// Claims in one message: well below what a setup message can carry.
pub(super) const MAX_CLAIMS: usize = 1024;
/// Bytes of entries in one message, about.
pub(super) const ENTRIES_BYTES: usize = 32 << 10;
/// Bytes of entries in the first message, at most: patterns need room there too.
pub(super) const FIRST_ENTRIES_BYTES: usize = 8 << 10;
/// Longest path that is sent or taken.
pub(super) const MAX_PATH: usize = 4096;
/// Bytes of one entry's extended attributes, names and values together.
pub(super) const MAX_XATTR_BYTES: usize = 16 << 10;
/// Entries in one message that says why they are left out, and bytes of each reason.
pub(super) const MAX_FAILURES: usize = 64;
pub(super) const MAX_REASON: usize = 512;

/// What the sender says first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) version: u32,
    pub(super) scheme: String,
    /// Path MTU in bytes that its NIC carries.
    pub(super) mtu: u32,
    /// Lanes of its NIC.
    pub(super) lanes: u16,
    /// No segment will be longer than this.
    pub(super) segment_bytes: u32,
    /// Say what would happen, and do nothing.
    pub(super) dry_run: bool,
    /// Remove what the sender has not, in directories that it sends.
    pub(super) delete: bool,
    /// What the sender leaves out, which is not removed either.
    pub(super) filter: Filter,
    /// There are other receivers. What any of them lacks goes to all.
    pub(super) group: bool,
    /// Its queue pair, made as if the receiver's NIC were like its own. To a group none is offered.
    pub(super) offer: Option<Offer>,
    /// The beginning of the tree.
    pub(super) entries: Vec<Entry>,
    /// The rest of it follows.
    pub(super) has_more_entries: bool,
}

/// A queue pair, for the end that connects to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Offer {
    pub(super) addr: IpAddr,
    /// A [`ReliableInfo`](bowline::ReliableInfo).
    pub(super) info: Vec<u8>,
}

/// What the receiver answers, if it does not refuse.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Welcome {
    pub(super) mtu: u32,
    /// Lanes that carry the blocks together: no more than either end has.
    pub(super) lanes: u16,
    /// Its queue pair, which is connected to the one that was offered. If there is none, that did
    /// not fit, and both ends make others and exchange them.
    pub(super) offer: Option<Offer>,
}

/// A file, a directory or a link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Entry {
    /// From the receiver's directory, components separated by slashes; any bytes, as file systems
    /// have them.
    pub(super) path: Vec<u8>,
    pub(super) kind: Kind,
    /// Permission bits.
    pub(super) mode: u32,
    /// Modification time since the epoch.
    pub(super) mtime: Timestamp,
    /// User and group, if the sender was asked to tell.
    pub(super) owner: Option<(u32, u32)>,
    /// Extended attributes of users, if the sender was asked to tell.
    pub(super) xattrs: Vec<Xattr>,
}

/// An extended attribute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Xattr {
    pub(super) name: Vec<u8>,
    pub(super) value: Vec<u8>,
}

/// A point in time as file systems keep it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Timestamp {
    pub(super) secs: i64,
    pub(super) nanos: u32,
}

/// What an entry is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Kind {
    Directory,
    /// A file of so many bytes. One that is sparse at the sender has holes where it is zero.
    File {
        bytes: u64,
        sparse: bool,
    },
    /// A symbolic link, and what it says.
    Symlink(Vec<u8>),
    /// Another name of an entry before it, by its index.
    HardLink(u32),
}

impl Entry {
    /// Bytes of a file; nothing else has any.
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

    /// For people.
    pub(super) fn name(&self) -> String {
        String::from_utf8_lossy(&self.path).into_owned()
    }
}

/// A block that the receiver has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Claim {
    /// Its number in the tree.
    pub(super) block: u32,
    pub(super) hash: BlockHash,
}

/// An entry that is left out, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LeftOut {
    pub(super) entry: u32,
    pub(super) why: String,
}

/// Whatever either end says after the greeting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Message {
    /// Nothing, but it is alive.
    Alive,
    /// Sender: a part of the tree.
    Entries(Vec<Entry>),
    /// Sender: that was all of it.
    EndOfEntries,
    /// Receiver: blocks it has.
    Claims(Vec<Claim>),
    /// Receiver: those were all. If there were none, nothing can be denied, and it gets ready.
    EndOfClaims,
    /// Sender: so many claimed blocks were compared. For who waits while large files are read.
    Checked(u32),
    /// Sender: claimed blocks that are not those of its files.
    Denied(Vec<u32>),
    /// Sender: those were all; both ends know now what is to be moved.
    EndOfDenied,
    /// Receiver: entries that it cannot take.
    LeftOut(Vec<LeftOut>),
    /// Receiver of a group: the sender knows now what it has, and what it leaves out.
    Standing,
    /// Sender to a group: blocks that some receiver lacks, from the first to one below the second
    /// of each pair.
    Moving(Vec<(u32, u32)>),
    /// Sender to a group: those were all.
    EndOfMoving,
    /// Receiver: it agrees, and has posted its receives: so many, as each lane counts them.
    Ready { posted: Vec<u64> },
    /// Sender: hashes of a segment's blocks, and those of the blocks that it could not read.
    Hashes { segment: u32, hashes: Vec<BlockHash>, unread: Vec<u32> },
    /// Receiver: a segment arrived other than it was sent.
    Again { segment: u32 },
    /// Receiver: paths that it has removed, or would remove.
    Removed(Vec<Vec<u8>>),
    /// Receiver: everything is in its place; the hash of all files' hashes.
    Complete { digest: BlockHash },
    /// Sender: so it is.
    Agreed,
    /// Either: it gives up, and why.
    Abort(String),
}
