//! How ranks find each other.
//!
//! Each rank offers an end of a connection to each other rank. A [`Place`] delivers the offers: a
//! store, or rank 0 over TCP. What arrives is checked, and every wait is bounded.
//!
//! | launcher | rank and size |
//! |---|---|
//! | torchrun | `RANK`, `WORLD_SIZE` |
//! | Open MPI | `OMPI_COMM_WORLD_RANK`, `OMPI_COMM_WORLD_SIZE` |
//! | MPICH, Intel MPI | `PMI_RANK`, `PMI_SIZE` |
//! | Slurm | `SLURM_PROCID`, `SLURM_NTASKS` |
//!
//! The place is `BOWLINE_STORE`, a URL such as `file:///dir` or `redis://host`, with the job's name
//! in `BOWLINE_JOB` (`bowline` by default); or else rank 0 at `MASTER_ADDR`, TCP port
//! `BOWLINE_PORT` or `MASTER_PORT` plus 1. `BOWLINE_DEVICE` is the address of this rank's NIC, for
//! programs that do not choose it: [`device_addr`].

mod address;
mod env;
mod gather;
pub(super) mod message;
mod store;
mod tcp;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bowline_collective::{LinkInfo, Rank};
use bowline_io::Ticket;

pub use super::seal::GroupSeal;
use crate::{Channel, Error};
pub use address::device_addr;
pub use env::{from_env, rank_from_env};

/// Where the ranks of a group meet, and which rank this is.
pub struct Meeting {
    /// This rank.
    pub rank: Rank,
    /// How many there are.
    pub ranks: u32,
    /// Where they meet.
    pub place: Box<dyn Place>,
}

impl Meeting {
    /// Admits only ranks that a guard accepts, and seals their packets. For ranks that meet at rank
    /// 0.
    pub fn guarded(mut self, guard: Box<dyn Guard>) -> Result<Meeting, Error> {
        self.place.guard(guard)?;
        Ok(self)
    }
}

impl std::fmt::Debug for Meeting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Meeting(rank {} of {})", self.rank, self.ranks)
    }
}

/// Delivers offers to the ranks that they are for.
pub trait Place: Send {
    /// Sends this rank's offers to all others; returns theirs to this one, in rank order.
    fn exchange(&mut self, offers: &Offers, timeout: Duration) -> Result<Vec<PeerEnd>, Error>;

    /// Waits until every rank has called it once.
    fn sync(&mut self, timeout: Duration) -> Result<(), Error>;

    /// Admits only ranks that a guard accepts.
    fn guard(&mut self, guard: Box<dyn Guard>) -> Result<(), Error> {
        drop(guard);
        let why = "ranks cannot prove who they are there: meet at rank 0 instead, with MASTER_ADDR and MASTER_PORT";
        Err(Error::Invalid { what: "rendezvous", why: why.to_owned() })
    }

    /// Seals the packets between ranks that have met, if a guard has admitted them.
    fn seal(&self) -> Option<GroupSeal> {
        None
    }
}

/// Checks that visitors are ranks of the job. Both ends of a [`Channel`] authenticate each other in
/// it ([`Channel::authenticate`], [`Channel::accept_peer`]); then the packets of all connections
/// between ranks are sealed.
pub trait Guard: Send {
    /// Called at a rank that has connected to rank 0.
    fn visit(&self, channel: &mut Channel) -> Result<(), Error>;

    /// Called at rank 0, for an incoming connection.
    fn admit(&self, channel: &mut Channel) -> Result<(), Error>;
}

/// What a rank offers to all others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offers {
    /// The rank.
    pub rank: Rank,
    /// Its device's address.
    pub addr: IpAddr,
    /// Its device's UDP port.
    pub udp_port: u16,
    /// Where its rings are, if they are in memory that ranks of its host may map.
    pub rings: Option<Ticket>,
    /// Its end of the connection to each rank; none to itself.
    pub links: Vec<Option<LinkInfo>>,
}

/// The other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerEnd {
    /// The rank.
    pub rank: Rank,
    /// Its device's address.
    pub addr: IpAddr,
    /// Its device's UDP port.
    pub udp_port: u16,
    /// Where its rings are, if they are in memory that ranks of its host may map.
    pub rings: Option<Ticket>,
    /// Its end of the connection.
    pub link: LinkInfo,
}

/// Meets in a store.
pub fn in_store(url: &str, job: &str, rank: Rank, ranks: u32) -> Result<Meeting, Error> {
    check(rank, ranks)?;
    let place = Box::new(store::StorePlace::open(url, job, (rank, ranks))?);
    Ok(Meeting { rank, ranks, place })
}

/// Meets at rank 0, which listens at a TCP address.
pub fn at_address(addr: SocketAddr, rank: Rank, ranks: u32) -> Result<Meeting, Error> {
    check(rank, ranks)?;
    Ok(Meeting { rank, ranks, place: Box::new(tcp::TcpPlace::new(addr, (rank, ranks))) })
}

/// Meets by an existing all-gather: that of another library, or over a store that Bowline does not
/// know.
///
/// `gather` gets the bytes of this rank and returns those of all ranks, one after the other in rank
/// order. All have the same length. It is called twice, and must return within its timeout.
///
/// ```
/// use bowline::{Communicator, Device, CommOptions, rendezvous};
///
/// let pd = Device::open("127.9.3.7")?.alloc_pd()?;
/// // A group of one gathers what it gives.
/// let meeting = rendezvous::by_gather(0, 1, |bytes, _timeout| Ok(bytes.to_vec()))?;
/// assert_eq!(Communicator::meet(&pd, meeting, CommOptions::default())?.size(), 1);
/// # Ok::<(), bowline::Error>(())
/// ```
pub fn by_gather(
    rank: Rank,
    ranks: u32,
    gather: impl FnMut(&[u8], Duration) -> Result<Vec<u8>, Error> + Send + 'static,
) -> Result<Meeting, Error> {
    check(rank, ranks)?;
    let place = gather::GatherPlace { rank, ranks, gather: Box::new(gather) };
    Ok(Meeting { rank, ranks, place: Box::new(place) })
}

fn check(rank: Rank, ranks: u32) -> Result<(), Error> {
    if (1..=bowline_collective::MAX_RANKS).contains(&ranks) && rank < ranks {
        return Ok(());
    }
    let why = format!("rank {rank} of {ranks}: ranks count from 0, and there are at most 65536");
    Err(Error::Invalid { what: "rank", why })
}

/// The error for ranks that have not arrived.
fn missing(ranks: impl Iterator<Item = Rank>, timeout: Duration, hint: &str) -> Error {
    let ranks: Vec<_> = ranks.map(|rank| rank.to_string()).collect();
    let shown = ranks.iter().take(8).cloned().collect::<Vec<_>>().join(", ");
    let more =
        if ranks.len() > 8 { format!(" and {} more", ranks.len() - 8) } else { String::new() };
    let why = format!("rank {shown}{more} did not come within {timeout:?}{hint}");
    Error::Invalid { what: "rendezvous", why }
}
