//! The receiving end.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use bowline::{Channel, RecvId, ReliableEvent};

use super::Failure;
use super::args::RecvArgs;
use super::control::{Control, Event, Handled, Heard};
use super::digest::{BlockHash, BlockHasher};
use super::dir::Dir;
use super::files::PIECE_BYTES;
use super::list::List;
use super::message::{Entry, Hello, MAX_CLAIMS, MAX_PATH, Message, Offer, VERSION, Welcome};
use super::meter::Meter;
use super::report::Report;
use super::session::{Agreed, Nic, SLOTS, Session, Speed, workers, yield_to_packets};
use super::store::{Store, WriteError};
use super::tree::{Place, Segments, Tree};
use crate::nic_name::NicName;

/// A sender that sends only keep-alives for this long is given up, because others want to send too.
/// Reading a segment and sending it over the slowest link takes less.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);

/// Receives one tree from a sender.
pub(super) fn receive(
    args: &RecvArgs,
    dir: &Dir,
    mut channel: Channel,
    patience: Duration,
) -> Result<Report, Failure> {
    let (mut hello, session) = greet(args, dir, &mut channel)?;
    let peer = channel.peer_key().map(|key| key.fingerprint());
    let control = Control::start(channel, "sender", Some(patience))?;
    let outcome = converse(args, dir, &mut hello, &session, &control);
    control.close(&outcome);
    let mut report = outcome?;
    report.peer = peer;
    Ok(report)
}

/// Reads a sender's greeting, responds, and connects a queue pair to the sender's.
fn greet(args: &RecvArgs, dir: &Dir, channel: &mut Channel) -> Result<(Hello, Session), Failure> {
    let greeting = channel.recv()?;
    // Use the address that this sender has reached.
    let name = match &args.device {
        Some(name) => name.clone(),
        None => NicName::Addr(channel.local_addr()?.ip().to_canonical()),
    };
    let accepted = parse_hello(&greeting, dir).and_then(|hello| {
        let nic = Nic::open(&name, &args.opening, None)?;
        let (session, offer) = accept_offer(&nic, &hello, channel)?;
        let (mtu, lanes) = (nic.mtu_bytes(), nic.lanes().min(hello.lanes));
        Ok((hello, nic, session, Welcome { mtu, lanes, offer }))
    });
    let answer = match &accepted {
        Ok((_, _, _, welcome)) => Ok(welcome.clone()),
        Err(e) => Err(e.to_string()),
    };
    channel.send(&postcard::to_stdvec(&answer)?)?;
    let (hello, nic, session, welcome) = accepted?;
    let session = match session {
        Some(session) => session,
        None => nic.connect(channel, agreed(&hello, welcome.lanes), Speed::default())?,
    };
    Ok((hello, session))
}

/// Parses a sender's first message, and checks that its request is possible.
fn parse_hello(greeting: &[u8], dir: &Dir) -> Result<Hello, Failure> {
    // Nothing else is known about other versions.
    let (version, _) = postcard::take_from_bytes::<u32>(greeting)?;
    if version != VERSION {
        return Err(format!(
            "its protocol is version {VERSION}, this sender's {version}: run the same release"
        )
        .into());
    }
    let hello: Hello = postcard::from_bytes(greeting)?;
    if hello.filter.check().is_err() {
        return Err("invalid --exclude or --include patterns".into());
    }
    if hello.delete && !dir.rights.delete {
        return Err("it does not allow deletion: start `bowline recv` there with --delete".into());
    }
    Ok(hello)
}

fn agreed(hello: &Hello, lanes: u16) -> Agreed<'_> {
    Agreed {
        mtu_bytes: hello.mtu,
        lanes,
        scheme: &hello.scheme,
        segment_bytes: hello.segment_bytes,
    }
}

/// Connects to the queue pair that a sender offers, which was created for a NIC like the sender's.
/// Returns `None` if this NIC has fewer lanes, shorter packets or another transport.
fn accept_offer(
    nic: &Nic,
    hello: &Hello,
    channel: &Channel,
) -> Result<(Option<Session>, Option<Offer>), Failure> {
    let fits = nic.lanes() >= hello.lanes && nic.mtu_bytes() >= hello.mtu;
    let Some(offer) = hello.offer.as_ref().filter(|_| fits) else { return Ok((None, None)) };
    let session = nic.make(agreed(hello, hello.lanes), Speed::default())?;
    if !session.join(channel, offer)? {
        return Ok((None, None));
    }
    let ours = nic.offer(&session)?;
    Ok((Some(session), Some(ours)))
}

fn converse(
    args: &RecvArgs,
    dir: &Dir,
    hello: &mut Hello,
    session: &Session,
    control: &Control,
) -> Result<Report, Failure> {
    let tree = listen_to_list(hello, control)?;
    let mut store = Store::examine(dir, &tree, hello.dry_run);
    agree_on_claims(&mut store, control)?;
    store.prepare()?;
    let early: HashSet<usize> = store.failures.list().into_iter().map(|(entry, _)| entry).collect();
    store.failures.batches(|_| false).into_iter().for_each(|b| control.send(Message::LeftOut(b)));
    let segments = if hello.group {
        control.send(Message::Standing);
        let moving = hear_moving(control, tree.blocks())?;
        Segments::new(&tree, |block| !is_among(&moving, block))
    } else {
        Segments::new(&tree, |block| {
            store.there(block).is_some() || early.contains(&tree.place(block).entry)
        })
    };
    let mut hashes: Vec<BlockHash> =
        (0..tree.blocks()).map(|block| store.there(block).unwrap_or_default()).collect();
    let started = Instant::now();
    let mut inbound = Inbound {
        control,
        session,
        tree: &tree,
        segments: &segments,
        store: &store,
        posted: HashMap::new(),
        unposted: Vec::new(),
        hashes: HashMap::new(),
        arrived: HashMap::new(),
        progress: vec![Progress::Missing { tries: 0 }; segments.len() as usize],
        right: already_right(&segments, &store),
        in_group: hello.group,
        open: if hello.dry_run { 0 } else { segments.len() },
        again: 0,
        meter: Meter::new(args.show(), "receiving", segments.bytes()),
    };
    inbound.run(&mut hashes)?;
    let again = inbound.again;
    let removed = finish(&store, hello, control, &early);
    let digest = tree.digest(&hashes, |index| store.failures.contains(index));
    control.send(Message::Complete { digest });
    match control.hear()? {
        Message::Agreed => {}
        _ => return Err(control.unexpected()),
    }
    let stats = session.qp.stats()?;
    let mut report = Report::new(&tree, &hashes, &stats, &segments, &store.failures);
    report.removed = removed.iter().map(|p| String::from_utf8_lossy(p).into_owned()).collect();
    report.scheme.clone_from(&hello.scheme);
    report.dry_run = hello.dry_run;
    report.segments_again = again;
    report.set_time(started.elapsed());
    Ok(report)
}

/// Creates links, deletes what the sender does not have, and sets the times of directories. Tells
/// the sender what was left out since the last such message. Returns the paths that were deleted.
fn finish(
    store: &Store<'_>,
    hello: &Hello,
    control: &Control,
    early: &HashSet<usize>,
) -> Vec<Vec<u8>> {
    if !hello.dry_run {
        store.finish_links();
    }
    let removed = if hello.delete { store.remove_others(&hello.filter) } else { Vec::new() };
    if !hello.dry_run {
        store.finish_dirs();
    }
    let late = store.failures.batches(|entry| early.contains(&entry));
    late.into_iter().for_each(|batch| control.send(Message::LeftOut(batch)));
    // Each path is at most a path that was sent plus one name.
    for batch in removed.chunks((32 << 10) / MAX_PATH) {
        control.send(Message::Removed(batch.to_vec()));
    }
    removed
}

fn listen_to_list(hello: &mut Hello, control: &Control) -> Result<Tree, Failure> {
    let mut list = List::default();
    for entry in std::mem::take(&mut hello.entries) {
        list.push(entry)?;
    }
    if !hello.has_more_entries {
        return list.finish();
    }
    loop {
        match control.hear()? {
            Message::Entries(entries) => {
                for entry in entries {
                    list.push(entry)?;
                    control.note_progress();
                }
            }
            Message::EndOfEntries => return list.finish(),
            _ => return Err(control.unexpected()),
        }
    }
}

/// Tells the sender which blocks exist here, and drops those that differ from the sender's.
fn agree_on_claims(store: &mut Store<'_>, control: &Control) -> Result<(), Failure> {
    let claims = store.claims();
    for batch in claims.chunks(MAX_CLAIMS) {
        control.send(Message::Claims(batch.to_vec()));
    }
    control.send(Message::EndOfClaims);
    control.note_progress();
    if claims.is_empty() {
        return Ok(());
    }
    let mut checked = 0;
    loop {
        match control.hear()? {
            Message::Checked(blocks) if blocks > checked => {
                checked = blocks;
                control.note_progress();
            }
            Message::Checked(_) => {}
            Message::Denied(blocks) => {
                if blocks.into_iter().filter(|block| store.deny(*block)).count() > 0 {
                    control.note_progress();
                }
            }
            Message::EndOfDenied => return Ok(()),
            _ => return Err(control.unexpected()),
        }
    }
}

/// The blocks that go to all receivers of a group, as ascending ranges.
fn hear_moving(control: &Control, blocks: u32) -> Result<Vec<(u32, u32)>, Failure> {
    let (mut ranges, mut checked): (Vec<(u32, u32)>, u32) = (Vec::new(), 0);
    loop {
        match control.hear()? {
            Message::Moving(more) => {
                for (start, end) in more {
                    let is_next = ranges.last().is_none_or(|(_, last)| *last < start);
                    if start >= end || end > blocks || !is_next {
                        return Err(control.unexpected());
                    }
                    ranges.push((start, end));
                    control.note_progress();
                }
            }
            // Other receivers are still reading what they have.
            Message::Checked(times) if times > checked => {
                checked = times;
                control.note_progress();
            }
            Message::Checked(_) => {}
            Message::EndOfMoving => return Ok(ranges),
            _ => return Err(control.unexpected()),
        }
    }
}

fn is_among(ranges: &[(u32, u32)], block: u32) -> bool {
    let before = ranges.partition_point(|(start, _)| *start <= block);
    before > 0 && block < ranges[before - 1].1
}

/// Blocks that arrive for other receivers and already exist here. They are not written again.
fn already_right(segments: &Segments, store: &Store<'_>) -> HashMap<u32, Vec<u32>> {
    let mut right = HashMap::new();
    for segment in 0..segments.len() {
        let there = segments.get(segment).iter().filter(|block| store.there(**block).is_some());
        let there: Vec<u32> = there.copied().collect();
        if !there.is_empty() {
            right.insert(segment, there);
        }
    }
    right
}

/// The state of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// It has not arrived, or arrived damaged this many times.
    Missing {
        tries: u8,
    },
    /// A thread checks it.
    Checking {
        tries: u8,
    },
    Done,
}

/// A segment to be checked and written.
struct Job {
    segment: u32,
    slot: usize,
    hashes: Vec<BlockHash>,
    /// Blocks that were correct and written when the segment arrived the first time.
    right: Vec<u32>,
}

/// The segments to receive.
struct Inbound<'a> {
    control: &'a Control,
    session: &'a Session,
    tree: &'a Tree,
    segments: &'a Segments,
    store: &'a Store<'a>,
    /// The slot of each posted receive.
    posted: HashMap<RecvId, usize>,
    /// Free slots that wait for a message number.
    unposted: Vec<usize>,
    /// Hashes of segments that have not arrived or are being checked.
    hashes: HashMap<u32, Vec<BlockHash>>,
    /// Segments that arrived before their hashes, and their slots.
    arrived: HashMap<u32, usize>,
    progress: Vec<Progress>,
    /// Correct blocks of damaged segments, and blocks that already existed.
    right: HashMap<u32, Vec<u32>>,
    /// There are other receivers, so a segment may arrive again.
    in_group: bool,
    /// Number of segments that are not done.
    open: u32,
    again: u64,
    meter: Meter,
}

impl Inbound<'_> {
    /// Receives everything, and stores the blocks' hashes in `hashes`.
    fn run(&mut self, hashes: &mut [BlockHash]) -> Result<(), Failure> {
        if self.open > 0 {
            for slot in 0..SLOTS {
                self.post(slot)?;
            }
        }
        self.control.send(Message::Ready { posted: self.session.qp.posted()? });
        let (jobs, queue) = mpsc::channel();
        let (queue, stop) = (Mutex::new(queue), AtomicBool::new(false));
        thread::scope(|scope| {
            for _ in 0..workers().min(self.open as usize) {
                let writer = Writer {
                    session: self.session,
                    tree: self.tree,
                    segments: self.segments,
                    store: self.store,
                    queue: &queue,
                    events: self.control.event_sender(),
                };
                scope.spawn(move || writer.run());
            }
            let (session, stop) = (self.session, &stop);
            let events = self.control.event_sender();
            scope.spawn(move || session.watch(&events, stop));
            let received = self.coordinate(&jobs, hashes);
            drop(jobs);
            stop.store(true, Ordering::Release);
            received
        })
    }

    fn coordinate(&mut self, jobs: &Sender<Job>, hashes: &mut [BlockHash]) -> Result<(), Failure> {
        self.control.note_progress();
        let mut landed = 0;
        while self.open > 0 {
            let event = self.control.next()?;
            // During a large segment on a slow link, landed packets are the only sign of progress.
            let new = self.session.landed()?;
            if new > landed {
                landed = new;
                self.control.note_progress();
            }
            match event {
                Event::Segment(handled) => self.handled(handled?, hashes)?,
                Event::Queue(event) => self.received(event?)?,
                Event::Peer(Message::Hashes { segment, hashes, unread }) => {
                    self.hear_hashes(segment, hashes, &unread)?;
                }
                Event::Peer(Message::Alive) => {}
                Event::Peer(_) => return Err(self.control.unexpected()),
            }
            self.dispatch(jobs)?;
        }
        self.meter.finish();
        Ok(())
    }

    /// Handles the hashes of a segment, and the list of blocks that the sender could not read.
    fn hear_hashes(
        &mut self,
        segment: u32,
        hashes: Vec<BlockHash>,
        unread: &[u32],
    ) -> Result<(), Failure> {
        let blocks = self.segments.get(segment);
        if hashes.len() != blocks.len() || hashes.is_empty() {
            return Err(self.control.unexpected());
        }
        for block in unread {
            if !blocks.contains(block) {
                return Err(self.control.unexpected());
            }
            let why = "the sender could not read it, or it changed during the transfer";
            self.store.leave_out(self.tree.place(*block).entry, why);
        }
        for (block, hash) in blocks.iter().zip(&hashes) {
            // The block was compared before, but the other receivers now get something else.
            if self.store.there(*block).is_some_and(|there| there != *hash) {
                let why = "it changed at the sender while it was being sent: send it again";
                self.store.leave_out(self.tree.place(*block).entry, why);
            }
        }
        self.hashes.insert(segment, hashes);
        Ok(())
    }

    fn post(&mut self, slot: usize) -> Result<(), Failure> {
        self.unposted.push(slot);
        self.post_waiting()
    }

    /// Posts as many of the waiting slots as there are message numbers. The others are posted once
    /// the message that holds the next number has arrived.
    fn post_waiting(&mut self) -> Result<(), Failure> {
        while let Some(slot) = self.unposted.last() {
            let Some(id) = self.session.post(*slot)? else { break };
            self.posted.extend(self.unposted.pop().map(|slot| (id, slot)));
        }
        Ok(())
    }

    /// Handles a received message. Its immediate value is the segment's number.
    fn received(&mut self, event: ReliableEvent) -> Result<(), Failure> {
        let ReliableEvent::Received { id, len, imm, result } = event else { return Ok(()) };
        let slot = self.posted.remove(&id);
        self.post_waiting()?;
        match (result, slot) {
            // Another receiver caused this; the segment is sent again.
            (Err(bowline::Failure::Aborted), Some(slot)) if self.in_group => {
                return self.post(slot);
            }
            (result, _) => result.map_err(bowline::Error::from)?,
        }
        let Some(slot) = slot else { return Ok(()) };
        let segment = imm.unwrap_or(u32::MAX);
        let is_known = self.arrived.contains_key(&segment)
            || !matches!(
                self.progress.get(segment as usize),
                Some(Progress::Missing { .. }) | None
            );
        if self.in_group && is_known {
            // Another receiver needed this segment again.
            return self.post(slot);
        }
        let blocks = self.segments.get(segment);
        let expected: usize = blocks.iter().map(|block| self.tree.place(*block).len).sum();
        if len != expected as u64 || self.arrived.insert(segment, slot).is_some() {
            return Err(self.control.unexpected());
        }
        Ok(())
    }

    /// Passes segments whose data and hashes have arrived to the threads.
    fn dispatch(&mut self, jobs: &Sender<Job>) -> Result<(), Failure> {
        while let Some(segment) =
            self.arrived.keys().copied().find(|segment| self.hashes.contains_key(segment))
        {
            let Progress::Missing { tries } = self.progress[segment as usize] else {
                return Err(self.control.unexpected());
            };
            self.progress[segment as usize] = Progress::Checking { tries };
            let slot = self.arrived.remove(&segment).unwrap_or_default();
            let hashes = self.hashes.get(&segment).cloned().unwrap_or_default();
            let right = self.right.remove(&segment).unwrap_or_default();
            // The threads live as long as this channel.
            let _ = jobs.send(Job { segment, slot, hashes, right });
        }
        Ok(())
    }

    /// Handles a segment that a thread has checked: it is done, or is requested once more.
    fn handled(&mut self, handled: Handled, all: &mut [BlockHash]) -> Result<(), Failure> {
        let Handled { segment, slot, outcome } = handled;
        let blocks = self.segments.get(segment);
        let hashes = self.hashes.remove(&segment).unwrap_or_default();
        match (outcome, self.progress[segment as usize]) {
            (Ok(bytes), _) => {
                for (block, hash) in blocks.iter().zip(hashes) {
                    all[*block as usize] = hash;
                }
                self.progress[segment as usize] = Progress::Done;
                self.control.note_progress();
                self.open -= 1;
                self.meter.add(bytes as u64);
            }
            (Err(right), Progress::Checking { tries: 0 }) => {
                self.again += 1;
                self.progress[segment as usize] = Progress::Missing { tries: 1 };
                for (block, hash) in blocks.iter().zip(hashes).filter(|(b, _)| right.contains(b)) {
                    all[*block as usize] = hash;
                }
                self.right.insert(segment, right);
                self.control.send(Message::Again { segment });
            }
            (Err(right), _) => {
                let wrong = blocks.iter().find(|block| !right.contains(block));
                let entry = wrong.map(|block| &self.tree.entries()[self.tree.place(*block).entry]);
                let name = entry.map(Entry::name).unwrap_or_default();
                return Err(format!(
                    "a part of {name} arrived damaged twice (hash mismatch): check memory and disks"
                )
                .into());
            }
        }
        if self.open > 0 { self.post(slot) } else { Ok(()) }
    }
}

/// A thread that checks and writes segments.
struct Writer<'a> {
    session: &'a Session,
    tree: &'a Tree,
    segments: &'a Segments,
    store: &'a Store<'a>,
    queue: &'a Mutex<Receiver<Job>>,
    events: Sender<Event<Heard>>,
}

impl Writer<'_> {
    fn run(&self) {
        yield_to_packets();
        let mut piece = vec![0; PIECE_BYTES];
        loop {
            let job = self.queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok(job) = job else { return };
            let written = self.write(&job, &mut piece);
            let is_last = written.is_err();
            if self.events.send(Event::Segment(written)).is_err() || is_last {
                return;
            }
        }
    }

    /// Writes a segment's blocks, and hashes them at the same time. A block counts only if its hash
    /// is correct. When a segment arrives again, blocks that were correct are not written again.
    fn write(&self, job: &Job, piece: &mut [u8]) -> Result<Handled, Failure> {
        let Job { segment, slot, hashes, right } = job;
        let start = self.session.slot(*slot).start;
        let (mut at, mut right) = (start, right.clone());
        let blocks = self.segments.get(*segment);
        for (block, hash) in blocks.iter().zip(hashes) {
            let place = self.tree.place(*block);
            if !right.contains(block) && self.take_block(place, *block, *hash, at, piece)? {
                right.push(*block);
            }
            at += place.len;
        }
        let outcome = if right.len() == blocks.len() { Ok(at - start) } else { Err(right) };
        Ok(Handled { segment: *segment, slot: *slot, outcome })
    }

    /// Whether a block is done: written and correct, or part of a file that is left out. Fails if
    /// the whole transfer must end.
    fn take_block(
        &self,
        place: Place,
        block: u32,
        hash: BlockHash,
        at: usize,
        piece: &mut [u8],
    ) -> Result<bool, Failure> {
        if self.store.failures.contains(place.entry) {
            return Ok(true);
        }
        let taken = match self.write_block(place, at, piece) {
            Ok(found) if found == hash => self.store.done(place.entry, block, hash).map(|()| true),
            Ok(_) => return Ok(false),
            Err(e) => Err(e),
        };
        match taken {
            Err(e) if e.fits_one_file => {
                self.store.leave_out(place.entry, &e.why);
                Ok(true)
            }
            taken => taken.map_err(|e| e.why.into()),
        }
    }

    fn write_block(
        &self,
        place: Place,
        at: usize,
        piece: &mut [u8],
    ) -> Result<BlockHash, WriteError> {
        let Place { entry, offset, len } = place;
        let mut hasher = BlockHasher::new(offset, self.tree.entries()[entry].bytes());
        for done in (0..len).step_by(piece.len()) {
            let bytes = (len - done).min(piece.len());
            let piece = &mut piece[..bytes];
            self.session.mr.read_at(at + done, piece);
            hasher.update(piece);
            self.store.write(entry, offset + done as u64, piece)?;
        }
        Ok(hasher.finish())
    }
}
