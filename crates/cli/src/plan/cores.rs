//! How many cores coding takes at a link's rate: measured on this machine, and remembered.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bowline_codes::{Code, Family, Kernel};
use bowline_plan::{Coding, Erasure, Scheme};

/// Data that one core encodes, by code and shape.
pub(super) struct CodingRates {
    chunk_bytes: usize,
    bytes_per_s: BTreeMap<String, f64>,
}

/// Enough for the caches to be no help, little enough to answer at once.
const WORKING_SET_BYTES: usize = 12 << 20;
const MEASURE: Duration = Duration::from_millis(12);
/// A longer chunk costs no more than this per byte.
const MAX_CHUNK: u64 = 256 << 10;

impl CodingRates {
    /// Rates for these schemes: from the user's cache, or measured and written there.
    pub(super) fn load(schemes: &[Scheme], chunk_bytes: u64) -> CodingRates {
        let chunk_bytes = chunk_bytes.min(MAX_CHUNK) as usize;
        let cache = cache_file();
        let stored = cache.as_ref().and_then(|path| fs::read_to_string(path).ok());
        let bytes_per_s = stored.and_then(|text| serde_json::from_str(&text).ok());
        let mut rates = CodingRates { chunk_bytes, bytes_per_s: bytes_per_s.unwrap_or_default() };
        let mut news = false;
        for scheme in schemes {
            if let Scheme::Erasure(code) = scheme
                && !rates.bytes_per_s.contains_key(&rates.key(code))
                && let Some(rate) = measure(code, chunk_bytes)
            {
                rates.bytes_per_s.insert(rates.key(code), rate);
                news = true;
            }
        }
        if news && let Some(path) = cache {
            // What cannot be remembered is measured again.
            let _ = path.parent().map(fs::create_dir_all);
            let _ = serde_json::to_string(&rates.bytes_per_s).map(|text| fs::write(path, text));
        }
        rates
    }

    /// Cores that encode as fast as data leaves, parity between it: `BW k / (k + m)`.
    pub(super) fn cores(&self, scheme: &Scheme, bandwidth_bps: f64) -> Option<f64> {
        let Scheme::Erasure(code) = scheme else { return None };
        let rate = self.bytes_per_s.get(&self.key(code))?;
        let (k, m) = (f64::from(code.k), f64::from(code.m));
        Some(bandwidth_bps / 8.0 * k / (k + m) / rate)
    }

    fn key(&self, code: &Erasure) -> String {
        let kernel = Kernel::best().name();
        format!("{:?}({},{}) {} {kernel}", code.coding, code.k, code.m, self.chunk_bytes)
    }
}

fn cache_file() -> Option<PathBuf> {
    let dir = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|d| d.is_absolute());
    let dir =
        dir.or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")));
    dir.map(|dir| dir.join("bowline/coding-rates.json"))
}

/// Bytes of data per second; the best pass counts, because others share the machine.
fn measure(code: &Erasure, chunk_bytes: usize) -> Option<f64> {
    let family = match code.coding {
        Coding::Mds => Family::Mds,
        Coding::Xor => Family::Xor,
    };
    let (k, m) = (code.k as usize, code.m as usize);
    let coder = Code::new(family, k, m).ok()?;
    let blocks = (WORKING_SET_BYTES / ((k + m) * chunk_bytes)).max(1);
    let data = vec![0x5a_u8; blocks * k * chunk_bytes];
    let mut parity = vec![0_u8; blocks * m * chunk_bytes];
    let mut best = 0.0_f64;
    let started = Instant::now();
    let mut warm = false;
    while started.elapsed() < MEASURE || best == 0.0 {
        let pass = Instant::now();
        let blocks = data.chunks(k * chunk_bytes).zip(parity.chunks_mut(m * chunk_bytes));
        for (data, parity) in blocks {
            let data: Vec<&[u8]> = data.chunks(chunk_bytes).collect();
            let mut parity: Vec<&mut [u8]> = parity.chunks_mut(chunk_bytes).collect();
            coder.encode(&data, &mut parity).ok()?;
        }
        // The first pass meets memory that is not there yet.
        if std::mem::replace(&mut warm, true) {
            best = best.max(data.len() as f64 / pass.elapsed().as_secs_f64().max(1e-9));
        }
    }
    Some(best)
}
