//! Communicators for C programs.

use std::ffi::{c_char, c_int, c_void};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::time::Duration;

use bowline::rendezvous::{self, Meeting};
use bowline::{
    Bounds, CommOptions, CommTransport, Communicator, Deadline, Device, Error, Pd, SdrScheme,
    TimeoutRule,
};

use crate::memory::{give, object, string};
use crate::{Trouble, guard};

/// A group of programs that do collective operations together. All ranks must call the same
/// operations in the same order, with the same counts and types.
pub struct bowline_comm {
    pub(crate) pd: Pd,
    pub(crate) comm: Communicator,
}

/// How to make a communicator. Zeros, and NULL in its place, are the defaults. All ranks need the
/// same, but for the device.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bowline_comm_options {
    /// Address of this rank's NIC, e.g. "10.0.0.7" [BOWLINE_DEVICE, or the one that reaches rank 0
    /// or MASTER_ADDR, or else one of loopback: all ranks are on one host].
    pub device: *const c_char,
    /// Seconds that an operation may take (default: 300).
    pub timeout_s: f64,
    /// Seconds that making the communicator may take (default: 60).
    pub setup_timeout_s: f64,
    /// Bytes of a message at most [128 KiB].
    pub chunk_bytes: u32,
    /// BOWLINE_RC, BOWLINE_XP, BOWLINE_SR_NACK, BOWLINE_EC_MDS or BOWLINE_AUTO [BOWLINE_RC].
    pub transport: u32,
    /// Over XP: seconds after which an operation stops to wait for what may be lost, or
    /// BOWLINE_ADAPTIVE [never].
    pub deadline_s: f64,
    /// Over XP: the share of what a rank should receive that may be missing, e.g. 0.01 (default:
    /// 0). What would exceed it is fetched after the deadline.
    pub max_loss: f64,
    /// Bytes on their way to a rank at most [1 MiB, and 4 MiB over SR, EC and AUTO].
    pub window_bytes: u32,
    /// Over XP: 1 if what is reduced travels encoded, so that a lost packet costs all elements of
    /// some regions a little (default: 0).
    pub recovery: u32,
    /// Over RC: 1 if broadcasts go by multicast, which takes a second ring for each rank (default:
    /// 0). With fewer than three ranks, and where packets are sealed, they go as ever.
    pub multicast: u32,
}

/// Operations over RC: nothing is lost.
pub const BOWLINE_RC: u32 = 0;
/// Operations over XP, with bounds on time and loss. What cannot have bounds goes over RC.
pub const BOWLINE_XP: u32 = 1;
/// Operations over SDR with selective repeat, for long links: nothing is lost.
pub const BOWLINE_SR_NACK: u32 = 2;
/// Operations over SDR with erasure coding, for long links: nothing is lost.
pub const BOWLINE_EC_MDS: u32 = 3;
/// Operations over SDR, which takes one of both for each message.
pub const BOWLINE_AUTO: u32 = 4;

/// A deadline that follows how long such operations have taken.
pub const BOWLINE_ADAPTIVE: f64 = -1.0;

/// Gathers `len` bytes of every rank into `all`, in the order of ranks: `MPI_Allgather` does.
/// Returns 0 for success.
pub type bowline_gather_fn = Option<
    unsafe extern "C" fn(
        context: *mut c_void,
        mine: *const c_void,
        len: usize,
        all: *mut c_void,
    ) -> c_int,
>;

/// Meets the other ranks where the environment says: the variables of torchrun, Open MPI, MPICH or
/// Slurm give rank and size; `BOWLINE_STORE`, or `MASTER_ADDR` and `MASTER_PORT`, the place.
///
/// # Safety
/// `options` is NULL or valid; `comm` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bowline_comm_from_env(
    options: *const bowline_comm_options,
    comm: *mut *mut bowline_comm,
) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise.
        let options = unsafe { Options::read(options) }?;
        let made = options.meet(rendezvous::from_env()?, None)?;
        // SAFETY: the caller's promise.
        unsafe { give(comm, made) }
    })
}

/// Meets the other ranks of a job in a store, e.g. "file:///shared/dir" or "redis://host".
///
/// # Safety
/// `url` and `job` are strings; `options` is NULL or valid; `comm` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bowline_comm_in_store(
    url: *const c_char,
    job: *const c_char,
    rank: u32,
    ranks: u32,
    options: *const bowline_comm_options,
    comm: *mut *mut bowline_comm,
) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise.
        let (options, url, job) =
            unsafe { (Options::read(options)?, string(url, "the URL")?, string(job, "the job")?) };
        let made = options.meet(rendezvous::in_store(url, job, rank, ranks)?, None)?;
        // SAFETY: the caller's promise.
        unsafe { give(comm, made) }
    })
}

/// Meets the other ranks at rank 0, which listens at a TCP address, e.g. "10.0.0.7:29500".
///
/// # Safety
/// `address` is a string; `options` is NULL or valid; `comm` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bowline_comm_at_address(
    address: *const c_char,
    rank: u32,
    ranks: u32,
    options: *const bowline_comm_options,
    comm: *mut *mut bowline_comm,
) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise.
        let (options, address) =
            unsafe { (Options::read(options)?, string(address, "the address")?) };
        let address = resolve(address)?;
        let meeting = rendezvous::at_address(address, rank, ranks)?;
        let made = options.meet(meeting, Some(&address.ip().to_string()))?;
        // SAFETY: the caller's promise.
        unsafe { give(comm, made) }
    })
}

/// Meets the other ranks by an all-gather of the program's own, which is called twice.
///
/// # Safety
/// `gather` may be called with `context` during this call; `options` is NULL or valid; `comm` may
/// be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bowline_comm_by_gather(
    gather: bowline_gather_fn,
    context: *mut c_void,
    rank: u32,
    ranks: u32,
    options: *const bowline_comm_options,
    comm: *mut *mut bowline_comm,
) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise.
        let options = unsafe { Options::read(options) }?;
        let gather = gather.ok_or_else(|| Trouble::caller("the gather function is NULL"))?;
        // A pointer may not cross threads, and does not: `meet` calls the closure itself.
        let context = context.expose_provenance();
        let all = move |mine: &[u8], _: Duration| {
            let mut all = vec![0; mine.len() * ranks as usize];
            let context = std::ptr::with_exposed_provenance_mut(context);
            // SAFETY: the caller's promise; `all` has room for what `ranks` ranks give.
            let code = unsafe {
                gather(context, mine.as_ptr().cast(), mine.len(), all.as_mut_ptr().cast())
            };
            if code == 0 {
                return Ok(all);
            }
            let why = format!("the gather function returned {code}");
            Err(Error::Invalid { what: "rendezvous", why })
        };
        let made = options.meet(rendezvous::by_gather(rank, ranks, all)?, None)?;
        // SAFETY: the caller's promise.
        unsafe { give(comm, made) }
    })
}

/// Makes a communicator of the ranks that give the same color, ordered by their keys. All ranks
/// must call it. With a negative color a rank gets none: `*out` is NULL.
///
/// # Safety
/// `comm` has not been freed; `out` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bowline_comm_split(
    comm: *const bowline_comm,
    color: i64,
    key: u32,
    out: *mut *mut bowline_comm,
) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise.
        let comm = unsafe { object(comm, "the communicator") }?;
        if out.is_null() {
            return Err(Trouble::caller("the place for the result is NULL"));
        }
        let color = match color {
            ..0 => None,
            _ => Some(u32::try_from(color).map_err(|_| Trouble::caller("a color above 2^32"))?),
        };
        match comm.comm.split(color, key)? {
            // SAFETY: the caller's promise.
            Some(made) => unsafe { give(out, bowline_comm { pd: comm.pd.clone(), comm: made }) },
            None => {
                // SAFETY: the caller's promise.
                unsafe { out.write(std::ptr::null_mut()) };
                Ok(())
            }
        }
    })
}

/// Makes a communicator of the same ranks, whose operations go on beside those of the first. All
/// ranks must call it.
///
/// # Safety
/// `comm` has not been freed; `out` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bowline_comm_duplicate(
    comm: *const bowline_comm,
    out: *mut *mut bowline_comm,
) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise.
        let comm = unsafe { object(comm, "the communicator") }?;
        let made = bowline_comm { pd: comm.pd.clone(), comm: comm.comm.duplicate()? };
        // SAFETY: the caller's promise.
        unsafe { give(out, made) }
    })
}

/// The number of this rank.
///
/// # Safety
/// `comm` has not been freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bowline_comm_rank(comm: *const bowline_comm) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { comm.as_ref() }.map_or(0, |comm| comm.comm.rank())
}

/// How many ranks there are.
///
/// # Safety
/// `comm` has not been freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bowline_comm_size(comm: *const bowline_comm) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { comm.as_ref() }.map_or(0, |comm| comm.comm.size())
}

/// Leaves a communicator, and frees it once all its operations have been freed. NULL is nothing.
///
/// # Safety
/// `comm` is NULL or has not been freed, and nobody uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bowline_comm_free(comm: *mut bowline_comm) {
    if comm.is_null() {
        return;
    }
    guard(|| {
        // SAFETY: it was made by `give`, and the caller has no other use of it.
        drop(unsafe { Box::from_raw(comm) });
        Ok(())
    });
}

/// Options in our own types.
struct Options {
    device: Option<IpAddr>,
    comm: CommOptions,
}

impl Options {
    /// # Safety
    /// `options` is null or valid.
    unsafe fn read(options: *const bowline_comm_options) -> Result<Options, Trouble> {
        let mut comm = CommOptions::default();
        // SAFETY: the caller's promise.
        let Some(given) = (unsafe { options.as_ref() }) else {
            return Ok(Options { device: None, comm });
        };
        let seconds = |given: f64, default, what| {
            if given == 0.0 {
                return Ok(default);
            }
            Duration::try_from_secs_f64(given)
                .map_err(|_| Trouble::caller(format!("invalid {what}: {given} s, e.g. 30")))
        };
        comm.timeout = seconds(given.timeout_s, comm.timeout, "timeout_s")?;
        comm.setup_timeout = seconds(given.setup_timeout_s, comm.setup_timeout, "setup_timeout_s")?;
        if given.chunk_bytes > 0 {
            comm.chunk_bytes = given.chunk_bytes;
        }
        comm.transport = match given.transport {
            BOWLINE_RC => CommTransport::Rc,
            BOWLINE_XP => CommTransport::Xp,
            BOWLINE_SR_NACK => CommTransport::Sdr(SdrScheme::SrNack),
            BOWLINE_EC_MDS => CommTransport::Sdr(SdrScheme::EcMds),
            BOWLINE_AUTO => CommTransport::Sdr(SdrScheme::Auto),
            other => return Err(Trouble::caller(format!("there is no transport {other}"))),
        };
        comm.multicast = given.multicast != 0;
        if given.window_bytes > 0 {
            comm.window_bytes = Some(given.window_bytes);
        }
        let deadline = match given.deadline_s {
            BOWLINE_ADAPTIVE => Deadline::Adaptive(TimeoutRule::Margin),
            0.0 => Deadline::Never,
            given => Deadline::After(seconds(given, Duration::ZERO, "deadline_s")?),
        };
        let share = given.max_loss;
        let recovery = given.recovery != 0;
        comm.bounds = Bounds::new(deadline, share)
            .map(|bounds| Bounds { recovery, ..bounds })
            .ok_or_else(|| Trouble::caller(format!("max_loss {share}: a share, e.g. 0.01")))?;
        if given.device.is_null() {
            return Ok(Options { device: None, comm });
        }
        // SAFETY: options that are valid have a string there.
        let text = unsafe { string(given.device, "the device") }?;
        let device = text.parse().map_err(|_| {
            Trouble::caller(format!("invalid device {text:?}: an IP address, e.g. 10.0.0.7"))
        })?;
        Ok(Options { device: Some(device), comm })
    }

    /// Opens the NIC that reaches `peer`, and meets the others.
    fn meet(&self, meeting: Meeting, peer: Option<&str>) -> Result<bowline_comm, Trouble> {
        let addr = match self.device {
            Some(addr) => addr,
            None => rendezvous::device_addr(peer, meeting.rank)?,
        };
        let pd = Device::shared(addr)?.alloc_pd()?;
        let comm = Communicator::meet(&pd, meeting, self.comm)?;
        Ok(bowline_comm { pd, comm })
    }
}

fn resolve(address: &str) -> Result<SocketAddr, Trouble> {
    let found = address.to_socket_addrs().ok().and_then(|mut found| found.next());
    found.ok_or_else(|| {
        Trouble::caller(format!("{address:?} stands for no address: write e.g. 10.0.0.7:29500"))
    })
}
