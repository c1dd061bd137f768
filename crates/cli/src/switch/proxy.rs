//! Proxies a sender's set-up connection: to the sender, the switch is its only peer.
//!
//! Bowline's own set-up protocol is recognized by its first bytes, and handled by the library.
//!
//! perftest's two sides take turns: the client sends a message in one call, and the server answers
//! with one of the same length. The proxy forwards each message to all members, waits for all
//! answers, and returns the first one to the client. In messages that are keys, it replaces the
//! other side's QPN and address with the switch's.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use bowline::Qpn;
use bowline::multicast::{
    GroupMember, GroupOptions, GroupSwitch, SETUP_MAGIC, SwitchTree, TreeGroup,
};

use super::perftest::Key;
use super::through::Through;

/// The longest message. perftest's have about a hundred bytes.
const MAX_MESSAGE: usize = 4096;
/// How long a member may take to accept a connection. Answers may take longer, because a whole test
/// runs between the last keys and the end. Therefore only members that disconnect are given up.
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);

/// The set-up of one sender.
pub(super) struct Proxy {
    pub(super) switch: Arc<GroupSwitch>,
    pub(super) through: Arc<Through>,
    pub(super) members: Vec<SocketAddr>,
    pub(super) options: GroupOptions,
}

/// A member's set-up connection, until the member disconnects.
struct Member {
    stream: Option<TcpStream>,
}

impl Proxy {
    /// Serves a sender until it disconnects. Then its groups end.
    pub(super) fn serve(&self, client: TcpStream) -> Result<(), String> {
        let wrong = |e: io::Error| format!("set-up connection: {e}");
        client.set_nodelay(true).map_err(wrong)?;
        let is_bowline = is_bowline(&client).map_err(wrong)?;
        // What the managed switches have of this sender's groups ends with these connections.
        let tree = SwitchTree::new(&self.switch, self.through.connect()?, self.through.shape());
        let tree = tree.map_err(|error| error.to_string())?;
        if is_bowline {
            let members = self.connect_members()?.into_iter().filter_map(|m| m.stream).collect();
            let served = tree.relay(&client, members, &self.options);
            return served.map_err(|error| error.to_string());
        }
        self.relay(client, &tree)
    }

    fn relay(&self, mut client: TcpStream, tree: &SwitchTree<'_>) -> Result<(), String> {
        let at = client.local_addr().map_err(|e| format!("set-up connection: {e}"))?.ip();
        let mut members = self.connect_members()?;
        let mut groups = Groups { tree, list: Vec::new() };
        let mut message = vec![0; MAX_MESSAGE];
        loop {
            let len = match client.read(&mut message) {
                Ok(0) => return Ok(()),
                Ok(len) => len,
                // The connection of a killed sender is reset.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(()),
                Err(error) => return Err(format!("set-up connection: {error}")),
            };
            let answer = self.exchange(&message[..len], &mut members, &mut groups, at)?;
            if client.write_all(&answer).is_err() {
                return Ok(());
            }
        }
    }

    fn connect_members(&self) -> Result<Vec<Member>, String> {
        let connect = |addr: &SocketAddr| {
            let stream = TcpStream::connect_timeout(addr, CONNECT_PATIENCE)
                .map_err(|e| format!("cannot reach member {addr}: {e}"))?;
            stream.set_nodelay(true).map_err(|e| format!("member {addr}: {e}"))?;
            Ok(Member { stream: Some(stream) })
        };
        self.members.iter().map(connect).collect()
    }

    /// Forwards one message from the client to all members, and returns the answer for the client.
    fn exchange(
        &self,
        message: &[u8],
        members: &mut [Member],
        groups: &mut Groups<'_>,
        at: IpAddr,
    ) -> Result<Vec<u8>, String> {
        let Some(sender) = Key::parse(message) else {
            let answers = ask_all(members, |_| message.to_vec());
            return first_of(answers);
        };
        if let Some((_, group)) = groups.list.iter().find(|(qpn, _)| *qpn == sender.qpn) {
            // Keys are exchanged more than once.
            let answers = ask_all(members, |member| for_member(message, group, member));
            return first_of(answers).map(|answer| redirected(&answer, group.id(), at));
        }
        let all: Vec<usize> = (0..members.len()).collect();
        let mut group = groups.tree.reserve(&all).map_err(|e| e.to_string())?;
        let answers = ask_all(members, |member| for_member(message, &group, member));
        let mut offers = Vec::with_capacity(answers.len());
        for (member, answer) in answers.iter().enumerate() {
            let key = answer.as_deref().and_then(Key::parse);
            let key = key.ok_or_else(|| format!("member {} sent no key", self.members[member]))?;
            offers.push(GroupMember { endpoint: key.endpoint(), regions: vec![key.region()] });
        }
        let connected =
            group.offer(offers).and_then(|_| group.connect(&sender.endpoint(), &self.options));
        connected.map_err(|error| error.to_string())?;
        let answer = redirected(&first_of(answers)?, group.id(), at);
        groups.list.push((sender.qpn, group));
        Ok(answer)
    }
}

/// The groups of a sender, by its queue pairs.
struct Groups<'a> {
    tree: &'a SwitchTree<'a>,
    list: Vec<(Qpn, TreeGroup<'a>)>,
}

/// A sender's key as a member gets it: with the QPN and the address of the switch before it.
fn for_member(message: &[u8], group: &TreeGroup<'_>, member: usize) -> Vec<u8> {
    match group.peer_of(member) {
        Some((at, id)) => redirected(message, id, at),
        None => message.to_vec(),
    }
}

/// Whether a sender starts like Bowline's programs. Waits until it has sent enough to tell.
fn is_bowline(client: &TcpStream) -> io::Result<bool> {
    let mut begin = [0; SETUP_MAGIC.len()];
    let mut seen = 0;
    loop {
        let len = client.peek(&mut begin)?;
        // The sender has disconnected, or started differently.
        if len == 0 || begin[..len] != SETUP_MAGIC[..len] {
            return Ok(false);
        }
        if len == begin.len() {
            return Ok(true);
        }
        if len == seen {
            std::thread::sleep(Duration::from_millis(1));
        }
        seen = len;
    }
}

fn redirected(message: &[u8], qpn: Qpn, at: IpAddr) -> Vec<u8> {
    let mut message = message.to_vec();
    Key::redirect(&mut message, qpn, at);
    message
}

/// Sends each member its message, and waits for an answer of the same length from each. A member
/// that has disconnected has no answer.
fn ask_all(members: &mut [Member], message: impl Fn(usize) -> Vec<u8>) -> Vec<Option<Vec<u8>>> {
    for (index, member) in members.iter_mut().enumerate() {
        let message = message(index);
        if member.stream.as_mut().is_some_and(|stream| stream.write_all(&message).is_err()) {
            member.stream = None;
        }
    }
    let answers = members.iter_mut().enumerate().map(|(index, member)| {
        let mut answer = vec![0; message(index).len()];
        let stream = member.stream.as_mut()?;
        if stream.read_exact(&mut answer).is_err() {
            member.stream = None;
            return None;
        }
        Some(answer)
    });
    answers.collect()
}

/// The answer of the first member that is still connected.
fn first_of(answers: Vec<Option<Vec<u8>>>) -> Result<Vec<u8>, String> {
    answers.into_iter().flatten().next().ok_or_else(|| "all members have disconnected".to_owned())
}
