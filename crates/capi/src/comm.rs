//! Communicators for C programs.

use std::ffi::{c_char, c_int, c_void};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::time::Duration;

use bowline::rendezvous::{self, Meeting};
use bowline::{
    Bounds, CommOptions, CommTransport, Communicator, Deadline, Device, Error, Pd, Recovery,
    SdrScheme, TimeoutRule,
};

use crate::memory::{give, object, string};
use crate::{Trouble, guard};

/// A group of programs that run collective operations together. All ranks must call the same
/// operations in the same order, with the same counts and types.
pub struct bowline_comm {
    pub(crate) pd: Pd,
    pub(crate) comm: Communicator,
}

/// Options for a new communicator. Zero fields, and a NULL pointer instead of the options, select
/// the defaults. All ranks need the same options, except for the device.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bowline_comm_options {
    /// Address of this rank's NIC, e.g. "10.0.0.7" (default: BOWLINE_DEVICE, or the address that
    /// reaches rank 0 or MASTER_ADDR, or else a loopback address, which means that all ranks are on
    /// one host).
    pub device: *const c_char,
    /// Maximum duration of an operation in seconds (default: 300).
    pub timeout_s: f64,
    /// Maximum duration of creating the communicator in seconds (default: 60).
    pub setup_timeout_s: f64,
    /// Maximum length of a message in bytes (default: 128 KiB).
    pub chunk_bytes: u32,
    /// BOWLINE_RC, BOWLINE_XP, BOWLINE_SR_NACK, BOWLINE_EC_MDS or BOWLINE_AUTO (default:
    /// BOWLINE_RC).
    pub transport: u32,
    /// Over XP: seconds after which an operation stops waiting for data that may be lost, or
    /// BOWLINE_ADAPTIVE (default: never).
    pub deadline_s: f64,
    /// Over XP: the share of the bytes that a rank should receive that may be missing, e.g. 0.01
    /// (default: 0). Losses beyond it are fetched after the deadline.
    pub max_loss: f64,
    /// Maximum bytes in flight to a rank (default: 1 MiB, and 4 MiB over SR, EC and AUTO).
    pub window_bytes: u32,
    /// Over XP: when to send data to be reduced in encoded form, so that a lost packet slightly
    /// degrades all elements of some regions: BOWLINE_RECOVERY_AUTO, BOWLINE_RECOVERY_ALWAYS or
    /// BOWLINE_RECOVERY_NEVER (default: BOWLINE_RECOVERY_AUTO).
    pub recovery: u32,
    /// Over RC: 1 to multicast broadcasts, which takes a second ring for each rank (default: 0).
    /// With fewer than three ranks, or if packets are sealed, broadcasts are not multicast.
    pub multicast: u32,
}

/// Operations use RC: nothing is lost.
pub const BOWLINE_RC: u32 = 0;
/// Operations use XP, with bounds on time and loss. Operations that cannot have bounds use RC.
pub const BOWLINE_XP: u32 = 1;
/// Operations use SDR with selective repeat, for long links: nothing is lost.
pub const BOWLINE_SR_NACK: u32 = 2;
/// Operations use SDR with erasure coding, for long links: nothing is lost.
pub const BOWLINE_EC_MDS: u32 = 3;
/// Operations use SDR, which chooses one of the two schemes for each message.
pub const BOWLINE_AUTO: u32 = 4;

/// Data is encoded while operations end with missing bytes, on all ranks alike.
pub const BOWLINE_RECOVERY_AUTO: u32 = 0;
/// Data is always encoded.
pub const BOWLINE_RECOVERY_ALWAYS: u32 = 1;
/// Data is never encoded.
pub const BOWLINE_RECOVERY_NEVER: u32 = 2;

/// A deadline that adapts to how long such operations have taken.
pub const BOWLINE_ADAPTIVE: f64 = -1.0;

/// Gathers `len` bytes of every rank into `all`, in rank order, as `MPI_Allgather` does. Returns 0
/// for success.
pub type bowline_gather_fn = Option<
    unsafe extern "C" fn(
        context: *mut c_void,
        mine: *const c_void,
        len: usize,
        all: *mut c_void,
    ) -> c_int,
>;

/// Creates a communicator from the environment. Rank and size come from the variables of torchrun,
/// Open MPI, MPICH or Slurm; the meeting point from `BOWLINE_STORE`, or from `MASTER_ADDR` and
/// `MASTER_PORT`.
///
/// # Safety
/// `options` is NULL or valid; `comm` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bowline_comm_from_env(
    options: *const bowline_comm_options,
    comm: *mut *mut bowline_comm,
) -> i32 {
    guard(|| {
        // SAFETY: upheld by the caller.
        let options = unsafe { Options::read(options) }?;
        let made = options.meet(rendezvous::from_env()?, None)?;
        // SAFETY: upheld by the caller.
        unsafe { give(comm, made) }
    })
}

/// Creates a communicator of the ranks of a job that meet in a store, e.g. "file:///shared/dir" or
/// "redis://host".
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
        // SAFETY: upheld by the caller.
        let (options, url, job) =
            unsafe { (Options::read(options)?, string(url, "the URL")?, string(job, "the job")?) };
        let made = options.meet(rendezvous::in_store(url, job, rank, ranks)?, None)?;
        // SAFETY: upheld by the caller.
        unsafe { give(comm, made) }
    })
}

/// Creates a communicator of the ranks that meet at rank 0, which listens on a TCP address, e.g.
/// "10.0.0.7:29500".
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
        // SAFETY: upheld by the caller.
        let (options, address) =
            unsafe { (Options::read(options)?, string(address, "the address")?) };
        let address = resolve(address)?;
        let meeting = rendezvous::at_address(address, rank, ranks)?;
        let made = options.meet(meeting, Some(&address.ip().to_string()))?;
        // SAFETY: upheld by the caller.
        unsafe { give(comm, made) }
    })
}

/// Creates a communicator of the ranks that meet by the program's own all-gather function, which is
/// called twice.
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
        // SAFETY: upheld by the caller.
        let options = unsafe { Options::read(options) }?;
        let gather = gather.ok_or_else(|| Trouble::caller("the gather function is NULL"))?;
        // A pointer may not cross threads, and this one does not: `meet` calls the closure itself.
        let context = context.expose_provenance();
        let all = move |mine: &[u8], _: Duration| {
            let mut all = vec![0; mine.len() * ranks as usize];
            let context = std::ptr::with_exposed_provenance_mut(context);
            // SAFETY: upheld by the caller; `all` has room for the contributions of `ranks` ranks.
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
        // SAFETY: upheld by the caller.
        unsafe { give(comm, made) }
    })
}

/// Creates a communicator of the ranks that pass the same color, ordered by their keys. All ranks
/// must call it. A rank with a negative color gets none: `*out` is NULL.
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
        // SAFETY: upheld by the caller.
        let comm = unsafe { object(comm, "the communicator") }?;
        if out.is_null() {
            return Err(Trouble::caller("the pointer for the result is NULL"));
        }
        let color = match color {
            ..0 => None,
            _ => Some(u32::try_from(color).map_err(|_| {
                Trouble::caller(format!(
                    "invalid color {color}: use 0 to 4294967295, or a negative color for no \
                     communicator"
                ))
            })?),
        };
        match comm.comm.split(color, key)? {
            // SAFETY: upheld by the caller.
            Some(made) => unsafe { give(out, bowline_comm { pd: comm.pd.clone(), comm: made }) },
            None => {
                // SAFETY: upheld by the caller.
                unsafe { out.write(std::ptr::null_mut()) };
                Ok(())
            }
        }
    })
}

/// Creates a communicator of the same ranks. Its operations run concurrently with those of the
/// first. All ranks must call it.
///
/// # Safety
/// `comm` has not been freed; `out` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bowline_comm_duplicate(
    comm: *const bowline_comm,
    out: *mut *mut bowline_comm,
) -> i32 {
    guard(|| {
        // SAFETY: upheld by the caller.
        let comm = unsafe { object(comm, "the communicator") }?;
        let made = bowline_comm { pd: comm.pd.clone(), comm: comm.comm.duplicate()? };
        // SAFETY: upheld by the caller.
        unsafe { give(out, made) }
    })
}

/// The number of this rank.
///
/// # Safety
/// `comm` has not been freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bowline_comm_rank(comm: *const bowline_comm) -> u32 {
    // SAFETY: upheld by the caller.
    unsafe { comm.as_ref() }.map_or(0, |comm| comm.comm.rank())
}

/// The number of ranks.
///
/// # Safety
/// `comm` has not been freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bowline_comm_size(comm: *const bowline_comm) -> u32 {
    // SAFETY: upheld by the caller.
    unsafe { comm.as_ref() }.map_or(0, |comm| comm.comm.size())
}

/// Leaves a communicator, and frees it once all its operations have been freed. NULL is ignored.
///
/// # Safety
/// `comm` is NULL or has not been freed, and nothing uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bowline_comm_free(comm: *mut bowline_comm) {
    if comm.is_null() {
        return;
    }
    guard(|| {
        // SAFETY: it was created by `give`, and the caller no longer uses it.
        drop(unsafe { Box::from_raw(comm) });
        Ok(())
    });
}

/// The options in Rust types.
struct Options {
    device: Option<IpAddr>,
    comm: CommOptions,
}

impl Options {
    /// # Safety
    /// `options` is null or valid.
    unsafe fn read(options: *const bowline_comm_options) -> Result<Options, Trouble> {
        let mut comm = CommOptions::default();
        // SAFETY: upheld by the caller.
        let Some(given) = (unsafe { options.as_ref() }) else {
            return Ok(Options { device: None, comm });
        };
        let seconds = |given: f64, default, what| {
            if given == 0.0 {
                return Ok(default);
            }
            Duration::try_from_secs_f64(given).map_err(|_| {
                Trouble::caller(format!("invalid {what} {given}: use seconds, e.g. 30"))
            })
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
            other => {
                return Err(Trouble::caller(format!(
                    "unknown transport {other}: use BOWLINE_RC to BOWLINE_AUTO (0 to 4)"
                )));
            }
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
        let recovery = match given.recovery {
            BOWLINE_RECOVERY_AUTO => Recovery::Auto,
            BOWLINE_RECOVERY_ALWAYS => Recovery::Always,
            BOWLINE_RECOVERY_NEVER => Recovery::Never,
            other => {
                return Err(Trouble::caller(format!(
                    "unknown recovery {other}: use BOWLINE_RECOVERY_AUTO, _ALWAYS or _NEVER (0 to 2)"
                )));
            }
        };
        comm.bounds = Bounds::new(deadline, share)
            .map(|bounds| Bounds { recovery, ..bounds })
            .ok_or_else(|| {
                Trouble::caller(format!(
                    "invalid max_loss {share}: use a share from 0 to 1, e.g. 0.01"
                ))
            })?;
        if given.device.is_null() {
            return Ok(Options { device: None, comm });
        }
        // SAFETY: valid options have a string there.
        let text = unsafe { string(given.device, "the device") }?;
        let device = text.parse().map_err(|_| {
            Trouble::caller(format!("invalid device {text:?}: an IP address, e.g. 10.0.0.7"))
        })?;
        Ok(Options { device: Some(device), comm })
    }

    /// Opens the NIC that reaches `peer`, and meets the other ranks.
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
        Trouble::caller(format!("invalid address {address:?}: use HOST:PORT, e.g. 10.0.0.7:29500"))
    })
}
