//! The sending end.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use bowline::{Channel, ReliableEvent, WriteId, WriteOptions};
use indicatif::ProgressBar;

use super::Failure;
use super::args::SendArgs;
use super::control::{Control, Event, Handled, Heard};
use super::digest::BlockHash;
use super::files::{PIECE_BYTES, hash_block, read_block};
use super::message::{ENTRIES_BYTES, Hello, MAX_CLAIMS, Message, VERSION, Welcome};
use super::report::Report;
use super::scan::{Source, mtime};
use super::session::{Nic, SLOTS, Session, workers};
use super::tree::Segments;
use crate::output;

/// While it compares, the sender says this often how far it is.
const CHECKED_EVERY: Duration = Duration::from_secs(2);

/// Sends a tree over a connection to a receiver.
pub(super) fn send(
    args: &SendArgs,
    source: &Source,
    mut channel: Channel,
) -> Result<Report, Failure> {
    let addr = match args.device {
        Some(addr) => addr,
        None => channel.local_addr()?.ip(),
    };
    let nic = Nic::open(addr, args.lanes, args.link.as_ref(), args.cc.as_ref())?;
    let (mtu, lanes) = (nic.mtu_bytes(), nic.lanes());
    let hello = Hello { version: VERSION, scheme: args.scheme.clone(), mtu, lanes };
    channel.send(&postcard::to_stdvec(&hello)?)?;
    let welcome: Result<Welcome, String> = postcard::from_bytes(&channel.recv()?)?;
    let welcome = welcome.map_err(|why| format!("the receiver refused: {why}"))?;
    let session = nic.connect(&mut channel, welcome.mtu, welcome.lanes, &args.scheme, args.rate)?;
    // It may read for hours what it has already.
    let control = Control::start(channel, "receiver", None)?;
    let outcome = converse(args, source, &session, &control);
    control.close(&outcome);
    outcome
}

fn converse(
    args: &SendArgs,
    source: &Source,
    session: &Session,
    control: &Control,
) -> Result<Report, Failure> {
    list(source, control);
    let mut hashes = vec![None; source.tree.blocks() as usize];
    check_claims(source, control, &mut hashes)?;
    let segments = Segments::new(&source.tree, |block| hashes[block as usize].is_some());
    let started = Instant::now();
    let mut outbound = Outbound {
        source,
        control,
        session,
        segments: &segments,
        scheme: session.qp.scheme(&args.scheme)?,
        waiting: (0..segments.len()).collect(),
        free: (0..SLOTS).collect(),
        writes: HashMap::new(),
        again: 0,
        bar: output::progress_bytes(segments.bytes(), "sending"),
    };
    let theirs = outbound.run(&mut hashes)?;
    let hashes: Vec<BlockHash> = hashes.into_iter().map(Option::unwrap_or_default).collect();
    let digest = source.tree.digest(&hashes);
    if theirs != digest {
        return Err("the receiver has other files than were sent, by their hashes".into());
    }
    control.send(Message::Agreed);
    let stats = session.qp.stats()?;
    let mut report = Report::new(&source.tree, &hashes, &stats, args.json);
    report.scheme.clone_from(&args.scheme);
    report.moved_bytes = segments.bytes();
    report.segments_again = outbound.again;
    report.set_time(started.elapsed());
    Ok(report)
}

/// Tells the receiver what there is, in messages of bounded length.
fn list(source: &Source, control: &Control) {
    let (mut batch, mut bytes) = (Vec::new(), 0);
    for entry in source.tree.entries() {
        bytes += entry.path.len() + 64;
        batch.push(entry.clone());
        if bytes > ENTRIES_BYTES {
            control.send(Message::Entries(std::mem::take(&mut batch)));
            bytes = 0;
        }
    }
    control.send(Message::Entries(batch));
    control.send(Message::EndOfEntries);
}

/// Compares the blocks that the receiver has with the files; fills in the hashes of those that it
/// has indeed.
fn check_claims(
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
    let mut piece = vec![0; PIECE_BYTES];
    let mut denied = Vec::new();
    let bar = output::progress(claims.len() as u64, "checking what is there");
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
            Some((entry, file)) if entry == place.entry => file,
            _ => open_source(source, place.entry)?,
        };
        let bytes = source.tree.entries()[place.entry].bytes();
        let hash = hash_block(&file, place.offset, bytes, &mut piece)
            .map_err(|e| cannot_read(source, place.entry, &e))?;
        if hash == claim.hash {
            hashes[claim.block as usize] = Some(hash);
        } else {
            denied.push(claim.block);
        }
        open = Some((place.entry, file));
        bar.inc(1);
    }
    bar.finish_and_clear();
    for batch in denied.chunks(MAX_CLAIMS) {
        control.send(Message::Denied(batch.to_vec()));
    }
    control.send(Message::EndOfDenied);
    Ok(())
}

fn cannot_read(source: &Source, entry: usize, e: &std::io::Error) -> Failure {
    let path = source.paths[entry].display();
    match e.kind() {
        std::io::ErrorKind::UnexpectedEof => changed(source, entry),
        _ => format!("cannot read {path}: {e}").into(),
    }
}

fn changed(source: &Source, entry: usize) -> Failure {
    format!("{} changed while it was being sent", source.paths[entry].display()).into()
}

/// Opens a file, if it is still the one that was listed.
fn open_source(source: &Source, entry: usize) -> Result<File, Failure> {
    let open = || {
        let file = File::open(&source.paths[entry])?;
        let metadata = file.metadata()?;
        Ok((file, metadata))
    };
    let (file, metadata) = open().map_err(|e| cannot_read(source, entry, &e))?;
    let listed = &source.tree.entries()[entry];
    if metadata.len() != listed.bytes() || mtime(&metadata) != listed.mtime {
        return Err(changed(source, entry));
    }
    Ok(file)
}

/// A segment to be read into a slot.
struct Job {
    segment: u32,
    slot: usize,
}

/// Segments on their way out.
struct Outbound<'a> {
    source: &'a Source,
    control: &'a Control,
    session: &'a Session,
    segments: &'a Segments,
    scheme: usize,
    /// Segments to be read.
    waiting: VecDeque<u32>,
    free: Vec<usize>,
    writes: HashMap<WriteId, (usize, usize)>,
    again: u64,
    bar: ProgressBar,
}

impl Outbound<'_> {
    /// Sends everything; returns the receiver's digest, and the blocks' hashes in `hashes`.
    fn run(&mut self, hashes: &mut [Option<BlockHash>]) -> Result<BlockHash, Failure> {
        match self.control.hear()? {
            Message::Ready => {}
            _ => return Err(self.control.unexpected()),
        }
        let (jobs, queue) = mpsc::channel();
        let (queue, hashes, stop) = (Mutex::new(queue), Mutex::new(hashes), AtomicBool::new(false));
        thread::scope(|scope| {
            for _ in 0..workers().min(self.segments.len() as usize) {
                let reader = Reader {
                    source: self.source,
                    session: self.session,
                    segments: self.segments,
                    queue: &queue,
                    hashes: &hashes,
                    events: self.control.event_sender(),
                    outgoing: self.control.sender(),
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

    /// Hands out work until the receiver has everything. Threads end when `jobs` is dropped.
    fn coordinate(&mut self, jobs: Sender<Job>) -> Result<BlockHash, Failure> {
        loop {
            while let Some(slot) = self.free.pop() {
                let Some(segment) = self.waiting.pop_front() else {
                    self.free.push(slot);
                    break;
                };
                // Its threads live as long as this does.
                let _ = jobs.send(Job { segment, slot });
            }
            match self.control.next()? {
                Event::Segment(read) => self.post(read?)?,
                Event::Queue(event) => self.written(event?)?,
                Event::Peer(Message::Again { segment }) if segment < self.segments.len() => {
                    self.again += 1;
                    self.waiting.push_back(segment);
                }
                Event::Peer(Message::Complete { digest }) => {
                    self.bar.finish_and_clear();
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
        let start = Session::slot(slot).start;
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
                self.bar.inc(bytes as u64);
            }
        }
        Ok(())
    }
}

/// A thread that reads and hashes segments.
struct Reader<'a, 'h> {
    source: &'a Source,
    session: &'a Session,
    segments: &'a Segments,
    queue: &'a Mutex<Receiver<Job>>,
    hashes: &'a Mutex<&'h mut [Option<BlockHash>]>,
    events: Sender<Event<Heard>>,
    outgoing: SyncSender<Message>,
}

impl Reader<'_, '_> {
    fn run(&self) {
        let mut piece = vec![0; PIECE_BYTES];
        loop {
            let job = self.queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok(job) = job else { return };
            let read = self.read(&job, &mut piece);
            let is_last = read.is_err();
            if self.events.send(Event::Segment(read)).is_err() || is_last {
                return;
            }
        }
    }

    /// Reads a segment into its slot and tells the receiver the hashes.
    fn read(&self, job: &Job, piece: &mut [u8]) -> Result<Handled, Failure> {
        let start = Session::slot(job.slot).start;
        let mut at = start;
        let blocks = self.segments.get(job.segment);
        let mut hashes = Vec::with_capacity(blocks.len());
        for block in blocks {
            let place = self.source.tree.place(*block);
            let file = open_source(self.source, place.entry)?;
            let bytes = self.source.tree.entries()[place.entry].bytes();
            let hash = read_block(&file, place.offset, bytes, piece, |offset, piece| {
                self.session.mr.write_at(at + offset as usize, piece);
                Ok(())
            });
            hashes.push(hash.map_err(|e| cannot_read(self.source, place.entry, &e))?);
            at += place.len;
        }
        let mut all = self.hashes.lock().unwrap_or_else(PoisonError::into_inner);
        for (block, hash) in blocks.iter().zip(&hashes) {
            all[*block as usize] = Some(*hash);
        }
        drop(all);
        // If the receiver is gone, the main thread hears of it.
        let _ = self.outgoing.send(Message::Hashes { segment: job.segment, hashes });
        Ok(Handled { segment: job.segment, slot: job.slot, outcome: Ok(at - start) })
    }
}
