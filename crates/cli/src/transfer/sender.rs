//! The sending end.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use bowline::{Channel, ReliableEvent, WriteId, WriteOptions};

use super::Failure;
use super::args::SendArgs;
use super::control::{Control, Event, Handled};
use super::digest::BlockHash;
use super::failures::Failures;
use super::files::{PIECE_BYTES, hash_block, read_block};
use super::filter::Filter;
use super::message::{
    ENTRIES_BYTES, Entry, FIRST_ENTRIES_BYTES, Hello, Kind, MAX_CLAIMS, Message, VERSION, Welcome,
};
use super::meter::Meter;
use super::report::{LeftOutReport, Report};
use super::scan::{Source, mtime};
use super::session::{Agreed, Nic, SLOTS, Session, workers, yield_to_packets};
use super::tree::{Place, Segments};
use crate::nic_name::NicName;
use crate::output;

/// How often the sender reports its progress while it compares blocks.
pub(super) const CHECKED_EVERY: Duration = Duration::from_secs(2);

/// Upper limit for the round-trip time when it is estimated from a response time.
const LONGEST_RTT: Duration = Duration::from_secs(1);

const CHANGED: &str = "it changed while it was being sent: send it again";

/// Sends a tree over a connection to a receiver.
pub(super) fn send(
    args: &SendArgs,
    source: &Source,
    filter: &Filter,
    mut channel: Channel,
) -> Result<Report, Failure> {
    let name = match &args.device {
        Some(name) => name.clone(),
        None => NicName::Addr(channel.local_addr()?.ip().to_canonical()),
    };
    let nic = Nic::open(&name, &args.opening, args.cc.as_ref())?;
    let (session, listed) = connect(args, source, filter, &nic, &mut channel)?;
    let peer = channel.peer_key().map(|key| key.fingerprint());
    // No timeout: the receiver may spend hours reading what it already has.
    let control = Control::start(channel, "receiver", None)?;
    if listed < source.tree.entries().len() {
        list(source, listed, &control);
    }
    let outcome = converse(args, source, &session, &control);
    control.close(&outcome);
    let mut report = outcome?;
    report.peer = peer;
    Ok(report)
}

/// Greets the receiver and connects a queue pair to the receiver's. Also returns how many entries
/// the receiver has already been sent. The greeting contains everything that the receiver needs to
/// prepare, because each response that is awaited costs a round trip.
fn connect(
    args: &SendArgs,
    source: &Source,
    filter: &Filter,
    nic: &Nic,
    channel: &mut Channel,
) -> Result<(Session, usize), Failure> {
    let mut hello = hello(args, source, filter, nic);
    let listed = first_entries(source.tree.entries());
    hello.entries = source.tree.entries()[..listed].to_vec();
    hello.has_more_entries = listed < source.tree.entries().len();
    let mut agreed = Agreed {
        mtu_bytes: hello.mtu,
        lanes: hello.lanes,
        scheme: &args.scheme,
        segment_bytes: hello.segment_bytes,
    };
    let session = nic.make(agreed, args.speed())?;
    hello.offer = Some(nic.offer(&session)?);
    channel.send(&postcard::to_stdvec(&hello)?)?;
    let asked = Instant::now();
    let welcome: Result<Welcome, String> = postcard::from_bytes(&channel.recv()?)?;
    let welcome = welcome.map_err(|why| format!("the receiver refused: {why}"))?;
    let Some(offer) = welcome.offer else {
        drop(session);
        (agreed.mtu_bytes, agreed.lanes) = (welcome.mtu, welcome.lanes);
        return Ok((nic.connect(channel, agreed, args.speed())?, listed));
    };
    if !session.join(channel, &offer)? {
        return Err("protocol error from the receiver: run the same release at both ends".into());
    }
    // The response may have waited for other transfers to finish.
    session.qp.assume_rtt(asked.elapsed().min(LONGEST_RTT))?;
    Ok((session, listed))
}

/// The number of entries that fit into the first message.
fn first_entries(entries: &[Entry]) -> usize {
    let mut bytes = 0;
    let fits = |entry: &&Entry| {
        bytes += listed_bytes(entry);
        bytes <= FIRST_ENTRIES_BYTES
    };
    entries.iter().take_while(fits).count()
}

/// The sender's first message.
pub(super) fn hello(args: &SendArgs, source: &Source, filter: &Filter, nic: &Nic) -> Hello {
    Hello {
        version: VERSION,
        scheme: args.scheme.clone(),
        mtu: nic.mtu_bytes(),
        lanes: nic.lanes(),
        segment_bytes: source.tree.max_segment_bytes(),
        dry_run: args.dry_run,
        // An entry that could not be read must not be mistaken for one that does not exist.
        delete: args.delete && source.unread.is_empty(),
        filter: filter.clone(),
        group: false,
        offer: None,
        entries: Vec::new(),
        has_more_entries: true,
    }
}

fn converse(
    args: &SendArgs,
    source: &Source,
    session: &Session,
    control: &Control,
) -> Result<Report, Failure> {
    let tree = &source.tree;
    let mut hashes = vec![None; tree.blocks() as usize];
    check_claims(source, control, &mut hashes)?;
    let failures = Failures::default();
    let posted = hear_readiness(control, &failures, tree.entries().len())?;
    session.qp.hear_posted(&posted)?;
    let segments = Segments::new(tree, |block| {
        hashes[block as usize].is_some() || failures.contains(tree.place(block).entry)
    });
    let started = Instant::now();
    let mut outbound = Outbound {
        source,
        control,
        session,
        segments: &segments,
        failures: &failures,
        scheme: session.qp.scheme(&args.scheme)?,
        waiting: (0..segments.len()).collect(),
        free: (0..SLOTS).collect(),
        writes: HashMap::new(),
        again: 0,
        removed: Vec::new(),
        meter: Meter::new(args.show(), "sending", segments.bytes()),
    };
    if args.dry_run {
        outbound.waiting.clear();
    }
    let theirs = outbound.run(&mut hashes)?;
    let (again, removed) = (outbound.again, outbound.removed);
    let hashes: Vec<BlockHash> = hashes.into_iter().map(Option::unwrap_or_default).collect();
    if !args.dry_run && theirs != tree.digest(&hashes, |index| failures.contains(index)) {
        let why = "the receiver's files differ from those that were sent (hash mismatch)";
        return Err(why.into());
    }
    control.send(Message::Agreed);
    let stats = session.qp.stats()?;
    let mut report = Report::new(tree, &hashes, &stats, &segments, &failures);
    let unread = source.unread.iter().cloned();
    report.left_out.extend(unread.map(|(path, why)| LeftOutReport { path, why }));
    report.removed = removed;
    report.scheme.clone_from(&args.scheme);
    report.dry_run = args.dry_run;
    report.segments_again = again;
    report.set_time(started.elapsed());
    Ok(report)
}

/// Waits until the receiver is ready, and records what it leaves out. Returns the receives that it
/// has posted.
fn hear_readiness(
    control: &Control,
    failures: &Failures,
    entries: usize,
) -> Result<Vec<u64>, Failure> {
    loop {
        match control.hear()? {
            Message::LeftOut(left_out) => {
                failures.hear(left_out, entries).ok_or_else(|| control.unexpected())?;
            }
            Message::Ready { posted } => return Ok(posted),
            _ => return Err(control.unexpected()),
        }
    }
}

/// Sends the entries after the first `listed` to the receiver, in messages of bounded length.
pub(super) fn list(source: &Source, listed: usize, control: &Control) {
    let (mut batch, mut bytes) = (Vec::new(), 0);
    for entry in &source.tree.entries()[listed..] {
        bytes += listed_bytes(entry);
        batch.push(entry.clone());
        if bytes > ENTRIES_BYTES {
            control.send(Message::Entries(std::mem::take(&mut batch)));
            bytes = 0;
        }
    }
    control.send(Message::Entries(batch));
    control.send(Message::EndOfEntries);
}

/// Maximum size of an entry in a message. An entry of maximum size still fits after a full batch.
fn listed_bytes(entry: &Entry) -> usize {
    let target = if let Kind::Symlink(target) = &entry.kind { target.len() } else { 0 };
    let xattrs: usize = entry.xattrs.iter().map(|x| x.name.len() + x.value.len() + 8).sum();
    entry.path.len() + target + xattrs + 64
}

/// Compares the blocks that the receiver claims with the files, and fills in the hashes of those
/// that match.
pub(super) fn check_claims(
    source: &Source,
    control: &Control,
    hashes: &mut [Option<BlockHash>],
) -> Result<(), Failure> {
    let mut claims = Vec::new();
    loop {
        match control.hear()? {
            Message::Claims(more) if claims.len() + more.len() <= hashes.len() => {
                claims.extend(more);
            }
            Message::EndOfClaims => break,
            _ => return Err(control.unexpected()),
        }
    }
    if claims.is_empty() {
        // The receiver has continued without an answer, which saves a round trip on a long path.
        return Ok(());
    }
    let mut piece = vec![0; PIECE_BYTES];
    let mut denied = Vec::new();
    let bar = output::progress(claims.len() as u64, "comparing with existing files");
    let mut open: Option<(usize, File)> = None;
    let mut told = Instant::now();
    for (checked, claim) in (0..).zip(claims) {
        if told.elapsed() > CHECKED_EVERY {
            control.send(Message::Checked(checked));
            told = Instant::now();
        }
        if claim.block >= source.tree.blocks() {
            return Err(control.unexpected());
        }
        let place = source.tree.place(claim.block);
        let file = match open.take() {
            Some((entry, file)) if entry == place.entry => Ok(file),
            _ => open_source(source, place.entry),
        };
        let bytes = source.tree.entries()[place.entry].bytes();
        // A file that cannot be read now is left out when its blocks are due.
        let hash = file.ok().and_then(|file| {
            let hash = hash_block(&file, place.offset, bytes, &mut piece).ok();
            open = Some((place.entry, file));
            hash
        });
        if hash == Some(claim.hash) {
            hashes[claim.block as usize] = hash;
        } else {
            denied.push(claim.block);
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    for batch in denied.chunks(MAX_CLAIMS) {
        control.send(Message::Denied(batch.to_vec()));
    }
    control.send(Message::EndOfDenied);
    Ok(())
}

fn cannot_read(e: &std::io::Error) -> String {
    match e.kind() {
        std::io::ErrorKind::UnexpectedEof => CHANGED.to_owned(),
        _ => format!("cannot read it: {e}"),
    }
}

/// Opens a file, if it has not changed since it was listed.
fn open_source(source: &Source, entry: usize) -> Result<File, String> {
    let open = || {
        let file = File::open(&source.paths[entry])?;
        let metadata = file.metadata()?;
        Ok((file, metadata))
    };
    let (file, metadata) = open().map_err(|e| cannot_read(&e))?;
    let listed = &source.tree.entries()[entry];
    if metadata.len() != listed.bytes() || mtime(&metadata) != listed.mtime {
        return Err(CHANGED.to_owned());
    }
    Ok(file)
}

/// A segment to read into a slot.
pub(super) struct Job {
    pub(super) segment: u32,
    pub(super) slot: usize,
}

/// The segments to send.
struct Outbound<'a> {
    source: &'a Source,
    control: &'a Control,
    session: &'a Session,
    segments: &'a Segments,
    failures: &'a Failures,
    scheme: usize,
    /// Segments that wait to be read.
    waiting: VecDeque<u32>,
    free: Vec<usize>,
    writes: HashMap<WriteId, (usize, usize)>,
    again: u64,
    /// Paths that the receiver has deleted.
    removed: Vec<String>,
    meter: Meter,
}

impl Outbound<'_> {
    /// Sends everything. Returns the receiver's digest, and stores the blocks' hashes in `hashes`.
    fn run(&mut self, hashes: &mut [Option<BlockHash>]) -> Result<BlockHash, Failure> {
        let (jobs, queue) = mpsc::channel();
        let (queue, hashes, stop) = (Mutex::new(queue), Mutex::new(hashes), AtomicBool::new(false));
        let outgoing = self.control.sender();
        // If the receiver is gone, the main thread learns of it.
        let tell = |message: Message| drop(outgoing.send(message));
        thread::scope(|scope| {
            for _ in 0..workers().min(self.segments.len() as usize) {
                let reader = Reader {
                    source: self.source,
                    session: self.session,
                    segments: self.segments,
                    failures: self.failures,
                    queue: &queue,
                    hashes: &hashes,
                    events: self.control.event_sender(),
                    tell: &tell,
                };
                scope.spawn(move || reader.run());
            }
            let (session, stop) = (self.session, &stop);
            let events = self.control.event_sender();
            scope.spawn(move || session.watch(&events, stop));
            let digest = self.coordinate(jobs);
            stop.store(true, Ordering::Release);
            digest
        })
    }

    /// Distributes work until the receiver has everything. Threads end when `jobs` is dropped.
    fn coordinate(&mut self, jobs: Sender<Job>) -> Result<BlockHash, Failure> {
        loop {
            while let Some(slot) = self.free.pop() {
                let Some(segment) = self.waiting.pop_front() else {
                    self.free.push(slot);
                    break;
                };
                // The threads live as long as this channel.
                let _ = jobs.send(Job { segment, slot });
            }
            match self.control.next()? {
                Event::Segment(read) => self.post(read?)?,
                Event::Queue(event) => self.written(event?)?,
                Event::Peer(Message::Again { segment }) if segment < self.segments.len() => {
                    self.again += 1;
                    self.waiting.push_back(segment);
                }
                Event::Peer(Message::LeftOut(left_out)) => {
                    let entries = self.source.tree.entries().len();
                    let heard = self.failures.hear(left_out, entries);
                    heard.ok_or_else(|| self.control.unexpected())?;
                }
                Event::Peer(Message::Removed(paths)) => {
                    let paths = paths.iter().map(|path| String::from_utf8_lossy(path).into_owned());
                    self.removed.extend(paths);
                }
                Event::Peer(Message::Complete { digest }) => {
                    self.meter.finish();
                    return Ok(digest);
                }
                Event::Peer(Message::Alive) => {}
                Event::Peer(_) => return Err(self.control.unexpected()),
            }
        }
    }

    fn post(&mut self, read: Handled) -> Result<(), Failure> {
        let Handled { segment, slot, outcome } = read;
        let bytes = outcome.unwrap_or_default();
        let start = self.session.slot(slot).start;
        let options = WriteOptions { scheme: self.scheme, imm: Some(segment) };
        let id = self.session.qp.write(&self.session.mr, start..start + bytes, options)?;
        self.writes.insert(id, (slot, bytes));
        Ok(())
    }

    fn written(&mut self, event: ReliableEvent) -> Result<(), Failure> {
        if let ReliableEvent::Written { id, result } = event {
            result.map_err(bowline::Error::from)?;
            if let Some((slot, bytes)) = self.writes.remove(&id) {
                self.free.push(slot);
                self.meter.add(bytes as u64);
            }
        }
        Ok(())
    }
}

/// A thread that reads and hashes segments.
pub(super) struct Reader<'a, 'h, P> {
    pub(super) source: &'a Source,
    pub(super) session: &'a Session,
    pub(super) segments: &'a Segments,
    pub(super) failures: &'a Failures,
    pub(super) queue: &'a Mutex<Receiver<Job>>,
    pub(super) hashes: &'a Mutex<&'h mut [Option<BlockHash>]>,
    pub(super) events: Sender<Event<P>>,
    /// Sends a message to every receiver.
    pub(super) tell: &'a (dyn Fn(Message) + Sync),
}

impl<P> Reader<'_, '_, P> {
    pub(super) fn run(&self) {
        yield_to_packets();
        let mut piece = vec![0; PIECE_BYTES];
        loop {
            let job = self.queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok(job) = job else { return };
            let read = self.read(&job, &mut piece);
            if self.events.send(Event::Segment(Ok(read))).is_err() {
                return;
            }
        }
    }

    /// Reads a segment into its slot and sends the hashes to the receiver. A block that cannot be
    /// read keeps its place, so that the segment has the length that both ends expect. Its file is
    /// left out.
    fn read(&self, job: &Job, piece: &mut [u8]) -> Handled {
        let start = self.session.slot(job.slot).start;
        let mut at = start;
        let blocks = self.segments.get(job.segment);
        let (mut hashes, mut unread) = (Vec::with_capacity(blocks.len()), Vec::new());
        for block in blocks {
            let place = self.source.tree.place(*block);
            match self.read_block(place, at, piece) {
                Ok(hash) => hashes.push(hash),
                Err(why) => {
                    self.failures.add(place.entry, why);
                    hashes.push(BlockHash::default());
                    unread.push(*block);
                }
            }
            at += place.len;
        }
        let mut all = self.hashes.lock().unwrap_or_else(PoisonError::into_inner);
        for (block, hash) in blocks.iter().zip(&hashes) {
            all[*block as usize] = Some(*hash);
        }
        drop(all);
        (self.tell)(Message::Hashes { segment: job.segment, hashes, unread });
        Handled { segment: job.segment, slot: job.slot, outcome: Ok(at - start) }
    }

    fn read_block(&self, place: Place, at: usize, piece: &mut [u8]) -> Result<BlockHash, String> {
        let file = open_source(self.source, place.entry)?;
        let bytes = self.source.tree.entries()[place.entry].bytes();
        let hash = read_block(&file, place.offset, bytes, piece, |offset, piece| {
            self.session.mr.write_at(at + offset as usize, piece);
            Ok(())
        });
        hash.map_err(|e| cannot_read(&e))
    }
}
