//! A switch that takes the place of the peer in Bowline's own set-up ([`Channel`](crate::Channel)).
//!
//! Sender and members each see a connection to one program. The sender's messages go to all
//! members. Members' messages must be equal, and one goes to the sender once all have sent theirs:
//! the sender sees one peer. Only queue pairs are not passed on: those form a group. Nor is what a
//! member says of itself alone ([`OWN_ANSWER`]): the sender gets an empty answer.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc::{self, TrySendError};

use super::{GroupMember, GroupOptions, GroupSwitch, Policy, SwitchTree, TreeGroup};
use crate::Error;
use crate::setup::SetupError;
use crate::setup::joining::{Status, encode_joined};
use crate::setup::message::{self, HEADER_LEN, Kind, MAGIC};

/// How many queue pairs members may have offered before the sender names its own. Programs that
/// wait for each connection are one ahead.
const MAX_AHEAD: usize = 64;

/// A message with its header.
struct Frame {
    kind: Kind,
    bytes: Vec<u8>,
}

impl Frame {
    fn body(&self) -> &[u8] {
        &self.bytes[HEADER_LEN..]
    }
}

/// The first bytes of Bowline's set-up connections.
pub const SETUP_MAGIC: [u8; 4] = MAGIC;

/// Prefix of a message that concerns one program alone, and so may differ between the members of a
/// group. A sender whose peer is a group gets this prefix and nothing after it.
pub const OWN_ANSWER: [u8; 4] = *b"own:";

impl Frame {
    fn is_own(&self) -> bool {
        self.kind == Kind::Data && self.body().starts_with(&OWN_ANSWER)
    }
}

impl GroupSwitch {
    /// Serves a sender's set-up connection until one side hangs up: each of its queue pairs forms a
    /// group with one of each member's. Then the groups end.
    ///
    /// A member that hangs up later is excluded from then on; its policy decides what happens to
    /// the group.
    ///
    /// # Errors
    /// If something fails other than by a side hanging up.
    pub fn relay(
        &self,
        sender: &TcpStream,
        members: Vec<TcpStream>,
        options: &GroupOptions,
    ) -> Result<(), Error> {
        SwitchTree::alone(self, members.len()).relay(sender, members, options)
    }
}

impl SwitchTree<'_> {
    /// As [`GroupSwitch::relay`], with groups over all switches of the tree. There are as many
    /// members as the tree has places for, in their order.
    ///
    /// # Errors
    /// If something fails other than by a side hanging up.
    pub fn relay(
        &self,
        sender: &TcpStream,
        members: Vec<TcpStream>,
        options: &GroupOptions,
    ) -> Result<(), Error> {
        let (offers, offered) = mpsc::sync_channel(MAX_AHEAD);
        let to_members = members.iter().map(TcpStream::try_clone).collect::<io::Result<Vec<_>>>();
        let to_members = to_members.map_err(SetupError::Io)?;
        std::thread::scope(|scope| {
            let groups = Vec::new();
            let forward = Forward { sender, members: to_members, options, groups, offered };
            let forward = scope.spawn(|| forward.run());
            let expected = members.len();
            let members = members.into_iter().enumerate().collect();
            let is_forming = true;
            let mut back =
                Back { tree: self, sender, members, expected, is_forming, options, offers };
            let outcome = back.run();
            // The remaining ends learn that it is over, and so does the other thread.
            for stream in back.members.iter().map(|(_, member)| member).chain([sender]) {
                let _ = stream.shutdown(Shutdown::Both);
            }
            drop(back);
            let forwarded = forward.join().unwrap_or(Ok(()));
            outcome.and(forwarded)
        })
    }
}

/// The queue pairs of all members, whose IDs are reserved and whom the sender has been told of.
struct Offer<'a> {
    group: TreeGroup<'a>,
    /// The members that are still there, by their index among all of them.
    indices: Vec<usize>,
}

/// From the sender to the members, and everything that needs the sender's queue pair.
struct Forward<'a> {
    sender: &'a TcpStream,
    /// All of them, also those that have hung up.
    members: Vec<TcpStream>,
    options: &'a GroupOptions,
    /// They end with this.
    groups: Vec<TreeGroup<'a>>,
    offered: mpsc::Receiver<Offer<'a>>,
}

impl<'a> Forward<'a> {
    /// Runs until the sender hangs up.
    fn run(mut self) -> Result<(), Error> {
        let outcome = self.pass_on();
        for member in &self.members {
            let _ = member.shutdown(Shutdown::Both);
        }
        outcome
    }

    fn pass_on(&mut self) -> Result<(), Error> {
        while let Some(frame) = read_frame(&mut &*self.sender)? {
            if frame.kind == Kind::Endpoint {
                let Ok(offer) = self.offered.recv() else { return Ok(()) };
                self.connect(&frame, offer)?;
                continue;
            }
            // A switch makes the copies, so members cannot also get them by multicast.
            if frame.kind == Kind::Join {
                let no = encode_joined(Status::Refused, "a switch stands before its members");
                let _ = (&*self.sender).write_all(&message::frame(Kind::Joined, &no)?);
                continue;
            }
            // The other thread notices a member that has hung up.
            for mut member in &self.members {
                let _ = member.write_all(&frame.bytes);
            }
        }
        Ok(())
    }

    /// Creates a group of the sender's queue pair and the members', and tells the members. They are
    /// told here so that whatever the sender says next reaches them later.
    fn connect(&mut self, frame: &Frame, offer: Offer<'a>) -> Result<(), Error> {
        let Offer { mut group, indices } = offer;
        let (sender, regions) = message::decode_endpoint(frame.body())?;
        group.connect(&sender, self.options)?;
        for (index, endpoint) in indices.into_iter().zip(group.for_members()) {
            let body = message::encode_endpoint(&endpoint, &regions)?;
            // One that has hung up is noticed when its next message is due.
            let _ = (&self.members[index]).write_all(&message::frame(Kind::Endpoint, &body)?);
        }
        self.groups.push(group);
        Ok(())
    }
}

/// From the members to the sender.
struct Back<'a> {
    tree: &'a SwitchTree<'a>,
    sender: &'a TcpStream,
    /// With their index among all of them.
    members: Vec<(usize, TcpStream)>,
    /// How many there were.
    expected: usize,
    /// From the beginning until members are ready to receive, and again with each queue pair: all
    /// that the group is meant to have must be there. Later its policy decides.
    is_forming: bool,
    options: &'a GroupOptions,
    offers: mpsc::SyncSender<Offer<'a>>,
}

impl Back<'_> {
    fn run(&mut self) -> Result<(), Error> {
        loop {
            let mut frames = Vec::with_capacity(self.members.len());
            let mut left = Vec::with_capacity(self.members.len());
            for (index, mut member) in self.members.drain(..) {
                if let Some(frame) = read_frame(&mut member)? {
                    frames.push(frame);
                    left.push((index, member));
                }
            }
            self.members = left;
            let Some(first) = frames.first() else { return Ok(()) };
            if self.is_forming && frames.len() < least(self.options.policy, self.expected) {
                return Err(left_early(self.expected - frames.len()));
            }
            self.is_forming = match first.kind {
                Kind::Endpoint => true,
                Kind::Barrier => false,
                _ => self.is_forming,
            };
            if frames.iter().any(|frame| frame.kind != first.kind) {
                return Err(unlike());
            }
            let told = if first.kind == Kind::Endpoint {
                self.offer(&frames)?
            } else if frames.iter().all(Frame::is_own) {
                message::frame(Kind::Data, &OWN_ANSWER)?
            } else if frames.iter().any(|frame| frame.bytes != first.bytes) {
                return Err(unlike());
            } else {
                first.bytes.clone()
            };
            if self.sender.write_all(&told).is_err() {
                return Ok(());
            }
        }
    }

    /// What the sender is told of the queue pairs that all members have offered: one queue pair.
    ///
    /// The sender's own is not needed for that. If the sender is a switch, it waits for this one
    /// before it tells of its sender's.
    fn offer(&self, frames: &[Frame]) -> Result<Vec<u8>, Error> {
        let mut members = Vec::with_capacity(frames.len());
        for frame in frames {
            let (endpoint, regions) = message::decode_endpoint(frame.body())?;
            members.push(GroupMember { endpoint, regions });
        }
        let indices: Vec<usize> = self.members.iter().map(|(index, _)| *index).collect();
        let mut group = self.tree.reserve(&indices)?;
        let (endpoint, regions) = group.offer(members)?;
        let body = message::encode_endpoint(&endpoint, &regions)?;
        // If the other thread has ended, so has the sender, and the next write tells.
        if let Err(TrySendError::Full(_)) = self.offers.try_send(Offer { group, indices }) {
            return Err(Error::Invalid {
                what: "members",
                why: "they offer queue pairs that the sender does not connect to".to_owned(),
            });
        }
        Ok(message::frame(Kind::Endpoint, &body)?)
    }
}

/// How many of the members that a group is meant to have must be there when it is created.
fn least(policy: Policy, expected: usize) -> usize {
    match policy {
        Policy::Fail => expected,
        Policy::Evict { least, .. } => least,
        Policy::Quorum { k, .. } => k,
    }
}

fn left_early(gone: usize) -> Error {
    Error::Invalid {
        what: "members",
        why: format!("{gone} of them hung up before the group was created: see their errors"),
    }
}

fn unlike() -> Error {
    Error::Invalid {
        what: "members",
        why: "they answer the sender differently: run the same release, with the same options"
            .to_owned(),
    }
}

/// The next message; `None` if the other side has hung up.
fn read_frame(stream: &mut impl Read) -> Result<Option<Frame>, Error> {
    let mut bytes = vec![0; HEADER_LEN];
    if !read_whole(stream, &mut bytes)? {
        return Ok(None);
    }
    let header = bytes.first_chunk().expect("it was made for a header");
    let header = message::parse_header(header)?;
    let (kind, len) = (header.plain_kind()?, header.len);
    bytes.resize(HEADER_LEN + len, 0);
    let is_whole = read_whole(stream, &mut bytes[HEADER_LEN..])?;
    Ok(is_whole.then_some(Frame { kind, bytes }))
}

fn read_whole(stream: &mut impl Read, bytes: &mut [u8]) -> Result<bool, SetupError> {
    match stream.read_exact(bytes) {
        Ok(()) => Ok(true),
        Err(error) => match error.kind() {
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe => Ok(false),
            _ => Err(SetupError::Io(error)),
        },
    }
}
