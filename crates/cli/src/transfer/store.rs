//! Files at the receiver: existing ones, and blocks that arrive.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::HumanBytes;

use super::Failure;
use super::digest::{BLOCK_BYTES, BlockHash};
use super::dir::{Dir, Found};
use super::failures::Failures;
use super::files::{PIECE_BYTES, hash_block, read_block};
use super::filter::Filter;
use super::message::{Claim, Entry, Kind};
use super::partial::{self, Record};
use super::tree::{Place, Tree};

/// Maximum bytes of a record file that are read: more than the largest file could have.
const MAX_STATE_BYTES: u64 = 1 << 28;

/// How long a transfer waits in total for others that write the same files, and how often it
/// checks.
const BUSY_PATIENCE: Duration = Duration::from_secs(3);
const BUSY_TICK: Duration = Duration::from_millis(10);

/// Holes consist of whole pages.
const PAGE_BYTES: usize = 4096;

/// The files of one transfer.
pub(super) struct Store<'a> {
    dir: &'a Dir,
    tree: &'a Tree,
    /// Change nothing.
    dry_run: bool,
    /// The deadline for waiting for other transfers, once one is in the way.
    busy_until: OnceLock<Instant>,
    /// Entries that the receiver cannot take.
    pub(super) failures: Failures,
    /// Files that existed before, and their lengths.
    existing: HashMap<usize, u64>,
    /// Directories that existed before, which keep their permissions and times.
    kept_dirs: HashSet<usize>,
    /// Blocks that exist already and need not be sent.
    there: HashMap<u32, BlockHash>,
    /// Files of which some blocks have arrived.
    open: Mutex<HashMap<usize, Arc<Partial>>>,
}

/// Why a file could not be written.
#[derive(Debug)]
pub(super) struct WriteError {
    pub(super) why: String,
    /// Whether the error concerns only this file, so that others may succeed.
    pub(super) fits_one_file: bool,
}

/// An incomplete file.
struct Partial {
    part: File,
    /// It was empty, so zeros need not be written.
    holes: bool,
    /// Held while writing. File systems let one thread write to a file at a time, and the others
    /// would wait for it in a loop that keeps a core from moving packets.
    writing: Mutex<()>,
    /// The records; a file with one block needs none.
    state: Option<Mutex<File>>,
    missing: AtomicU32,
}

impl<'a> Store<'a> {
    /// Examines what exists. Leaves out an entry if something is in its way.
    pub(super) fn examine(dir: &'a Dir, tree: &'a Tree, dry_run: bool) -> Store<'a> {
        let mut store = Store {
            dir,
            tree,
            dry_run,
            busy_until: OnceLock::new(),
            failures: Failures::default(),
            existing: HashMap::new(),
            kept_dirs: HashSet::new(),
            there: HashMap::new(),
            open: Mutex::default(),
        };
        let mut piece = vec![0; PIECE_BYTES];
        for index in 0..tree.entries().len() {
            if let Err(why) = store.examine_entry(index, &mut piece) {
                store.failures.add(index, why);
            }
        }
        store
    }

    fn examine_entry(&mut self, index: usize, piece: &mut [u8]) -> Result<(), String> {
        let (dir, entry) = (self.dir, &self.tree.entries()[index]);
        if entry.is_dir() {
            return self.examine_dir(index);
        }
        let found = match dir.find(entry) {
            // Its directory does not exist yet.
            Err(e) if self.dry_run && e.kind() == io::ErrorKind::NotFound => Found::Nothing,
            found => found.map_err(|e| dir.why("look at", entry, &e))?,
        };
        let overwrite = dir.rights.overwrite;
        match (found, &entry.kind) {
            (Found::Nothing, Kind::File { .. }) => self.examine_partial(index, piece),
            (Found::File(stat), Kind::File { bytes, .. }) => {
                let len = stat.st_size as u64;
                if len != *bytes && !overwrite {
                    return Err(in_the_way(entry));
                }
                self.existing.insert(index, len);
                self.examine_existing(index, len, piece).map_err(|e| dir.why("read", entry, &e))?;
            }
            // Links are compared when they are created.
            (Found::Nothing | Found::Symlink, Kind::Symlink(_)) => {}
            (Found::Nothing | Found::File(_), Kind::HardLink(_)) => {}
            (Found::Other, _) => {
                let name = entry.name();
                return Err(format!("{name} exists there and is not a file: remove it"));
            }
            (Found::Symlink | Found::File(_), _) if overwrite => {}
            (Found::Symlink | Found::File(_), _) => return Err(in_the_way(entry)),
            (Found::Nothing, Kind::Directory) => {}
        }
        Ok(())
    }

    fn examine_dir(&mut self, index: usize) -> Result<(), String> {
        let entry = &self.tree.entries()[index];
        if self.dry_run {
            return Ok(());
        }
        let made = self.dir.make_dir(entry);
        let made = made.map_err(|e| self.dir.why("make the directory", entry, &e))?;
        if !made && !self.dir.rights.overwrite {
            self.kept_dirs.insert(index);
        }
        Ok(())
    }

    /// Hashes the blocks of an existing file that are as long as the entry's blocks.
    fn examine_existing(&mut self, index: usize, len: u64, piece: &mut [u8]) -> io::Result<()> {
        let entry = &self.tree.entries()[index];
        let file = self.dir.open_file(entry)?;
        for block in self.tree.blocks_of(index) {
            let Place { offset, len: block_len, .. } = self.tree.place(block);
            if offset + block_len as u64 <= len {
                self.there.insert(block, hash_block(&file, offset, entry.bytes(), piece)?);
            }
        }
        Ok(())
    }

    /// Adopts the blocks of a partial file that match their records. Errors do not matter, because
    /// the whole file can be sent instead.
    fn examine_partial(&mut self, index: usize, piece: &mut [u8]) {
        let entry = &self.tree.entries()[index];
        let Ok((part, state)) = self.dir.open_partial(entry) else { return };
        let mut bytes = Vec::new();
        if state.take(MAX_STATE_BYTES).read_to_end(&mut bytes).is_err() {
            return;
        }
        let first = self.tree.blocks_of(index).start;
        for Record { block, hash } in partial::records(&bytes, entry.bytes(), entry.mtime) {
            let offset = u64::from(block) * BLOCK_BYTES;
            if hash_block(&part, offset, entry.bytes(), piece).is_ok_and(|found| found == hash) {
                self.there.insert(first + block, hash);
            }
        }
    }

    /// The existing blocks, for the sender to check.
    pub(super) fn claims(&self) -> Vec<Claim> {
        let mut claims: Vec<_> =
            self.there.iter().map(|(block, hash)| Claim { block: *block, hash: *hash }).collect();
        claims.sort_unstable_by_key(|claim| claim.block);
        claims
    }

    /// The sender denies a claim. Returns whether the block was claimed.
    pub(super) fn deny(&mut self, block: u32) -> bool {
        self.there.remove(&block).is_some()
    }

    /// The hash of an existing block.
    pub(super) fn there(&self, block: u32) -> Option<BlockHash> {
        self.there.get(&block).copied()
    }

    /// Prepares for the blocks that will arrive. Fails if they would not fit.
    pub(super) fn prepare(&self) -> Result<(), Failure> {
        // Check this first: what is too large for the disk may be too large for tables of blocks,
        // too.
        self.check_room()?;
        for (index, len) in &self.existing {
            let entry = &self.tree.entries()[*index];
            let is_same = *len == entry.bytes() && self.missing(*index) == 0;
            if !is_same && !self.dir.rights.overwrite {
                self.failures.add(*index, in_the_way(entry));
            }
        }
        for (index, entry) in self.tree.entries().iter().enumerate() {
            let is_same = self.existing.get(&index).is_some_and(|len| *len == entry.bytes());
            let is_due = entry.is_file() && self.missing(index) == 0 && !is_same;
            // Other files are created when their first block arrives.
            if is_due && !self.dry_run && !self.failures.contains(index) {
                let completed = self.complete_at_once(index);
                completed.unwrap_or_else(|e| {
                    self.failures.add(index, self.dir.why("write", entry, &e));
                });
            }
        }
        Ok(())
    }

    fn check_room(&self) -> Result<(), Failure> {
        let there: u64 = self.there.keys().map(|block| self.tree.place(*block).len as u64).sum();
        let missing = self.tree.bytes() - there;
        if let Ok(free) = self.dir.free_bytes()
            && free < missing
        {
            let (missing, free) = (HumanBytes(missing), HumanBytes(free));
            return Err(format!("not enough space: {missing} needed, {free} free").into());
        }
        Ok(())
    }

    /// Completes an empty file, a partial file that lacks only its name, or a file that became
    /// shorter.
    fn complete_at_once(&self, index: usize) -> io::Result<()> {
        let entry = &self.tree.entries()[index];
        let Partial { part, .. } = self.begin(index)?;
        part.set_len(entry.bytes())?;
        self.dir.publish(entry, &part)
    }

    fn missing(&self, index: usize) -> u32 {
        let blocks = self.tree.blocks_of(index);
        blocks.filter(|block| !self.there.contains_key(block)).count() as u32
    }

    /// Writes a part of a block to its file.
    pub(super) fn write(&self, index: usize, offset: u64, bytes: &[u8]) -> Result<(), WriteError> {
        let entry = &self.tree.entries()[index];
        let partial = self.partial(index)?;
        let _alone = partial.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let written = if partial.holes {
            write_sparse(&partial.part, offset, bytes)
        } else {
            partial.part.write_all_at(bytes, offset)
        };
        written.map_err(|e| self.failed(entry, &e))
    }

    fn failed(&self, entry: &Entry, e: &io::Error) -> WriteError {
        use io::ErrorKind::{QuotaExceeded, ReadOnlyFilesystem, StorageFull};
        // These errors will also affect the next file.
        let fits_one_file = !matches!(e.kind(), StorageFull | QuotaExceeded | ReadOnlyFilesystem);
        WriteError { why: self.dir.why("write", entry, e), fits_one_file }
    }

    fn partial(&self, index: usize) -> Result<Arc<Partial>, WriteError> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(partial) = open.get(&index) {
            return Ok(partial.clone());
        }
        let entry = &self.tree.entries()[index];
        let partial = self.begin(index).map_err(|e| self.failed(entry, &e)).map(Arc::new)?;
        open.insert(index, partial.clone());
        Ok(partial)
    }

    /// Makes sure that no other transfer writes a partial file. A transfer whose sender has
    /// disconnected takes a moment to end.
    fn lock(&self, part: &File) -> io::Result<()> {
        while part.try_lock().is_err() {
            // If many files are busy, only the first one is waited for this long.
            let deadline = *self.busy_until.get_or_init(|| Instant::now() + BUSY_PATIENCE);
            if Instant::now() >= deadline {
                let why = "another transfer is writing it";
                return Err(io::Error::new(io::ErrorKind::ResourceBusy, why));
            }
            thread::sleep(BUSY_TICK);
        }
        Ok(())
    }

    /// Opens a partial file and keeps the blocks that are correct.
    fn begin(&self, index: usize) -> io::Result<Partial> {
        let entry = &self.tree.entries()[index];
        let blocks = self.tree.blocks_of(index);
        let part = self.dir.create_part(entry)?;
        self.lock(&part)?;
        let kept: Vec<Record> = blocks
            .clone()
            .filter_map(|block| Some((block, self.there(block)?)))
            .map(|(block, hash)| Record { block: block - blocks.start, hash })
            .collect();
        let replaces = self.existing.contains_key(&index);
        // Of an earlier attempt, keep only what is known to be correct.
        let keep_bytes = if kept.is_empty() || replaces { 0 } else { entry.bytes() };
        if part.metadata()?.len() > keep_bytes {
            part.set_len(keep_bytes)?;
        }
        let is_sparse = matches!(entry.kind, Kind::File { sparse: true, .. });
        let holes = is_sparse && part.metadata()?.len() == 0;
        if replaces {
            self.copy_existing(entry, &part, &kept)?;
        }
        let state = if blocks.len() > 1 {
            let mut state = self.dir.create_state(entry)?;
            state.set_len(0)?;
            let mut bytes = partial::header(entry.bytes(), entry.mtime).to_vec();
            kept.iter().for_each(|record| bytes.extend(record.to_bytes()));
            state.write_all(&bytes)?;
            Some(Mutex::new(state))
        } else {
            None
        };
        let missing = AtomicU32::new(self.missing(index));
        Ok(Partial { part, holes, writing: Mutex::default(), state, missing })
    }

    /// Copies the blocks that both versions share from the file that is replaced.
    fn copy_existing(&self, entry: &Entry, part: &File, kept: &[Record]) -> io::Result<()> {
        let old = self.dir.open_file(entry)?;
        let mut piece = vec![0; PIECE_BYTES];
        for Record { block, hash } in kept {
            let offset = u64::from(*block) * BLOCK_BYTES;
            let found = read_block(&old, offset, entry.bytes(), &mut piece, |at, bytes| {
                part.write_all_at(bytes, offset + at)
            })?;
            if found != *hash {
                return Err(io::Error::other("it changed during the transfer"));
            }
        }
        Ok(())
    }

    /// Records a block that was written and is correct. The last block completes the file.
    pub(super) fn done(&self, index: usize, block: u32, hash: BlockHash) -> Result<(), WriteError> {
        let entry = &self.tree.entries()[index];
        let partial = self.partial(index)?;
        let failed = |e| self.failed(entry, &e);
        if partial.missing.fetch_sub(1, Ordering::AcqRel) > 1 {
            if let Some(state) = &partial.state {
                let block = block - self.tree.blocks_of(index).start;
                let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
                state.write_all(&Record { block, hash }.to_bytes()).map_err(failed)?;
            }
            return Ok(());
        }
        if partial.holes {
            partial.part.set_len(entry.bytes()).map_err(failed)?;
        }
        self.dir.publish(entry, &partial.part).map_err(failed)?;
        self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(&index);
        Ok(())
    }

    /// Leaves out a file. The blocks that have arrived stay for the next attempt.
    pub(super) fn leave_out(&self, index: usize, why: &str) {
        self.failures.add(index, why);
        self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(&index);
    }

    /// Creates links, now that the files exist.
    pub(super) fn finish_links(&self) {
        for (index, entry) in self.tree.entries().iter().enumerate() {
            if self.failures.contains(index) {
                continue;
            }
            let made = match &entry.kind {
                Kind::Symlink(target) => self.dir.symlink(entry, target),
                Kind::HardLink(first) if self.failures.contains(*first as usize) => {
                    Err(io::Error::other("the file that it links to was left out"))
                }
                Kind::HardLink(first) => {
                    self.dir.hard_link(entry, &self.tree.entries()[*first as usize])
                }
                _ => continue,
            };
            match made {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                    self.failures.add(index, in_the_way(entry));
                }
                Err(e) => self.failures.add(index, self.dir.why("make the link", entry, &e)),
                Ok(()) => {}
            }
        }
    }

    /// Deletes what the sender does not have, in directories that it sent. Returns the paths.
    /// Deletes nothing if an entry was left out: the sender may have been unable to list something.
    pub(super) fn remove_others(&self, filter: &Filter) -> Vec<Vec<u8>> {
        if !self.failures.is_empty() {
            return Vec::new();
        }
        let entries = self.tree.entries();
        let sent: HashSet<&[u8]> = entries.iter().map(|entry| &entry.path[..]).collect();
        let mut removed = Vec::new();
        for (index, entry) in entries.iter().enumerate().filter(|(_, entry)| entry.is_dir()) {
            let keep = |path: &[u8]| sent.contains(path);
            match self.dir.remove_others(entry, keep, filter, self.dry_run) {
                Ok(paths) => removed.extend(paths),
                Err(e) => self.failures.add(index, self.dir.why("remove from", entry, &e)),
            }
        }
        removed
    }

    /// Sets the permissions and times of new directories, the inner ones first.
    pub(super) fn finish_dirs(&self) {
        for (index, entry) in self.tree.entries().iter().enumerate().rev() {
            let is_done = !entry.is_dir() || self.kept_dirs.contains(&index);
            if is_done || self.failures.contains(index) {
                continue;
            }
            if let Err(e) = self.dir.finish_dir(entry) {
                self.failures.add(index, self.dir.why("finish", entry, &e));
            }
        }
    }
}

/// Writes everything except pages of zeros.
fn write_sparse(file: &File, offset: u64, bytes: &[u8]) -> io::Result<()> {
    let is_zero = |page: &&[u8]| page.iter().all(|byte| *byte == 0);
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        let zero: usize = rest.chunks(PAGE_BYTES).take_while(is_zero).map(<[u8]>::len).sum();
        let data: usize = rest[zero..]
            .chunks(PAGE_BYTES)
            .take_while(|page| !is_zero(page))
            .map(<[u8]>::len)
            .sum();
        let start = at + zero;
        file.write_all_at(&bytes[start..start + data], offset + start as u64)?;
        at = start + data;
    }
    Ok(())
}

fn in_the_way(entry: &Entry) -> String {
    let name = entry.name();
    format!("{name} exists there and differs: remove it, or receive with --overwrite")
}
