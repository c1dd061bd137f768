//! One sender, many receivers: a block that any of them lacks goes to all of them, once, over a
//! group.
//!
//! Each receiver has a thread for its control connection ([`attend`]). The main thread decides what
//! is moved, and when a receiver is finished. If a receiver fails, it is named in the report, and
//! the others continue.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use bowline::{Channel, ReliableEvent, WriteId, WriteOptions};

use super::Failure;
use super::args::SendArgs;
use super::control::{Control, Event, Handled, Interrupted, LOOK_EVERY};
use super::digest::BlockHash;
use super::failures::Failures;
use super::filter::Filter;
use super::message::{MAX_CLAIMS, Message, Welcome};
use super::meter::Meter;
use super::report::{LeftOutReport, ReceiverReport, Report};
use super::scan::Source;
use super::sender::{CHECKED_EVERY, Job, Reader, check_claims, hello, list};
use super::session::{Agreed, Nic, SLOTS, Session, workers};
use super::tree::Segments;
use crate::interrupt;
use crate::nic_name::NicName;

/// Maximum number of segments that receivers may request again. The other receivers do not need
/// these segments, but have enough posted receives to take this many.
const MAX_AGAIN: u64 = SLOTS as u64 - 1;

/// A report from one receiver's thread.
enum Word {
    /// The hashes of the blocks that it has.
    Standing(Vec<Option<BlockHash>>),
    /// A segment arrived damaged.
    Again(u32),
    /// It has received everything.
    Complete { digest: BlockHash, removed: Vec<String> },
    /// It has disconnected or given up.
    Failed(String),
}

type News = Event<(usize, Word)>;

/// A receiver, as the main thread sees it.
struct Member {
    host: String,
    /// Entries that it cannot take.
    failures: Arc<Failures>,
    /// Ends the conversation; with the reason, if the receiver failed.
    verdict: Option<Sender<Result<(), String>>>,
    /// The receiver's result, once it is known.
    outcome: Option<Result<Vec<String>, String>>,
    /// The blocks that it has, once it has reported them.
    standing: Option<Vec<Option<BlockHash>>>,
}

/// Senders to all remaining receivers.
type Outgoing = Mutex<Vec<Option<SyncSender<Message>>>>;

/// Sends a tree to the receivers on these channels.
pub(super) fn send(
    args: &SendArgs,
    source: &Source,
    filter: &Filter,
    (hosts, mut channels): (Vec<String>, Vec<Channel>),
) -> Result<Report, Failure> {
    if channels.iter().any(Channel::is_sealing) {
        let why = "packets to many receivers cannot be encrypted: give --insecure to all ends, or \
                   send to one after the other";
        return Err(why.into());
    }
    let session = connect(args, source, filter, &hosts, &mut channels)?;
    let mut controls = Vec::with_capacity(channels.len());
    for channel in channels {
        // No timeout: the receiver may spend hours reading what it already has.
        controls.push(Control::start(channel, "receiver", None)?);
    }
    let outgoing = controls.iter().map(|control| Some(control.sender())).collect();
    let outgoing: Arc<Outgoing> = Arc::new(Mutex::new(outgoing));
    let (news, events) = mpsc::channel();
    thread::scope(|scope| {
        let mut members = Vec::with_capacity(controls.len());
        for (index, (control, host)) in controls.into_iter().zip(hosts).enumerate() {
            let (verdict, heard) = mpsc::channel();
            let failures = Arc::new(Failures::default());
            let theirs = Arc::clone(&failures);
            let news = news.clone();
            scope.spawn(move || {
                // The main thread may have given up.
                let say = |word| drop(news.send(Event::Peer((index, word))));
                let outcome = attend(source, &control, &theirs, say, &heard);
                if let Err(e) = &outcome {
                    say(Word::Failed(e.to_string()));
                }
                control.close(&outcome);
            });
            let (verdict, outcome, standing) = (Some(verdict), None, None);
            members.push(Member { host, failures, verdict, outcome, standing });
        }
        let mut fleet = Fleet { args, source, session: &session, members, events, news, outgoing };
        let outcome = fleet.converse();
        fleet.end(&outcome);
        outcome
    })
}

/// Greets all receivers and connects the group.
fn connect(
    args: &SendArgs,
    source: &Source,
    filter: &Filter,
    hosts: &[String],
    channels: &mut [Channel],
) -> Result<Session, Failure> {
    let name = match &args.device {
        Some(name) => name.clone(),
        None => NicName::Addr(channels[0].local_addr()?.ip().to_canonical()),
    };
    let nic = Nic::open(&name, &args.opening, args.cc.as_ref())?;
    // A group's packets use one lane.
    let mut hello = hello(args, source, filter, &nic);
    (hello.lanes, hello.group) = (1, true);
    let greeting = postcard::to_stdvec(&hello)?;
    channels.iter_mut().try_for_each(|channel| channel.send(&greeting))?;
    let mut mtu_bytes = hello.mtu;
    for (channel, host) in channels.iter_mut().zip(hosts) {
        let welcome: Result<Welcome, String> = postcard::from_bytes(&channel.recv()?)?;
        let welcome = welcome.map_err(|why| format!("{host} refused: {why}"))?;
        mtu_bytes = mtu_bytes.min(welcome.mtu);
    }
    let segment_bytes = hello.segment_bytes;
    let agreed = Agreed { mtu_bytes, lanes: 1, scheme: &args.scheme, segment_bytes };
    nic.connect_group(channels, agreed, args.speed())
}

/// The conversation with one receiver, from the list to the end.
fn attend(
    source: &Source,
    control: &Control,
    failures: &Failures,
    say: impl Fn(Word) + Copy,
    verdict: &Receiver<Result<(), String>>,
) -> Result<(), Failure> {
    list(source, 0, control);
    let entries = source.tree.entries().len();
    let mut hashes = vec![None; source.tree.blocks() as usize];
    check_claims(source, control, &mut hashes)?;
    let mut standing = Some(hashes);
    let mut removed = Vec::new();
    loop {
        match control.hear()? {
            Message::LeftOut(left_out) => {
                failures.hear(left_out, entries).ok_or_else(|| control.unexpected())?;
            }
            Message::Standing => {
                let hashes = standing.take().ok_or_else(|| control.unexpected())?;
                say(Word::Standing(hashes));
            }
            Message::Ready { .. } => {}
            Message::Again { segment } => say(Word::Again(segment)),
            Message::Removed(paths) => {
                let paths = paths.iter().map(|path| String::from_utf8_lossy(path).into_owned());
                removed.extend(paths);
            }
            Message::Complete { digest } => {
                say(Word::Complete { digest, removed });
                break;
            }
            _ => return Err(control.unexpected()),
        }
    }
    match verdict.recv() {
        Ok(Ok(())) => {
            control.send(Message::Agreed);
            Ok(())
        }
        Ok(Err(why)) => Err(why.into()),
        Err(_) => Err("the sender ends".into()),
    }
}

/// All receivers, as the main thread sees them.
struct Fleet<'a> {
    args: &'a SendArgs,
    source: &'a Source,
    session: &'a Session,
    members: Vec<Member>,
    events: Receiver<News>,
    news: Sender<News>,
    outgoing: Arc<Outgoing>,
}

impl Fleet<'_> {
    fn converse(&mut self) -> Result<Report, Failure> {
        self.hear_standings()?;
        let tree = &self.source.tree;
        let segments = Segments::new(tree, |block| !self.is_moved(block));
        self.announce(tree.blocks());
        let mut hashes: Vec<Option<BlockHash>> =
            (0..tree.blocks()).map(|block| self.known_hash(block)).collect();
        let failures = Failures::default();
        let started = Instant::now();
        let again = Outbound::new(self, &segments, &failures)?.run(&mut hashes)?;
        let hashes: Vec<BlockHash> = hashes.into_iter().map(Option::unwrap_or_default).collect();
        let stats = self.session.qp.stats()?;
        let mut report = Report::new(tree, &hashes, &stats, &segments, &failures);
        let unread = self.source.unread.iter().cloned();
        report.left_out.extend(unread.map(|(path, why)| LeftOutReport { path, why }));
        report.scheme.clone_from(&self.args.scheme);
        report.dry_run = self.args.dry_run;
        report.segments_again = again;
        report.set_time(started.elapsed());
        report.receivers = self.members.iter().map(|member| self.report(member)).collect();
        Ok(report)
    }

    /// Waits until all receivers have reported what they have. Those that have done so are told
    /// that the sender waits for others.
    fn hear_standings(&mut self) -> Result<(), Failure> {
        let (mut told, mut times) = (Instant::now(), 0);
        while self.members.iter().any(|m| m.outcome.is_none() && m.standing.is_none()) {
            match self.poll()? {
                Some(Event::Peer((index, Word::Standing(hashes)))) => {
                    self.members[index].standing = Some(hashes);
                }
                Some(Event::Peer((index, Word::Failed(why)))) => self.lose(index, why)?,
                _ => {}
            }
            if told.elapsed() > CHECKED_EVERY {
                (told, times) = (Instant::now(), times + 1);
                let outgoing = lock(&self.outgoing);
                let waiting = outgoing.iter().zip(&self.members);
                for (to, _) in waiting.filter(|(_, member)| member.standing.is_some()) {
                    // If this message is dropped, the next one will do.
                    to.iter().for_each(|to| drop(to.try_send(Message::Checked(times))));
                }
            }
        }
        Ok(())
    }

    fn report(&self, member: &Member) -> ReceiverReport {
        let entries = self.source.tree.entries();
        let left_out = member.failures.list().into_iter();
        let left_out =
            left_out.map(|(index, why)| LeftOutReport { path: entries[index].name(), why });
        let (removed, error) = match member.outcome.clone() {
            Some(Ok(removed)) => (removed, None),
            Some(Err(why)) => (Vec::new(), Some(why)),
            None => (Vec::new(), Some("it stopped responding".to_owned())),
        };
        ReceiverReport { host: member.host.clone(), left_out: left_out.collect(), removed, error }
    }

    /// The next event, if one comes soon. Fails if the user interrupts the program.
    fn poll(&self) -> Result<Option<News>, Failure> {
        if interrupt::asked().is_some() {
            return Err(Box::new(Interrupted::by_the_senders_user()));
        }
        // This end holds a sender itself, so the channel never closes.
        Ok(self.events.recv_timeout(LOOK_EVERY).ok())
    }

    /// Whether some receiver lacks a block and has not left out its file.
    fn is_moved(&self, block: u32) -> bool {
        let entry = self.source.tree.place(block).entry;
        let lacks = |member: &Member| {
            let has = member.standing.as_ref().is_some_and(|has| has[block as usize].is_some());
            member.outcome.is_none() && !has && !member.failures.contains(entry)
        };
        self.members.iter().any(lacks)
    }

    /// The hash of a block that some receiver has, as computed at this end.
    fn known_hash(&self, block: u32) -> Option<BlockHash> {
        self.members.iter().find_map(|m| m.standing.as_ref().and_then(|has| has[block as usize]))
    }

    /// Tells all receivers which blocks are moved, in messages of bounded length.
    fn announce(&self, blocks: u32) {
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        for block in (0..blocks).filter(|block| self.is_moved(*block)) {
            match ranges.last_mut() {
                Some((_, end)) if *end == block => *end += 1,
                _ => ranges.push((block, block + 1)),
            }
        }
        for batch in ranges.chunks(MAX_CLAIMS) {
            tell_all(&self.outgoing, &Message::Moving(batch.to_vec()));
        }
        tell_all(&self.outgoing, &Message::EndOfMoving);
    }

    /// Continues without a receiver. Fails if no receiver is left.
    fn lose(&mut self, index: usize, why: String) -> Result<(), Failure> {
        if self.members[index].outcome.is_some() {
            return Ok(());
        }
        self.part(index, Err(why));
        let is_left = |member: &Member| !matches!(member.outcome, Some(Err(_)));
        if self.members.iter().any(is_left) {
            return Ok(());
        }
        let all = self.members.iter().filter_map(|member| {
            let why = member.outcome.as_ref()?.as_ref().err()?;
            Some(format!("{}: {why}", member.host))
        });
        Err(format!("no receiver is left: {}", all.collect::<Vec<_>>().join("; ")).into())
    }

    /// Finishes with a receiver, whether it succeeded or failed. The remaining ones no longer get
    /// segments on its behalf.
    fn part(&mut self, index: usize, outcome: Result<Vec<String>, String>) {
        let member = &mut self.members[index];
        if let Some(verdict) = member.verdict.take() {
            // If the receiver's own thread reported the failure, that thread has ended.
            let _ = verdict.send(outcome.as_ref().map(|_| ()).map_err(Clone::clone));
        }
        let to = lock(&self.outgoing).get_mut(index).and_then(Option::take);
        if let (Some(to), Err(why)) = (to, &outcome) {
            // If the receiver is alive, it ends the conversation, and thereby its thread.
            let _ = to.try_send(Message::Abort(why.clone()));
        }
        member.outcome = Some(outcome);
        // The last receiver cannot be evicted, but nothing is written any more.
        let _ = self.session.qp.evict(index);
    }

    /// Releases all receivers that are still there.
    fn end(&mut self, outcome: &Result<Report, Failure>) {
        let why = outcome.as_ref().err().map_or_else(String::new, ToString::to_string);
        for index in 0..self.members.len() {
            if self.members[index].outcome.is_none() {
                self.part(index, Err(why.clone()));
            }
        }
        lock(&self.outgoing).clear();
    }
}

fn tell_all(outgoing: &Outgoing, message: &Message) {
    // Do not hold the lock: a receiver may be slow to read.
    let all: Vec<_> = lock(outgoing).iter().flatten().cloned().collect();
    for one in all {
        // If a receiver is gone, its own thread notices.
        let _ = one.send(message.clone());
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The segments to send.
struct Outbound<'a, 'f> {
    fleet: &'a mut Fleet<'f>,
    segments: &'a Segments,
    failures: &'a Failures,
    scheme: usize,
    /// Segments that wait to be read.
    waiting: VecDeque<u32>,
    free: Vec<usize>,
    /// What each write carries: slot, bytes, segment.
    writes: HashMap<WriteId, (usize, usize, u32)>,
    again: u64,
    meter: Meter,
}

impl<'a, 'f> Outbound<'a, 'f> {
    fn new(
        fleet: &'a mut Fleet<'f>,
        segments: &'a Segments,
        failures: &'a Failures,
    ) -> Result<Self, Failure> {
        let args = fleet.args;
        let waiting = if args.dry_run { 0..0 } else { 0..segments.len() };
        Ok(Outbound {
            scheme: fleet.session.qp.scheme(&args.scheme)?,
            waiting: waiting.collect(),
            free: (0..SLOTS).collect(),
            writes: HashMap::new(),
            again: 0,
            meter: Meter::new(args.show(), "sending", segments.bytes()),
            fleet,
            segments,
            failures,
        })
    }

    /// Sends everything, until no receiver is left to wait for. Returns how many segments were sent
    /// again.
    fn run(mut self, hashes: &mut [Option<BlockHash>]) -> Result<u64, Failure> {
        let (jobs, queue) = mpsc::channel();
        let (queue, hashes, stop) = (Mutex::new(queue), Mutex::new(hashes), AtomicBool::new(false));
        let Fleet { source, session, .. } = *self.fleet;
        let outgoing = Arc::clone(&self.fleet.outgoing);
        let tell = |message: Message| tell_all(&outgoing, &message);
        let (segments, failures) = (self.segments, self.failures);
        thread::scope(|scope| {
            for _ in 0..workers().min(segments.len() as usize) {
                let reader = Reader {
                    source,
                    session,
                    segments,
                    failures,
                    queue: &queue,
                    hashes: &hashes,
                    events: self.fleet.news.clone(),
                    tell: &tell,
                };
                scope.spawn(move || reader.run());
            }
            let (stop, events) = (&stop, self.fleet.news.clone());
            scope.spawn(move || session.watch(&events, stop));
            let sent = self.coordinate(&jobs, &hashes);
            drop(jobs);
            stop.store(true, Ordering::Release);
            sent
        })
    }

    /// Distributes work until every receiver has everything or has failed.
    fn coordinate(
        &mut self,
        jobs: &Sender<Job>,
        hashes: &Mutex<&mut [Option<BlockHash>]>,
    ) -> Result<u64, Failure> {
        while self.fleet.members.iter().any(|member| member.outcome.is_none()) {
            while let Some(slot) = self.free.pop() {
                let Some(segment) = self.waiting.pop_front() else {
                    self.free.push(slot);
                    break;
                };
                // The threads live as long as this channel.
                let _ = jobs.send(Job { segment, slot });
            }
            match self.fleet.poll()? {
                Some(Event::Segment(read)) => self.post(read?)?,
                Some(Event::Queue(event)) => self.written(event?)?,
                Some(Event::Peer((index, word))) => self.hear(index, word, hashes)?,
                None => {}
            }
        }
        self.meter.finish();
        Ok(self.again)
    }

    fn hear(
        &mut self,
        index: usize,
        word: Word,
        hashes: &Mutex<&mut [Option<BlockHash>]>,
    ) -> Result<(), Failure> {
        match word {
            Word::Again(segment) if segment < self.segments.len() && self.again < MAX_AGAIN => {
                self.again += 1;
                self.waiting.push_back(segment);
                Ok(())
            }
            Word::Again(_) => {
                let why = "too many segments arrived damaged (hash mismatch)";
                self.fleet.lose(index, why.to_owned())
            }
            Word::Complete { digest, removed } => {
                let (tree, theirs) = (&self.fleet.source.tree, &self.fleet.members[index].failures);
                let hashes: Vec<BlockHash> =
                    lock(hashes).iter().map(|hash| hash.unwrap_or_default()).collect();
                let is_left_out = |entry| self.failures.contains(entry) || theirs.contains(entry);
                if !self.fleet.args.dry_run && digest != tree.digest(&hashes, is_left_out) {
                    let why = "its files differ from those that were sent (hash mismatch)";
                    return self.fleet.lose(index, why.to_owned());
                }
                self.fleet.part(index, Ok(removed));
                Ok(())
            }
            Word::Failed(why) => self.fleet.lose(index, why),
            Word::Standing(_) => Ok(()),
        }
    }

    fn post(&mut self, read: Handled) -> Result<(), Failure> {
        let Handled { segment, slot, outcome } = read;
        let (session, bytes) = (self.fleet.session, outcome.unwrap_or_default());
        let start = session.slot(slot).start;
        let options = WriteOptions { scheme: self.scheme, imm: Some(segment) };
        let id = session.qp.write(&session.mr, start..start + bytes, options)?;
        self.writes.insert(id, (slot, bytes, segment));
        Ok(())
    }

    /// Handles a finished write: all receivers have the segment, or it failed because of one
    /// receiver and is sent again to the others.
    fn written(&mut self, event: ReliableEvent) -> Result<(), Failure> {
        let ReliableEvent::Written { id, result } = event else { return Ok(()) };
        let Some((slot, bytes, segment)) = self.writes.remove(&id) else { return Ok(()) };
        self.free.push(slot);
        let Err(failure) = result else {
            self.meter.add(bytes as u64);
            return Ok(());
        };
        let qp = &self.fleet.session.qp;
        let Some(member) = failure.member() else { return Err(qp.explain(failure).into()) };
        self.waiting.push_front(segment);
        self.fleet.lose(member, failure.to_string())
    }
}
