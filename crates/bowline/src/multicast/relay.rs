//! A switch that takes the place of the peer in Bowline's own set-up ([`Channel`](crate::Channel)).
//!
//! Sender and members each see a connection to one program. The sender's messages go to all
//! members. Members' messages must be equal, and one goes to the sender once all have sent theirs:
//! the sender sees one peer. Only queue pairs are not passed on: those form a group. Nor is what a
//! member says of itself alone ([`OWN_ANSWER`]): the sender gets an empty answer.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc;

use super::{Connected, GroupMember, GroupOptions, GroupSwitch};
use crate::Error;
use crate::setup::SetupError;
use crate::setup::joining::{Status, encode_joined};
use crate::setup::message::{self, HEADER_LEN, Kind, MAGIC};

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
    /// A member that hangs up is excluded from then on; its policy decides what happens to the
    /// group.
    ///
    /// # Errors
    /// If something fails other than by a side hanging up.
    pub fn relay(
        &self,
        sender: &TcpStream,
        members: Vec<TcpStream>,
        options: &GroupOptions,
    ) -> Result<(), Error> {
        let mut groups = Vec::new();
        let outcome = self.relay_both_ways(sender, members, options, &mut groups);
        for group in &groups {
            self.disconnect(group);
        }
        outcome
    }

    fn relay_both_ways(
        &self,
        sender: &TcpStream,
        members: Vec<TcpStream>,
        options: &GroupOptions,
        groups: &mut Vec<Connected>,
    ) -> Result<(), Error> {
        let (offers, offered) = mpsc::channel();
        let to_members = members.iter().map(TcpStream::try_clone).collect::<io::Result<Vec<_>>>();
        let to_members = to_members.map_err(SetupError::Io)?;
        std::thread::scope(|scope| {
            let forward = scope.spawn(|| forward(sender, to_members, &offers));
            let mut back = Back { switch: self, sender, members, options, groups, offered };
            let outcome = back.run();
            // The remaining ends learn that it is over, and so does the other thread.
            for stream in back.members.iter().chain([sender]) {
                let _ = stream.shutdown(Shutdown::Both);
            }
            let forwarded = forward.join().unwrap_or(Ok(()));
            outcome.and(forwarded)
        })
    }
}

/// Passes the sender's messages on to all members, until it hangs up. Its queue pairs go to the
/// other thread.
fn forward(
    mut sender: &TcpStream,
    members: Vec<TcpStream>,
    offers: &mpsc::Sender<Frame>,
) -> Result<(), Error> {
    let outcome = loop {
        match read_frame(&mut sender) {
            Ok(Some(frame)) if frame.kind == Kind::Endpoint => {
                if offers.send(frame).is_err() {
                    break Ok(());
                }
            }
            // A switch makes the copies, so members cannot also get them by multicast.
            Ok(Some(frame)) if frame.kind == Kind::Join => {
                let no = encode_joined(Status::Refused, "a switch stands before its members");
                let _ = sender.write_all(&message::frame(Kind::Joined, &no)?);
            }
            // The other thread notices a member that has hung up.
            Ok(Some(frame)) => members.iter().for_each(|mut member| {
                let _ = member.write_all(&frame.bytes);
            }),
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    for member in &members {
        let _ = member.shutdown(Shutdown::Both);
    }
    outcome
}

/// From the members to the sender.
struct Back<'a> {
    switch: &'a GroupSwitch,
    sender: &'a TcpStream,
    members: Vec<TcpStream>,
    options: &'a GroupOptions,
    groups: &'a mut Vec<Connected>,
    /// The sender's queue pairs, one by one.
    offered: mpsc::Receiver<Frame>,
}

impl Back<'_> {
    fn run(&mut self) -> Result<(), Error> {
        loop {
            let mut frames = Vec::with_capacity(self.members.len());
            let mut left = Vec::with_capacity(self.members.len());
            for mut member in self.members.drain(..) {
                if let Some(frame) = read_frame(&mut member)? {
                    frames.push(frame);
                    left.push(member);
                }
            }
            self.members = left;
            let Some(first) = frames.first() else { return Ok(()) };
            if frames.iter().any(|frame| frame.kind != first.kind) {
                return Err(unlike());
            }
            if first.kind == Kind::Endpoint {
                let Ok(sender) = self.offered.recv() else { return Ok(()) };
                self.connect(&sender, &frames)?;
            } else if frames.iter().all(Frame::is_own) {
                let nothing = message::frame(Kind::Data, &OWN_ANSWER)?;
                if self.sender.write_all(&nothing).is_err() {
                    return Ok(());
                }
            } else if frames.iter().any(|frame| frame.bytes != first.bytes) {
                return Err(unlike());
            } else if self.sender.write_all(&first.bytes).is_err() {
                return Ok(());
            }
        }
    }

    /// Creates a group from the queue pairs that all have offered, and tells all ends.
    fn connect(&mut self, sender: &Frame, frames: &[Frame]) -> Result<(), Error> {
        let (endpoint, regions) = message::decode_endpoint(sender.body())?;
        let mut offers = Vec::with_capacity(frames.len());
        for frame in frames {
            let (endpoint, regions) = message::decode_endpoint(frame.body())?;
            offers.push(GroupMember { endpoint, regions });
        }
        let connected = self.switch.connect(&endpoint, &offers, self.options)?;
        let told = |endpoint, regions: &[_]| {
            let body = message::encode_endpoint(endpoint, regions)?;
            message::frame(Kind::Endpoint, &body)
        };
        for (mut member, endpoint) in self.members.iter().zip(&connected.for_members) {
            // One that has hung up is noticed when its next message is due.
            let _ = member.write_all(&told(endpoint, &regions)?);
        }
        let answer = told(&connected.for_sender, &connected.regions)?;
        self.groups.push(connected);
        let _ = self.sender.write_all(&answer);
        Ok(())
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
