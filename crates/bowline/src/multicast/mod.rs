//! Reliable multicast: one sender, one queue pair, many receivers (`docs/multicast.md`).
//!
//! A [`Group`] has one RC queue pair at its sender and one at each member. What the sender posts
//! once reaches every member, and a completion means that all of them have it. To members it is a
//! connection like any other.
//!
//! Something has to replicate the sender's packets, and to merge the members' responses. With
//! [`Group::connect`] the sender's own port does it, which needs nothing else. A [`GroupSwitch`],
//! in this process or, as `bowline switch`, anywhere near the members, offloads the sender's link.
//!
//! ```
//! use bowline::multicast::{Group, GroupOptions};
//! use bowline::{Access, Connector, Device, Listener, QpType};
//! use std::time::Duration;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut channels = Vec::new();
//! let mut members = Vec::new();
//! for addr in ["127.9.1.41", "127.9.1.42"] {
//!     let listener = Listener::bind((addr, 0))?;
//!     channels.push(Connector::new().connect(listener.local_addr()?)?);
//!     // A member is any program that connects a queue pair.
//!     members.push(std::thread::spawn(move || -> Result<_, bowline::Error> {
//!         let device = Device::open(addr)?;
//!         let (pd, cq) = (device.alloc_pd()?, device.create_cq(16)?);
//!         let mr = pd.register(64, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
//!         let qp = pd.qp(QpType::Rc, &cq).build()?;
//!         listener.accept()?.connect(&qp, &[mr.remote()])?;
//!         Ok((qp, mr))
//!     }));
//! }
//! let device = Device::open("127.9.1.40")?;
//! let (pd, cq) = (device.alloc_pd()?, device.create_cq(16)?);
//! let mr = pd.register(64, Access::LOCAL_WRITE)?;
//! let qp = pd.qp(QpType::Rc, &cq).build()?;
//! let group = Group::connect(&qp, &[], &mut channels, &GroupOptions::default())?;
//!
//! mr.write_at(0, b"hello");
//! qp.write(1, &mr, 0..5, group.regions()[0])?;
//! cq.next(Duration::from_secs(5))?;
//! for member in members {
//!     let (_qp, mr) = member.join().expect("a member that runs")?;
//!     assert_eq!(mr.to_vec(0, 5), b"hello");
//! }
//! # Ok(())
//! # }
//! ```

mod control;
mod copies;
mod driver;
mod group;
mod home;
mod port;
mod relay;
mod switch;
mod trunk;

use std::net::IpAddr;

use bowline_multicast::InvalidTable;
use bowline_nic::QpType;
use bowline_wire::Qpn;
use thiserror::Error;

pub use bowline_multicast::{
    Cause, Counters, Event, EvictError, GroupKey, GroupStatus, MemberStatus, Policy, Record,
    RootStatus,
};
#[doc(hidden)]
pub use control::play_message;
pub use control::{LEASE, RemoteError, RemoteStatus, RemoteSwitch, Shape, SwitchTree, TreeGroup};
pub(crate) use copies::{Copier, Copies};
pub use group::Group;
pub use port::GroupPort;
pub(crate) use port::PortGroup;
pub use relay::{OWN_ANSWER, SETUP_MAGIC};
pub use switch::{GroupSwitch, SwitchOptions};

use crate::ConnectOptions;
use crate::endpoint::{Endpoint, RemoteMr};

/// A member to be connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupMember {
    /// Its queue pair.
    pub endpoint: Endpoint,
    /// Memory that it offers. All members offer the same number of regions; the sender may write as
    /// much of each as the smallest member has.
    pub regions: Vec<RemoteMr>,
}

/// How a group behaves.
#[derive(Clone, Copy, Debug)]
pub struct GroupOptions {
    /// What happens to members that fail or fall behind.
    pub policy: Policy,
    /// Merge by the rules of the paper, for comparison.
    pub as_in_the_paper: bool,
    /// Whether plain IP multicast carries the packets of a [`Group::connect`].
    pub multicast: Multicast,
    /// How the sender's queue pair behaves.
    pub connection: ConnectOptions,
}

impl Default for GroupOptions {
    fn default() -> Self {
        GroupOptions {
            policy: Policy::Fail,
            as_in_the_paper: false,
            multicast: Multicast::Never,
            connection: ConnectOptions::default(),
        }
    }
}

/// Whether plain IP multicast carries the packets of a group: the sender sends each once, and
/// ordinary switches copy it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Multicast {
    /// The sender's port makes the copies.
    #[default]
    Never,
    /// If a probe reaches all members; otherwise the sender's port makes the copies.
    IfItWorks,
    /// Otherwise the group cannot be connected.
    Always,
}

/// What the ends of a group connect to.
#[derive(Clone, Debug)]
pub struct Connected {
    /// Which group it is.
    pub group: GroupKey,
    /// Whom the sender's queue pair connects to.
    pub for_sender: Endpoint,
    /// The members' memory, as the sender addresses it.
    pub regions: Vec<RemoteMr>,
    /// Whom each member's queue pair connects to.
    pub for_members: Vec<Endpoint>,
    /// The member ID of each member, used in events.
    pub ids: Vec<Qpn>,
}

/// The reserved IDs of a group.
#[derive(Clone, Debug)]
pub struct Reserved {
    /// The QPN that the sender's queue pair connects to.
    pub group: Qpn,
    /// The QPN that each member's queue pair connects to.
    pub ids: Vec<Qpn>,
}

/// Why a group cannot be connected.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ConnectGroupError {
    /// No members.
    #[error("a group needs at least one member")]
    NoMembers,
    /// A queue pair that is not reliable and connected.
    #[error("{0:?} queue pairs cannot be in a group: use RC")]
    NotRc(QpType),
    /// A device with a backup, which moves connections away from their port.
    #[error(
        "the device at {0} moves connections to a backup: open one without a backup for groups"
    )]
    Failover(IpAddr),
    /// A device on another UDP port than the switch's.
    #[error("the device at {addr} uses UDP port {port}: a group's devices use the switch's")]
    Port {
        /// Its address.
        addr: IpAddr,
        /// Its port.
        port: u16,
    },
    /// Members offer different numbers of regions.
    #[error("member {member} offers {offered} regions, the first one {expected}")]
    Regions {
        /// Which member.
        member: usize,
        /// What it offers.
        offered: usize,
        /// What the first one offers.
        expected: usize,
    },
    /// A set-up connection that seals queue pairs: each member would have another key.
    #[error(
        "groups cannot be sealed, because members have different keys: connect without sealing, \
         e.g. with --insecure"
    )]
    Sealed,
    /// IP multicast was asked for and does not work.
    #[error("IP multicast cannot carry the group: {0}")]
    Multicast(String),
    /// All IDs are in use.
    #[error("all group and member IDs of this switch are in use")]
    NoIds,
    /// The switch rejected the table.
    #[error(transparent)]
    Table(#[from] InvalidTable),
}
