//! Files on their way in: what is there already, and blocks that arrive.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use indicatif::HumanBytes;

use super::Failure;
use super::digest::{BLOCK_BYTES, BlockHash};
use super::dir::{Dir, Found};
use super::files::{PIECE_BYTES, hash_block, read_block};
use super::message::{Claim, Entry};
use super::partial::{self, Record};
use super::tree::{Place, Tree};

/// Longest file of records that is read: more than the largest file could have.
const MAX_STATE_BYTES: u64 = 1 << 28;

/// Where a transfer's files go.
pub(super) struct Store<'a> {
    dir: &'a Dir,
    tree: &'a Tree,
    overwrite: bool,
    /// Files that were there before.
    existing: HashSet<usize>,
    /// Directories that were there before, which keep their permissions and times.
    kept_dirs: HashSet<usize>,
    /// Blocks that need not come.
    there: HashMap<u32, BlockHash>,
    /// Files of which something has come.
    open: Mutex<HashMap<usize, Arc<Partial>>>,
}

/// A file that is not complete.
struct Partial {
    part: File,
    /// Records; a file of one block needs none.
    state: Option<Mutex<File>>,
    missing: AtomicU32,
}

impl<'a> Store<'a> {
    /// Looks at what is there. Fails if something is in the way.
    pub(super) fn examine(
        dir: &'a Dir,
        tree: &'a Tree,
        overwrite: bool,
    ) -> Result<Store<'a>, Failure> {
        let mut store = Store {
            dir,
            tree,
            overwrite,
            existing: HashSet::new(),
            kept_dirs: HashSet::new(),
            there: HashMap::new(),
            open: Mutex::default(),
        };
        let mut piece = vec![0; PIECE_BYTES];
        for (index, entry) in tree.entries().iter().enumerate() {
            if !entry.is_file() {
                let made = dir.make_dir(entry);
                let made = made.map_err(|e| dir.failed("make the directory", entry, &e))?;
                if !made && !overwrite {
                    store.kept_dirs.insert(index);
                }
                continue;
            }
            match dir.find(entry).map_err(|e| dir.failed("look at", entry, &e))? {
                Found::Nothing => store.examine_partial(index, &mut piece),
                Found::File(stat) if stat.st_size as u64 == entry.bytes() => {
                    store.existing.insert(index);
                    store
                        .examine_existing(index, &mut piece)
                        .map_err(|e| dir.failed("read", entry, &e))?;
                }
                Found::File(_) if overwrite => {}
                Found::File(_) => return Err(in_the_way(entry)),
                Found::Other => {
                    let name = entry.name();
                    return Err(format!("{name} exists there and is no file: remove it").into());
                }
            }
        }
        Ok(store)
    }

    fn examine_existing(&mut self, index: usize, piece: &mut [u8]) -> io::Result<()> {
        let file = self.dir.open_file(&self.tree.entries()[index])?;
        for block in self.tree.blocks_of(index) {
            let Place { offset, .. } = self.tree.place(block);
            let bytes = self.tree.entries()[index].bytes();
            self.there.insert(block, hash_block(&file, offset, bytes, piece)?);
        }
        Ok(())
    }

    /// Takes over blocks of a partial file that are what their records say. Whatever is wrong with
    /// it, the file can be sent whole.
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

    /// The blocks that are there, for the sender to check.
    pub(super) fn claims(&self) -> Vec<Claim> {
        let mut claims: Vec<_> =
            self.there.iter().map(|(block, hash)| Claim { block: *block, hash: *hash }).collect();
        claims.sort_unstable_by_key(|claim| claim.block);
        claims
    }

    /// The sender says that its block is another; returns whether it was there.
    pub(super) fn deny(&mut self, block: u32) -> bool {
        self.there.remove(&block).is_some()
    }

    /// Hash of a block that is there.
    pub(super) fn there(&self, block: u32) -> Option<BlockHash> {
        self.there.get(&block).copied()
    }

    /// Makes ready for the blocks that will come. Fails if they would not fit, or if a file is in
    /// the way.
    pub(super) fn prepare(&self) -> Result<(), Failure> {
        // First of all: what is too much for the disk may be too much for tables of its blocks.
        self.check_room()?;
        for index in self.existing.iter().copied() {
            if !self.overwrite && self.missing(index) > 0 {
                return Err(in_the_way(&self.tree.entries()[index]));
            }
        }
        for (index, entry) in self.tree.entries().iter().enumerate() {
            // Of others the first block that comes makes the file.
            if entry.is_file() && self.missing(index) == 0 && !self.existing.contains(&index) {
                self.complete_at_once(index).map_err(|e| self.dir.failed("write", entry, &e))?;
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
            return Err(format!("{missing} are to come, but only {free} are free there").into());
        }
        Ok(())
    }

    /// An empty file, or a partial one that had everything but its name.
    fn complete_at_once(&self, index: usize) -> io::Result<()> {
        let entry = &self.tree.entries()[index];
        let part = self.dir.create_part(entry)?;
        part.set_len(entry.bytes())?;
        self.dir.publish(entry, &part, self.overwrite)
    }

    fn missing(&self, index: usize) -> u32 {
        let blocks = self.tree.blocks_of(index);
        blocks.filter(|block| !self.there.contains_key(block)).count() as u32
    }

    /// Writes a part of a block to its file.
    pub(super) fn write(&self, index: usize, offset: u64, bytes: &[u8]) -> Result<(), Failure> {
        let entry = &self.tree.entries()[index];
        let written = self.partial(index)?.part.write_all_at(bytes, offset);
        written.map_err(|e| self.dir.failed("write", entry, &e))
    }

    fn partial(&self, index: usize) -> Result<Arc<Partial>, Failure> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(partial) = open.get(&index) {
            return Ok(partial.clone());
        }
        let entry = &self.tree.entries()[index];
        let partial =
            self.begin(index).map_err(|e| self.dir.failed("write", entry, &e)).map(Arc::new)?;
        open.insert(index, partial.clone());
        Ok(partial)
    }

    /// Opens a partial file with what is right of it.
    fn begin(&self, index: usize) -> io::Result<Partial> {
        let entry = &self.tree.entries()[index];
        let blocks = self.tree.blocks_of(index);
        let part = self.dir.create_part(entry)?;
        part.try_lock().map_err(|_| {
            io::Error::new(io::ErrorKind::ResourceBusy, "another transfer is writing it")
        })?;
        let kept: Vec<Record> = blocks
            .clone()
            .filter_map(|block| Some((block, self.there(block)?)))
            .map(|(block, hash)| Record { block: block - blocks.start, hash })
            .collect();
        let replaces = self.existing.contains(&index);
        // Nothing of an older attempt stays but what is known to be right.
        let keep_bytes = if kept.is_empty() || replaces { 0 } else { entry.bytes() };
        if part.metadata()?.len() > keep_bytes {
            part.set_len(keep_bytes)?;
        }
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
        Ok(Partial { part, state, missing: AtomicU32::new(self.missing(index)) })
    }

    /// Takes over from a file that is to be replaced what both have.
    fn copy_existing(&self, entry: &Entry, part: &File, kept: &[Record]) -> io::Result<()> {
        let old = self.dir.open_file(entry)?;
        let mut piece = vec![0; PIECE_BYTES];
        for Record { block, hash } in kept {
            let offset = u64::from(*block) * BLOCK_BYTES;
            let found = read_block(&old, offset, entry.bytes(), &mut piece, |at, bytes| {
                part.write_all_at(bytes, offset + at)
            })?;
            if found != *hash {
                return Err(io::Error::other("somebody else has changed it meanwhile"));
            }
        }
        Ok(())
    }

    /// A block was written and is right; the last one of a file completes it.
    pub(super) fn done(&self, index: usize, block: u32, hash: BlockHash) -> Result<(), Failure> {
        let entry = &self.tree.entries()[index];
        let partial = self.partial(index)?;
        let failed = |e| self.dir.failed("write", entry, &e);
        if partial.missing.fetch_sub(1, Ordering::AcqRel) > 1 {
            if let Some(state) = &partial.state {
                let block = block - self.tree.blocks_of(index).start;
                let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
                state.write_all(&Record { block, hash }.to_bytes()).map_err(failed)?;
            }
            return Ok(());
        }
        self.dir.publish(entry, &partial.part, self.overwrite).map_err(failed)?;
        self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(&index);
        Ok(())
    }

    /// Gives new directories their permissions and times, the inner ones first.
    pub(super) fn finish_dirs(&self) -> Result<(), Failure> {
        for (index, entry) in self.tree.entries().iter().enumerate().rev() {
            if entry.is_file() || self.kept_dirs.contains(&index) {
                continue;
            }
            self.dir.finish_dir(entry).map_err(|e| self.dir.failed("finish", entry, &e))?;
        }
        Ok(())
    }
}

fn in_the_way(entry: &Entry) -> Failure {
    let name = entry.name();
    format!("{name} exists there and differs: remove it, or receive with --overwrite").into()
}
