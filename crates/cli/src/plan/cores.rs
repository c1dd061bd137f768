//! How many cores coding takes at a link's rate: measured on this machine, and cached.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use bowline_codes::{Code, Family, Kernel};
use bowline_plan::{Coding, Message, Scheme};

use crate::cache;

/// Data that one core encodes per second, by code and shape.
pub(super) struct CodingRates {
    message: Message,
    bytes_per_s: BTreeMap<String, f64>,
}

/// Large enough that caches do not help, and small enough to answer at once.
const WORKING_SET_BYTES: usize = 12 << 20;
const MEASURE: Duration = Duration::from_millis(12);
/// Minimum number of passes. The first one does not count.
const MIN_PASSES: u32 = 4;
/// Longer chunks cost no more per byte than chunks of this length.
const MAX_PIECE: u64 = 256 << 10;

/// What is encoded: a code, and the length of its pieces.
#[derive(Clone, Copy, Debug)]
struct Work {
    coding: Coding,
    k: u32,
    m: u32,
    piece_bytes: usize,
}

impl Work {
    /// What a scheme encodes for messages of this shape; `None` if it does not code.
    ///
    /// LoWAR's lanes are the modulo groups of XOR, with packets instead of chunks.
    fn of(scheme: &Scheme, message: &Message) -> Option<Work> {
        let (coding, k, m, bytes) = match scheme {
            Scheme::Erasure(code) => (code.coding, code.k, code.m, message.chunk_bytes),
            Scheme::Lowar { r, c } => (Coding::Xor, *r, *c, message.mtu_bytes),
            _ => return None,
        };
        Some(Work { coding, k, m, piece_bytes: bytes.min(MAX_PIECE) as usize })
    }

    fn key(&self) -> String {
        let kernel = Kernel::best().name();
        format!("{:?}({},{}) {} {kernel}", self.coding, self.k, self.m, self.piece_bytes)
    }
}

impl CodingRates {
    /// Rates for these schemes: from the user's cache, or measured and stored there.
    pub(super) fn load(schemes: &[Scheme], message: Message) -> CodingRates {
        let cache = cache::dir().map(|dir| dir.join("coding-rates.json"));
        let stored = cache.as_ref().and_then(|path| fs::read_to_string(path).ok());
        let bytes_per_s = stored.and_then(|text| serde_json::from_str(&text).ok());
        let mut rates = CodingRates { message, bytes_per_s: bytes_per_s.unwrap_or_default() };
        let mut news = false;
        for work in schemes.iter().filter_map(|scheme| Work::of(scheme, &message)) {
            if !rates.bytes_per_s.contains_key(&work.key())
                && let Some(rate) = measure(&work)
            {
                rates.bytes_per_s.insert(work.key(), rate);
                news = true;
            }
        }
        if news && let Some(path) = cache {
            // Rates that cannot be stored are measured again next time.
            let _ = path.parent().map(fs::create_dir_all);
            let _ = serde_json::to_string(&rates.bytes_per_s).map(|text| fs::write(path, text));
        }
        rates
    }

    /// Cores that encode as fast as data leaves: at `BW k / (k + m)`, because parity shares the
    /// link.
    pub(super) fn cores(&self, scheme: &Scheme, bandwidth_bps: f64) -> Option<f64> {
        let work = Work::of(scheme, &self.message)?;
        let rate = self.bytes_per_s.get(&work.key())?;
        let (k, m) = (f64::from(work.k), f64::from(work.m));
        Some(bandwidth_bps / 8.0 * k / (k + m) / rate)
    }
}

/// Encoding rate in bytes of data per second. Other processes share the machine, and may use the
/// core for longer than this whole measurement. Therefore the best of several passes counts for
/// each block.
fn measure(work: &Work) -> Option<f64> {
    let family = match work.coding {
        Coding::Mds => Family::Mds,
        Coding::Xor => Family::Xor,
    };
    let (k, m, piece_bytes) = (work.k as usize, work.m as usize, work.piece_bytes);
    let coder = Code::new(family, k, m).ok()?;
    let blocks = (WORKING_SET_BYTES / ((k + m) * piece_bytes)).max(1);
    let data = vec![0x5a_u8; blocks * k * piece_bytes];
    let mut parity = vec![0_u8; blocks * m * piece_bytes];
    let mut best_s = vec![f64::INFINITY; blocks];
    let started = Instant::now();
    let mut passes = 0;
    while started.elapsed() < MEASURE || passes < MIN_PASSES {
        let pieces = data.chunks(k * piece_bytes).zip(parity.chunks_mut(m * piece_bytes));
        for (best_s, (data, parity)) in best_s.iter_mut().zip(pieces) {
            let data: Vec<&[u8]> = data.chunks(piece_bytes).collect();
            let mut parity: Vec<&mut [u8]> = parity.chunks_mut(piece_bytes).collect();
            let block = Instant::now();
            coder.encode(&data, &mut parity).ok()?;
            // The first pass touches memory that is not mapped yet.
            if passes > 0 {
                *best_s = best_s.min(block.elapsed().as_secs_f64().max(1e-9));
            }
        }
        passes += 1;
    }
    Some(data.len() as f64 / best_s.iter().sum::<f64>())
}
