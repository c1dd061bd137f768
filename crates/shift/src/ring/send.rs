//! Sends.

use core::ffi::c_uint;
use core::ptr::{NonNull, null_mut};

use bowline_verbs_types::{
    IBV_SEND_INLINE, IBV_SEND_SIGNALED, IBV_WC_COMP_SWAP, IBV_WC_FETCH_ADD, IBV_WC_RDMA_READ,
    IBV_WC_RDMA_WRITE, IBV_WC_SEND, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD,
    IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND,
    IBV_WR_SEND_WITH_IMM, IBV_WR_SEND_WITH_INV, ibv_mw_bind_info, ibv_send_wr, ibv_sge,
    ibv_wr_atomic, ibv_wr_bind_mw, ibv_wr_rdma, ibv_wr_target,
};

use super::cursor::{NONE, SendCursor, kind};
use super::forms::{Form, Forms};
use super::track::Track;
use super::{inline_bytes, pieces, translate};

/// A send in its short form. The field order lets the data path copy most of it 16 bytes at a time.
#[repr(C, packed(4))]
#[derive(Clone, Copy, Default)]
pub(super) struct Entry {
    /// Flags in the lowest bits, with [`WIDE`] and [`EXECUTED`]. Then a byte with the index of its
    /// form, and a byte with the index of the previous form. Both bytes are 0 if the form is the
    /// same as that of the previous request, so the data path writes only flags.
    tag: u32,
    imm: u32,
    remote_addr: u64,
    pub(super) addr: u64,
    length: u32,
    pub(super) wr_id: u64,
}

/// The flags that fit into the short form.
const FLAGS: u32 = 15;
/// Not in short form: see [`SendRing::wide`].
const WIDE: u32 = 16;
/// The peer executed it on the previous connection.
const EXECUTED: u32 = 32;

const _: () = assert!(size_of::<Entry>() == 36);

/// Maximum number of the peer's memory keys that are looked up for a queue pair.
const MAX_RKEYS: usize = 4096;

/// A request that does not fit into the short form: several gather entries, inline data, or an
/// atomic.
struct Wide {
    sges: Vec<ibv_sge>,
    /// Inline data, whose memory the program may reuse once the request is posted.
    inline: Vec<u8>,
    rkey: u32,
    opcode: u32,
    flags: u32,
    /// The operands of an atomic.
    operands: (u64, u64),
}

/// Whether a request can be posted on another device than the one it was meant for. Bind and
/// invalidate requests refer to objects that have no counterpart there.
pub(crate) fn is_movable(opcode: u32) -> bool {
    opcode <= IBV_WR_ATOMIC_FETCH_AND_ADD
}

fn is_atomic(opcode: u32) -> bool {
    matches!(opcode, IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD)
}

/// Whether a request consumes a receive at the peer.
fn is_two_sided(opcode: u32) -> bool {
    matches!(
        opcode,
        IBV_WR_SEND | IBV_WR_SEND_WITH_IMM | IBV_WR_RDMA_WRITE_WITH_IMM | IBV_WR_SEND_WITH_INV
    )
}

/// The index of the form in an entry's tag, if it has one.
fn named(tag: u32) -> Option<u8> {
    (tag >> 8 & 0xff).checked_sub(1).and_then(|place| u8::try_from(place).ok())
}

/// The index of the previous form, if an entry has a form.
fn before(tag: u32) -> u8 {
    (tag >> 16) as u8
}

/// Whether a request refers to memory of the peer.
fn is_remote(opcode: u32) -> bool {
    let plain = matches!(opcode, IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM | IBV_WR_RDMA_READ);
    plain || is_atomic(opcode)
}

/// The sends of a queue pair.
pub(crate) struct SendRing {
    track: Track<SendCursor>,
    /// Requests that do not fit into the short form, by index; empty while there were none.
    wide: Vec<Option<Box<Wide>>>,
    forms: Forms,
    /// Keys of the peer's memory that requests have used.
    rkeys: Vec<u32>,
    /// Flags that every request has, for a queue whose requests are all signaled.
    always: u32,
    /// Of the requests before `counted`: how many are signaled, and how many consume a receive at
    /// the peer. All later requests have the current form.
    counted: u64,
    signaled: u64,
    two_sided: u64,
    /// A request used a key of the peer's memory for the first time.
    pub(crate) has_new_rkey: bool,
}

/// A send to be posted again.
pub(crate) struct Resend {
    pub(crate) sges: Vec<ibv_sge>,
    pub(crate) wr: ibv_send_wr,
    /// Holds inline data, which must outlive the call.
    pub(super) inline: Vec<u8>,
}

impl Resend {
    /// The request. Its pointers are valid as long as `self` does not move.
    pub(crate) fn request(&mut self) -> &mut ibv_send_wr {
        if self.wr.send_flags & IBV_SEND_INLINE != 0 {
            let addr = self.inline.as_ptr() as u64;
            self.sges = vec![ibv_sge { addr, length: self.inline.len() as u32, lkey: 0 }];
        }
        self.wr.sg_list = self.sges.as_mut_ptr();
        self.wr.num_sge = self.sges.len() as i32;
        &mut self.wr
    }
}

impl SendRing {
    /// # Safety
    /// The cursor outlives the ring, and is used only by threads that may use the ring.
    pub(crate) unsafe fn new(
        capacity: u32,
        signals_all: bool,
        cursor: NonNull<SendCursor>,
    ) -> SendRing {
        let mut ring = SendRing {
            // SAFETY: upheld by the caller.
            track: unsafe { Track::new(capacity, cursor) },
            wide: Vec::new(),
            forms: Forms::default(),
            rkeys: Vec::new(),
            always: if signals_all { IBV_SEND_SIGNALED } else { 0 },
            counted: 0,
            signaled: 0,
            two_sided: 0,
            has_new_rkey: false,
        };
        ring.clear();
        ring
    }

    /// Resets the ring.
    pub(crate) fn clear(&mut self) {
        (self.counted, self.signaled, self.two_sided) = (0, 0, 0);
        self.track.cursor_mut().kind = NONE;
        self.track.clear();
    }

    /// Its size in bytes, without requests that do not fit into the short form.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.track.entries.len() * size_of::<Entry>()
            + self.forms.bytes()
            + self.rkeys.capacity() * size_of::<u32>()
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.track.capacity()
    }

    /// Number of requests so far.
    pub(crate) fn tail(&self) -> u64 {
        self.track.tail()
    }

    /// Wraps around: the cursor has reached the end.
    pub(crate) fn wrap(&mut self) {
        self.track.wrap();
    }

    /// The oldest request on record, whether it has completed or not.
    fn oldest(&self) -> u64 {
        self.tail().saturating_sub(self.capacity())
    }

    /// Number of signaled requests so far, and of those that consume a receive at the peer.
    fn totals(&self) -> (u64, u64) {
        let form = self.forms.get(self.forms.current);
        let since = self.tail() - self.counted;
        let (signaled, two_sided) = form.map_or((false, false), |form| {
            (form.flags & IBV_SEND_SIGNALED != 0, is_two_sided(form.opcode))
        });
        (self.signaled + since * u64::from(signaled), self.two_sided + since * u64::from(two_sided))
    }

    /// Records the requests of a list that the provider has accepted: those before `refused`, or
    /// all if it is null.
    ///
    /// # Safety
    /// It is a list that the program posts.
    pub(crate) unsafe fn remember_until(
        &mut self,
        mut wr: *const ibv_send_wr,
        refused: *const ibv_send_wr,
    ) {
        while !wr.is_null() && wr != refused {
            // SAFETY: upheld by the caller.
            unsafe {
                self.remember(wr);
                wr = (*wr).next;
            }
        }
    }

    /// Records a request.
    ///
    /// # Safety
    /// It is a request that the program posts, with its list.
    pub(crate) unsafe fn remember(&mut self, wr: *const ibv_send_wr) {
        // SAFETY: upheld by the caller.
        unsafe {
            if !self.track.cursor_mut().note::<false>(wr) {
                return self.remember_other(wr);
            }
        }
        self.track.advance();
    }

    /// Like [`SendRing::remember`], for a request that has another form than the previous one, or
    /// that does not fit into the short form.
    #[cold]
    #[inline(never)]
    unsafe fn remember_other(&mut self, wr: *const ibv_send_wr) {
        // SAFETY: the program passed a valid request.
        let (kind, wr) = unsafe { (kind(wr), &*wr) };
        let (opcode, flags) = (wr.opcode, wr.send_flags | self.always);
        // SAFETY: plain integers. What a request of another kind holds there is not used.
        let (rdma, atomic) = unsafe { (wr.wr.rdma, wr.wr.atomic) };
        // SAFETY: the program passed a valid list.
        let sges = unsafe { pieces(wr.sg_list, wr.num_sge) };
        let rkey = match is_remote(opcode) {
            true if is_atomic(opcode) => atomic.rkey,
            true => rdma.rkey,
            false => 0,
        };
        self.learn_rkey(opcode, rkey);
        let sge = sges.first().copied().unwrap_or_default();
        let form = Form { opcode, flags, lkey: sge.lkey, rkey };
        let place = match sges {
            [_] if opcode <= IBV_WR_RDMA_READ && flags <= FLAGS => self.place_of_form(form),
            _ => None,
        };
        (self.signaled, self.two_sided) = self.totals();
        self.signaled += u64::from(flags & IBV_SEND_SIGNALED != 0);
        self.two_sided += u64::from(is_two_sided(opcode));
        let tag = if let Some(place) = place {
            let before = core::mem::replace(&mut self.forms.current, place);
            let cursor = self.track.cursor_mut();
            (cursor.kind, cursor.lkey, cursor.rkey) = (kind, sge.lkey, rdma.rkey);
            (u32::from(place) + 1) << 8 | u32::from(before) << 16
        } else {
            self.keep_whole(sges, form, (atomic.compare_add, atomic.swap));
            WIDE
        };
        let place = self.track.place();
        self.track.entries[place] = Entry {
            tag: tag | flags & FLAGS,
            imm: wr.imm_data,
            remote_addr: rdma.remote_addr,
            addr: sge.addr,
            length: sge.length,
            wr_id: wr.wr_id,
        };
        self.track.advance();
        self.counted = self.tail();
    }

    /// Stores what does not fit into the short form.
    fn keep_whole(&mut self, sges: &[ibv_sge], form: Form, operands: (u64, u64)) {
        let Form { opcode, flags, rkey, .. } = form;
        if self.wide.is_empty() {
            self.wide.resize_with(self.track.entries.len(), || None);
        }
        let (sges, inline) = match flags & IBV_SEND_INLINE {
            0 => (sges.to_vec(), Vec::new()),
            _ => (Vec::new(), inline_bytes(sges)),
        };
        let place = self.track.place();
        self.wide[place] = Some(Box::new(Wide { sges, inline, rkey, opcode, flags, operands }));
    }

    fn learn_rkey(&mut self, opcode: u32, rkey: u32) {
        if is_remote(opcode) && self.rkeys.len() < MAX_RKEYS && !self.rkeys.contains(&rkey) {
            self.rkeys.push(rkey);
            self.has_new_rkey = true;
        }
    }

    fn place_of_form(&mut self, form: Form) -> Option<u8> {
        let (from, to, place) = (self.oldest(), self.tail(), self.track.place());
        let entries = &self.track.entries;
        self.forms.place_of(form, |used| {
            for number in from..to {
                let tag = entries[entries.back(place, to - number)].tag;
                if let Some(named) = named(tag) {
                    used[usize::from(named)] = true;
                    used[usize::from(before(tag))] = true;
                }
            }
        })
    }

    /// Keys of the peer's memory that requests have used.
    pub(crate) fn rkeys(&self) -> &[u32] {
        &self.rkeys
    }

    /// Removes the newest request: the provider did not accept it.
    pub(crate) fn undo(&mut self) {
        let newest = self.tail() - 1;
        let (signaled, two_sided) = self.totals();
        self.signaled = signaled - u64::from(self.is_signaled(newest));
        self.two_sided = two_sided - u64::from(is_two_sided(self.opcode(newest)));
        let place = self.track.place_of_number(newest);
        let tag = self.track.entries[place].tag;
        if named(tag).is_some() {
            self.forms.current = before(tag);
            // Make the next request store its form again.
            self.track.cursor_mut().kind = NONE;
        }
        self.track.step_back();
        self.counted = newest;
    }

    fn tag(&self, number: u64) -> u32 {
        self.track.entries[self.track.place_of_number(number)].tag
    }

    /// The form of a request in short form. The newest entry up to this request that has a form
    /// determines it; otherwise the next one that has a form also says which form preceded it.
    fn form(&self, number: u64) -> Option<Form> {
        let told = (self.oldest()..=number).rev().find_map(|number| named(self.tag(number)));
        let later = || {
            let mut behind = (number + 1..self.tail()).map(|number| self.tag(number));
            behind.find(|tag| named(*tag).is_some()).map(before)
        };
        self.forms.get(told.or_else(later).unwrap_or(self.forms.current))
    }

    fn wide(&self, number: u64) -> Option<&Wide> {
        let place = self.track.place_of_number(number);
        let is_wide = self.track.entries[place].tag & WIDE != 0;
        is_wide.then(|| self.wide.get(place)?.as_deref()).flatten()
    }

    /// The first request that is not known to have completed, given that `done` signaled requests
    /// have. `None` if more requests are outstanding than are on record.
    pub(crate) fn head(&self, done: u64) -> Option<u64> {
        let outstanding = self.totals().0.saturating_sub(done);
        let oldest = self.oldest();
        let (mut number, mut seen) = (self.tail(), 0);
        while number > oldest {
            if self.is_signaled(number - 1) {
                if seen == outstanding {
                    return Some(number);
                }
                seen += 1;
            }
            number -= 1;
        }
        (seen == outstanding).then_some(number)
    }

    pub(crate) fn is_signaled(&self, number: u64) -> bool {
        (self.tag(number) | self.always) & IBV_SEND_SIGNALED != 0
    }

    fn opcode(&self, number: u64) -> u32 {
        match self.wide(number) {
            Some(wide) => wide.opcode,
            None => self.form(number).map_or(IBV_WR_RDMA_WRITE, |form| form.opcode),
        }
    }

    pub(crate) fn is_atomic(&self, number: u64) -> bool {
        is_atomic(self.opcode(number))
    }

    pub(crate) fn is_movable(&self, number: u64) -> bool {
        is_movable(self.opcode(number))
    }

    pub(crate) fn wr_id(&self, number: u64) -> u64 {
        self.track.entries[self.track.place_of_number(number)].wr_id
    }

    /// The opcode of a request's completion.
    pub(crate) fn wc_opcode(&self, number: u64) -> c_uint {
        match self.opcode(number) {
            IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM => IBV_WC_RDMA_WRITE,
            IBV_WR_RDMA_READ => IBV_WC_RDMA_READ,
            IBV_WR_ATOMIC_CMP_AND_SWP => IBV_WC_COMP_SWAP,
            IBV_WR_ATOMIC_FETCH_AND_ADD => IBV_WC_FETCH_ADD,
            _ => IBV_WC_SEND,
        }
    }

    /// The next signaled request from `head` on, whose completion comes next.
    pub(crate) fn next_signaled(&self, head: u64) -> Option<u64> {
        (head..self.tail()).find(|number| self.is_signaled(*number))
    }

    /// Marks the requests from `head` on that the peer has executed: as many two-sided ones as it
    /// has counted, and all before them except READs, whose data may have been lost.
    pub(crate) fn mark_executed(&mut self, head: u64, received: u64) {
        let outstanding =
            (head..self.tail()).filter(|number| is_two_sided(self.opcode(*number))).count() as u64;
        let mut count = self.totals().1 - outstanding;
        let mut executed = head;
        for number in head..self.tail() {
            if is_two_sided(self.opcode(number)) {
                count += 1;
                if count > received {
                    break;
                }
                executed = number + 1;
            }
        }
        for number in head..executed {
            if self.opcode(number) != IBV_WR_RDMA_READ {
                let place = self.track.place_of_number(number);
                self.track.entries[place].tag |= EXECUTED;
            }
        }
    }

    /// A request to be posted again, with the keys translated by `local` and `remote`; `None` if
    /// one of them is unknown. A request that was already executed becomes an empty WRITE, which
    /// completes in its turn and touches nothing.
    pub(crate) fn resend(
        &self,
        number: u64,
        local: impl Fn(u32) -> Option<u32>,
        remote: impl Fn(u32) -> Option<u32>,
    ) -> Option<Resend> {
        let body = self.track.entries[self.track.place_of_number(number)];
        let wide = self.wide(number);
        let (opcode, flags, lkey, rkey) = match (wide, self.form(number)) {
            (Some(wide), _) => (wide.opcode, wide.flags, 0, wide.rkey),
            (None, form) => {
                let form = form?;
                (form.opcode, form.flags, form.lkey, form.rkey)
            }
        };
        let mut wr = ibv_send_wr {
            wr_id: body.wr_id,
            next: null_mut(),
            sg_list: null_mut(),
            num_sge: 0,
            opcode,
            send_flags: flags,
            imm_data: body.imm,
            wr: ibv_wr_target { rdma: ibv_wr_rdma { remote_addr: body.remote_addr, rkey: 0 } },
            xrc_remote_srqn: 0,
            bind_mw: ibv_wr_bind_mw {
                mw: null_mut(),
                rkey: 0,
                bind_info: ibv_mw_bind_info {
                    mr: null_mut(),
                    addr: 0,
                    length: 0,
                    mw_access_flags: 0,
                },
            },
        };
        if body.tag & EXECUTED != 0 {
            wr.opcode = IBV_WR_RDMA_WRITE;
            wr.send_flags &= IBV_SEND_SIGNALED;
            return Some(Resend { sges: Vec::new(), wr, inline: Vec::new() });
        }
        let (sges, inline) = match wide {
            Some(wide) => (wide.sges.clone(), wide.inline.clone()),
            None => {
                let sge = ibv_sge { addr: body.addr, length: body.length, lkey };
                (vec![sge], Vec::new())
            }
        };
        let sges = translate(sges, local)?;
        if is_remote(wr.opcode) {
            let (remote_addr, rkey) = (body.remote_addr, remote(rkey)?);
            wr.wr = match wide.map(|wide| wide.operands) {
                Some((compare_add, swap)) if is_atomic(wr.opcode) => {
                    ibv_wr_target { atomic: ibv_wr_atomic { remote_addr, compare_add, swap, rkey } }
                }
                _ => ibv_wr_target { rdma: ibv_wr_rdma { remote_addr, rkey } },
            };
        }
        Some(Resend { sges, wr, inline })
    }
}
