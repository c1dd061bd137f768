//! Sends.

use core::ffi::c_uint;
use core::ptr::null_mut;

use bowline_verbs_types::{
    IBV_SEND_INLINE, IBV_SEND_SIGNALED, IBV_WC_COMP_SWAP, IBV_WC_FETCH_ADD, IBV_WC_RDMA_READ,
    IBV_WC_RDMA_WRITE, IBV_WC_SEND, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD,
    IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND,
    IBV_WR_SEND_WITH_IMM, IBV_WR_SEND_WITH_INV, ibv_mw_bind_info, ibv_send_wr, ibv_sge,
    ibv_wr_bind_mw, ibv_wr_rdma, ibv_wr_target,
};

use super::{inline_bytes, place_of, translate};

/// A send in its short form.
#[repr(C, packed(4))]
#[derive(Clone, Copy, Default)]
struct Entry {
    addr: u64,
    length: u32,
    imm: u32,
    wr_id: u64,
    remote_addr: u64,
    /// Opcode and flags (four bits each), the places of its keys, and [`WIDE`], [`EXECUTED`].
    tag: [u8; 4],
}

/// Not in this form: see [`SendRing::wide`].
const WIDE: u8 = 1;
/// The peer has carried it out on the connection before.
const EXECUTED: u8 = 2;

const _: () = assert!(size_of::<Entry>() == 36);

/// A request that does not fit the short form: several pieces of memory, inline bytes, atomics.
struct Wide {
    sges: Vec<ibv_sge>,
    /// Bytes that the program may reuse once they are posted.
    inline: Vec<u8>,
    rkey: u32,
    opcode: u32,
    flags: u32,
}

/// Whether a request takes a receive at the peer.
fn is_two_sided(opcode: u32) -> bool {
    matches!(
        opcode,
        IBV_WR_SEND | IBV_WR_SEND_WITH_IMM | IBV_WR_RDMA_WRITE_WITH_IMM | IBV_WR_SEND_WITH_INV
    )
}

/// 1 if a request has a completion, by its tag.
fn is_signaled(tag: u32) -> u64 {
    u64::from(tag >> 5 & 1)
}

/// Whether a request names memory of the peer.
fn is_remote(opcode: u32) -> bool {
    matches!(opcode, IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM | IBV_WR_RDMA_READ)
}

/// The sends of a queue pair.
pub(crate) struct SendRing {
    entries: Box<[Entry]>,
    /// Requests in no short form, by their place; empty as long as there was none.
    wide: Vec<Option<Box<Wide>>>,
    lkeys: Vec<u32>,
    rkeys: Vec<u32>,
    form: Form,
    /// Flags of every request: of a queue whose requests all have completions.
    always: u32,
    /// Where the next one goes.
    place: usize,
    /// Requests so far, those with a completion, and those that take a receive at the peer.
    pub(crate) tail: u64,
    signaled: u64,
    two_sided: u64,
    /// A key of the peer's memory was named for the first time.
    pub(crate) has_new_rkey: bool,
}

/// What the request before had besides addresses. The next one mostly has the same.
struct Form {
    opcode: u32,
    flags: u32,
    lkey: u32,
    rkey: u32,
    tag: u32,
    /// 1 if it has a completion, and 1 if it takes a receive.
    signaled: u64,
    two_sided: u64,
}

/// A send as it is posted again.
pub(crate) struct Resend {
    pub(crate) sges: Vec<ibv_sge>,
    pub(crate) wr: ibv_send_wr,
    /// Where inline bytes are, which must outlive the call.
    pub(super) inline: Vec<u8>,
}

impl Resend {
    /// The request, whose pointers are good as long as `self` stays where it is.
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
    pub(crate) fn new(capacity: u32, signals_all: bool) -> SendRing {
        let capacity = capacity.max(1) as usize;
        SendRing {
            entries: vec![Entry::default(); capacity].into_boxed_slice(),
            wide: Vec::new(),
            lkeys: Vec::new(),
            rkeys: Vec::new(),
            // An opcode that no request has.
            form: Form {
                opcode: u32::MAX,
                flags: 0,
                lkey: 0,
                rkey: 0,
                tag: 0,
                signaled: 0,
                two_sided: 0,
            },
            always: if signals_all { IBV_SEND_SIGNALED } else { 0 },
            place: 0,
            tail: 0,
            signaled: 0,
            two_sided: 0,
            has_new_rkey: false,
        }
    }

    /// Bytes that it takes, without requests in no short form.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.entries)
            + (self.lkeys.capacity() + self.rkeys.capacity()) * size_of::<u32>()
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.entries.len() as u64
    }

    /// Remembers a request that differs from the one before in addresses alone; otherwise does
    /// nothing and says so.
    ///
    /// # Safety
    /// It is one that the program posts, with its list.
    #[inline(always)]
    pub(crate) unsafe fn remember_alike(&mut self, wr: *const ibv_send_wr) -> bool {
        // SAFETY: the program's own request.
        let wr = unsafe { &*wr };
        let form = &self.form;
        if wr.num_sge != 1 || wr.opcode != form.opcode || wr.send_flags != form.flags {
            return false;
        }
        // SAFETY: it has one piece of memory. What a SEND has for a key is compared, not used.
        let (sge, rdma) = unsafe { (*wr.sg_list, wr.wr.rdma) };
        if sge.lkey != form.lkey || rdma.rkey != form.rkey {
            return false;
        }
        let entry = Entry {
            addr: sge.addr,
            length: sge.length,
            imm: wr.imm_data,
            wr_id: wr.wr_id,
            remote_addr: rdma.remote_addr,
            tag: form.tag.to_le_bytes(),
        };
        self.signaled += form.signaled;
        self.two_sided += form.two_sided;
        self.put(entry);
        true
    }

    #[inline(always)]
    fn put(&mut self, entry: Entry) {
        let place = self.place;
        // SAFETY: the place is one of the ring's: it is only ever set below, and in `undo`.
        unsafe { *self.entries.get_unchecked_mut(place) = entry };
        self.place = if place + 1 == self.entries.len() { 0 } else { place + 1 };
        self.tail += 1;
    }

    /// Remembers the requests of a list that the provider has taken: those before `refused`, or all
    /// if that is null.
    ///
    /// # Safety
    /// It is a list that the program posts.
    pub(crate) unsafe fn remember_until(
        &mut self,
        mut wr: *const ibv_send_wr,
        refused: *const ibv_send_wr,
    ) {
        while !wr.is_null() && wr != refused {
            // SAFETY: the caller's promise.
            unsafe {
                self.remember(wr);
                wr = (*wr).next;
            }
        }
    }

    /// Remembers a request.
    ///
    /// # Safety
    /// As above.
    pub(crate) unsafe fn remember(&mut self, wr: *const ibv_send_wr) {
        // SAFETY: as above.
        unsafe {
            if !self.remember_alike(wr) {
                self.remember_other(&*wr);
            }
        }
    }

    /// As [`SendRing::remember`], with other keys than the request before, or in no short form.
    #[cold]
    #[inline(never)]
    unsafe fn remember_other(&mut self, wr: &ibv_send_wr) {
        let (opcode, flags) = (wr.opcode, wr.send_flags | self.always);
        // SAFETY: what a request of another kind has there is not looked at.
        let rdma = unsafe { wr.wr.rdma };
        let sges: &[ibv_sge] = match usize::try_from(wr.num_sge) {
            Ok(count) if count > 0 => {
                // SAFETY: the program's own list.
                unsafe { core::slice::from_raw_parts(wr.sg_list, count) }
            }
            _ => &[],
        };
        let fits = opcode <= IBV_WR_RDMA_READ && flags < IBV_SEND_INLINE;
        let remote = self.place_of_rkey(opcode, rdma.rkey);
        let places = match sges {
            [sge] if fits => place_of(&mut self.lkeys, sge.lkey).zip(remote),
            _ => None,
        };
        let sge = sges.first().copied().unwrap_or_default();
        let kind = opcode & 15 | (flags & 15) << 4;
        let tag = match places {
            Some((lkey, remote)) => kind | u32::from(lkey) << 8 | u32::from(remote) << 16,
            None => kind | u32::from(WIDE) << 24,
        };
        let entry = Entry {
            addr: sge.addr,
            length: sge.length,
            imm: wr.imm_data,
            wr_id: wr.wr_id,
            remote_addr: rdma.remote_addr,
            tag: tag.to_le_bytes(),
        };
        let (signaled, two_sided) = (is_signaled(tag), u64::from(is_two_sided(opcode)));
        self.signaled += signaled;
        self.two_sided += two_sided;
        if places.is_some() {
            let (flags, lkey, rkey) = (wr.send_flags, sge.lkey, rdma.rkey);
            self.form = Form { opcode, flags, lkey, rkey, tag, signaled, two_sided };
            return self.put(entry);
        }
        let inline = match flags & IBV_SEND_INLINE {
            0 => Vec::new(),
            _ => inline_bytes(sges),
        };
        if self.wide.is_empty() {
            self.wide.resize_with(self.entries.len(), || None);
        }
        let is_inline = flags & IBV_SEND_INLINE != 0;
        let sges = if is_inline { Vec::new() } else { sges.to_vec() };
        let rkey = rdma.rkey;
        self.wide[self.place] = Some(Box::new(Wide { sges, inline, rkey, opcode, flags }));
        self.put(entry);
    }

    fn place_of_rkey(&mut self, opcode: u32, rkey: u32) -> Option<u8> {
        if !is_remote(opcode) {
            return Some(0);
        }
        let known = self.rkeys.len();
        let place = place_of(&mut self.rkeys, rkey);
        self.has_new_rkey |= self.rkeys.len() != known;
        place
    }

    /// Keys of the peer's memory that requests have named.
    pub(crate) fn rkeys(&self) -> &[u32] {
        &self.rkeys
    }

    /// Forgets the newest requests: the provider did not take them.
    pub(crate) fn undo(&mut self, count: u64) {
        for _ in 0..count.min(self.tail) {
            self.place = self.place.checked_sub(1).unwrap_or(self.entries.len() - 1);
            self.tail -= 1;
            let tag = u32::from_le_bytes(self.entries[self.place].tag);
            self.signaled -= is_signaled(tag);
            self.two_sided -= u64::from(is_two_sided(tag & 15));
        }
    }

    fn place_of_number(&self, number: u64) -> usize {
        let back = (self.tail - number) as usize;
        (self.place + self.entries.len() - back) % self.entries.len()
    }

    /// The first request that is not known to be done, if `done` requests with a completion are.
    /// `None` if more are outstanding than are remembered.
    pub(crate) fn head(&self, done: u64) -> Option<u64> {
        let outstanding = self.signaled.saturating_sub(done);
        let oldest = self.tail.saturating_sub(self.capacity());
        let (mut number, mut seen) = (self.tail, 0);
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
        self.entries[self.place_of_number(number)].tag[0] >> 5 & 1 != 0
    }

    fn opcode(&self, number: u64) -> u32 {
        u32::from(self.entries[self.place_of_number(number)].tag[0] & 15)
    }

    pub(crate) fn is_atomic(&self, number: u64) -> bool {
        matches!(self.opcode(number), IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD)
    }

    pub(crate) fn wr_id(&self, number: u64) -> u64 {
        self.entries[self.place_of_number(number)].wr_id
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

    /// The next request with a completion from `head` on: whose completion comes next.
    pub(crate) fn next_signaled(&self, head: u64) -> Option<u64> {
        (head..self.tail).find(|number| self.is_signaled(*number))
    }

    /// Marks what the peer has carried out, of the requests from `head` on: as many two-sided ones
    /// as it has counted, and all before them except READs, whose data may have been lost.
    pub(crate) fn mark_executed(&mut self, head: u64, received: u64) {
        let outstanding =
            (head..self.tail).filter(|number| is_two_sided(self.opcode(*number))).count() as u64;
        let mut count = self.two_sided - outstanding;
        let mut executed = head;
        for number in head..self.tail {
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
                let place = self.place_of_number(number);
                self.entries[place].tag[3] |= EXECUTED;
            }
        }
    }

    /// A request to be posted again, with the keys that `local` and `remote` give for those it has;
    /// `None` if one of them gives none. What was executed is an empty WRITE, which completes in
    /// its turn and touches nothing.
    pub(crate) fn resend(
        &self,
        number: u64,
        local: impl Fn(u32) -> Option<u32>,
        remote: impl Fn(u32) -> Option<u32>,
    ) -> Option<Resend> {
        let place = self.place_of_number(number);
        let body = self.entries[place];
        let tag = body.tag;
        let mut wr = ibv_send_wr {
            wr_id: body.wr_id,
            next: null_mut(),
            sg_list: null_mut(),
            num_sge: 0,
            opcode: u32::from(tag[0] & 15),
            send_flags: u32::from(tag[0] >> 4),
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
        if tag[3] & EXECUTED != 0 {
            wr.opcode = IBV_WR_RDMA_WRITE;
            wr.send_flags &= IBV_SEND_SIGNALED;
            return Some(Resend { sges: Vec::new(), wr, inline: Vec::new() });
        }
        let wide = (tag[3] & WIDE != 0).then(|| self.wide[place].as_ref()).flatten();
        let (sges, inline, rkey) = match wide {
            Some(wide) => {
                (wr.opcode, wr.send_flags) = (wide.opcode, wide.flags);
                (wide.sges.clone(), wide.inline.clone(), wide.rkey)
            }
            None => {
                let lkey = self.lkeys[usize::from(tag[1])];
                let sge = ibv_sge { addr: body.addr, length: body.length, lkey };
                (vec![sge], Vec::new(), self.rkeys.get(usize::from(tag[2])).copied().unwrap_or(0))
            }
        };
        let sges = translate(sges, local)?;
        if is_remote(wr.opcode) {
            wr.wr.rdma.rkey = remote(rkey)?;
        }
        Some(Resend { sges, wr, inline })
    }
}
