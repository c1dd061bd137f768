//! A switch in the place of the peer in Bowline's own set-up ([`Channel`](crate::Channel)).
//!
//! The sender believes to set up a connection to one program, and so does each member. Messages of
//! the sender's go to all members. Of members' messages the first of each goes to the sender when
//! all have sent theirs, and they must be equal: the sender hears one peer. Only queue pairs are
//! not passed on: those make a group. What a member says of itself alone ([`OWN_ANSWER`]) is not
//! passed on either: the sender hears that there is nothing to say.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc;

use super::{Connected, GroupMember, GroupOptions, GroupSwitch};
use crate::Error;
use crate::setup::SetupError;
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

/// What a set-up connection begins with if it is Bowline's.
pub const SETUP_MAGIC: [u8; 4] = MAGIC;

/// What a message begins with that says something of one program alone, and so may differ between
/// the members of a group. A sender whose peer is a group gets this and nothing behind it.
pub const OWN_ANSWER: [u8; 4] = *b"own:";

impl Frame {
    fn is_own(&self) -> bool {
        self.kind == Kind::Data && self.body().starts_with(&OWN_ANSWER)
    }
}

impl GroupSwitch {
    /// Serves a sender's set-up connection until one side hangs up: its queue pairs make groups of
    /// one of each member's. Then the groups end.
    ///
    /// A member that hangs up is left out from then on; what becomes of the group is its policy's
    /// business.
    ///
    /// # Errors
    /// What went wrong, except that somebody has hung up.
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
            // Whoever is left hears that it is over, and so does the other thread.
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
            // A member that has hung up is missed by the other thread.
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

    /// Makes a group of the queue pairs that all have offered, and tells everybody.
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
            // One that has hung up is missed when it is its turn to speak.
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
