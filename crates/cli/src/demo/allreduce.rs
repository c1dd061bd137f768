//! An allreduce on a lossy link: over RC, and over XP with a bound on loss.

use std::error::Error;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bowline::{
    Access, Bounds, CommOptions, CommTransport, Communicator, DataType, Deadline, Device, Rank,
    ReduceOp, Tensor, TimeoutRule, rendezvous,
};
use serde::Serialize;

const RANKS: u32 = 4;
const BYTES: usize = 4 << 20;
const OPERATIONS: usize = 10;
const LOSS: &str = "0.1%";
/// Maximum loss over XP, as a share of the bytes that a rank should receive.
const MAX_LOSS: f64 = 0.01;
/// Longer than any operation takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// The result of one transport.
#[derive(Serialize)]
pub(super) struct AllreduceRow {
    transport: &'static str,
    ranks: u32,
    bytes: usize,
    mean_ms: f64,
    slowest_ms: f64,
    /// The share of bytes that were still missing at the end.
    missing: f64,
    verified: bool,
}

impl AllreduceRow {
    pub(super) fn is_verified(&self) -> bool {
        self.verified
    }

    /// The row as text.
    pub(super) fn text(&self) -> String {
        format!(
            "{:<45} {:>8.1} ms {:>9.1} ms {:>8.3}%  {}",
            self.transport,
            self.mean_ms,
            self.slowest_ms,
            self.missing * 100.0,
            if self.verified { "yes" } else { "NO" }
        )
    }
}

/// The transports to compare. Both see the same losses.
pub(super) const TRANSPORTS: [CommTransport; 2] = [CommTransport::Rc, CommTransport::Xp];

/// The column names.
pub(super) fn header() -> String {
    format!(
        "\nallreduce of {} MiB, {RANKS} ranks, {LOSS} loss: {:>13} {:>12} {:>9}  verified",
        BYTES >> 20,
        "mean",
        "slowest",
        "missing"
    )
}

/// The directory in which ranks meet. It is removed on drop.
struct Place(PathBuf);

impl Drop for Place {
    fn drop(&mut self) {
        // On failure, a few bytes stay in a directory for temporary files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What one rank measured.
struct Seen {
    times: Vec<Duration>,
    missing: u64,
    expected: u64,
    verified: bool,
}

/// Measures one transport.
pub(super) fn measure(transport: CommTransport, seed: u64) -> Result<AllreduceRow, Box<dyn Error>> {
    let name = format!("bowline-demo-{}-{}", transport.name(), std::process::id());
    let place = Place(std::env::temp_dir().join(name));
    std::fs::create_dir_all(&place.0)?;
    let url = format!("file://{}", place.0.display());
    let url = &url;
    let seen: Vec<Result<Seen, String>> = std::thread::scope(|scope| {
        let rank = |rank| scope.spawn(move || run_rank(transport, url, rank, seed));
        let ranks: Vec<_> = (0..RANKS).map(rank).collect();
        let failed = || Err("a rank of the allreduce has panicked".to_owned());
        ranks.into_iter().map(|rank| rank.join().unwrap_or_else(|_| failed())).collect()
    });
    let seen = seen.into_iter().collect::<Result<Vec<_>, _>>()?;
    // An operation ends when its last rank ends.
    let slowest_of = |i: usize| seen.iter().map(|seen| seen.times[i]).max().unwrap_or_default();
    let times_ms: Vec<f64> = (0..OPERATIONS).map(|i| slowest_of(i).as_secs_f64() * 1e3).collect();
    let sum = |of: fn(&Seen) -> u64| seen.iter().map(of).sum::<u64>() as f64;
    Ok(AllreduceRow {
        transport: match transport {
            CommTransport::Xp => "xp, 1 % may be missing",
            _ => "rc (go-back-N)",
        },
        ranks: RANKS,
        bytes: BYTES,
        mean_ms: times_ms.iter().sum::<f64>() / OPERATIONS as f64,
        slowest_ms: times_ms.iter().copied().fold(0.0, f64::max),
        missing: sum(|seen| seen.missing) / sum(|seen| seen.expected).max(1.0),
        verified: seen.iter().all(|seen| seen.verified),
    })
}

fn run_rank(transport: CommTransport, url: &str, rank: Rank, seed: u64) -> Result<Seen, String> {
    let inner = || -> Result<Seen, Box<dyn Error>> {
        let addr = IpAddr::V4(Ipv4Addr::new(127, 0, 77, 11 + rank as u8));
        let link = format!("loss={LOSS},delay=100us,seed={}", seed + u64::from(rank));
        let device =
            Device::builder(addr).link(link.parse()?).notice(crate::output::notice).open()?;
        let pd = device.alloc_pd()?;
        let bounds = Bounds::new(Deadline::Adaptive(TimeoutRule::Margin), MAX_LOSS);
        let bounds = bounds.unwrap_or(Bounds::EXACT);
        let options =
            CommOptions { timeout: PATIENCE, transport, bounds, ..CommOptions::default() };
        let meeting = rendezvous::in_store(url, "demo", rank, RANKS)?;
        let comm = Communicator::meet(&pd, meeting, options)?;
        let mr = pd.register(BYTES, Access::LOCAL_WRITE)?;
        let tensor = Tensor::new(&mr, 0..BYTES, DataType::F32)?;
        // Each rank reduces one block, and may miss this share of every other rank's contribution
        // to it.
        let may_lack = match transport {
            CommTransport::Xp => (BYTES as f64 * MAX_LOSS * f64::from(RANKS - 1)) as usize,
            _ => 0,
        };
        let mut seen = Seen { times: Vec::new(), missing: 0, expected: 0, verified: true };
        // The first operation is the warm-up, from which an adaptive deadline learns.
        for operation in 0..=OPERATIONS {
            mr.write_at(0, &(rank as f32 + 1.0).to_ne_bytes().repeat(BYTES / 4));
            comm.barrier()?.wait()?;
            let started = Instant::now();
            let report = comm.allreduce(&tensor, ReduceOp::Sum)?.wait_report()?;
            if operation > 0 {
                seen.times.push(started.elapsed());
            }
            seen.missing += report.missing_bytes;
            seen.expected += report.expected_bytes;
            seen.verified &= is_right(&mr.to_vec(0, BYTES), may_lack);
        }
        // No rank may leave while another one still waits for a retransmission from it.
        comm.barrier()?.wait()?;
        Ok(seen)
    };
    inner().map_err(|error| format!("rank {rank} of the allreduce: {error}"))
}

/// Whether every element is the sum over all ranks. Elements of up to `may_lack` bytes in total may
/// miss contributions.
fn is_right(bytes: &[u8], may_lack: usize) -> bool {
    let all: f32 = (1..=RANKS).map(|rank| rank as f32).sum();
    let elements = || bytes.chunks_exact(4).map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]]));
    let is_sum_of_some = |sum: f32| sum.fract() == 0.0 && (1.0..=all).contains(&sum);
    elements().all(is_sum_of_some) && elements().filter(|sum| *sum != all).count() * 4 <= may_lack
}
