//! What is counted.

use std::collections::BTreeMap;
use std::sync::Mutex;

use bowline_bench_guard::callgrind;

use crate::Result;

/// A count that has a baseline.
pub(crate) struct Counter {
    pub(crate) name: &'static str,
    work: Work,
    /// What is subtracted.
    beyond: Option<Work>,
}

/// What `guard-work` does, and the functions of it that are counted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Work {
    case: &'static str,
    functions: &'static [&'static str],
}

const fn counter(name: &'static str, work: Work) -> Counter {
    Counter { name, work, beyond: None }
}

const fn work(case: &'static str, functions: &'static [&'static str]) -> Work {
    Work { case, functions }
}

const SEND: Work = work("stream 1024 plain", &["send_side"]);
const RECEIVE: Work = work("stream 1024 plain", &["receive_side"]);
const FEC_SEND: Work = work("stream 1024 32,1", &["send_side"]);
const FEC_RECEIVE: Work = work("stream 1024 32,1", &["receive_side"]);

/// Sorted by name. Instructions: of a packet, but of an operation for `small.post-poll` and
/// `short`.
pub(crate) const COUNTERS: &[Counter] = &[
    // The responder makes an ACK, and the requester takes it.
    counter("ack.make", work("small 8", &["answer_side"])),
    counter("ack.take", work("small 8", &["answered_side"])),
    // SDR's bitmap, with chunks of 1 and of 16 packets.
    counter("bitmap.1", work("bitmap 0", &["land_all"])),
    counter("bitmap.16", work("bitmap 4", &["land_all"])),
    // FEC(32,1) beyond a plain connection, repairs included.
    Counter { name: "fec.receive", work: FEC_RECEIVE, beyond: Some(RECEIVE) },
    Counter { name: "fec.send", work: FEC_SEND, beyond: Some(SEND) },
    // A packet of an MTU of payload, and one of BTH and AETH alone.
    counter("icrc.1024", work("icrc 1036", &["sum_up"])),
    counter("icrc.4096", work("icrc 4108", &["sum_up"])),
    counter("icrc.header", work("icrc 16", &["sum_up"])),
    // One long WRITE.
    counter("receive.1024", RECEIVE),
    counter("receive.4096", work("stream 4096 plain", &["receive_side"])),
    counter("send.1024", SEND),
    counter("send.4096", work("stream 4096 plain", &["send_side"])),
    // WRITEs of two and of four packets of 1024 bytes, one at a time.
    counter("short.2.receive", work("small 2048", &["receive_side"])),
    counter("short.2.send", work("small 2048", &["send_side"])),
    counter("short.4.receive", work("small 4096", &["receive_side"])),
    counter("short.4.send", work("small 4096", &["send_side"])),
    // WRITEs of 8 bytes, one at a time.
    counter("small.post-poll", work("small 8", &["post_side", "poll_side"])),
    counter("small.receive", work("small 8", &["receive_side"])),
    counter("small.send", work("small 8", &["send_side"])),
    // One long WRITE over XP.
    counter("xp.receive.1024", work("stream 1024 xp", &["receive_side"])),
    counter("xp.receive.4096", work("stream 4096 xp", &["receive_side"])),
    counter("xp.send.1024", work("stream 1024 xp", &["send_side"])),
    counter("xp.send.4096", work("stream 4096 xp", &["send_side"])),
];

/// How often things are done in the two runs of each. Whole blocks of FEC, words of bitmaps and
/// batches.
const LENGTHS: [u32; 2] = [1024, 3072];

/// Instructions by counter.
pub(crate) type Counts = BTreeMap<&'static str, f64>;

/// Counts, as many at a time as there are CPUs.
pub(crate) fn count(counters: &[&Counter]) -> Result<Counts> {
    if !callgrind_has_avx2() {
        return Err("the baselines are those of a processor with AVX2, which this is not".into());
    }
    let program = std::env::current_exe()?.with_file_name("guard-work");
    let works = counters.iter().flat_map(|counter| [Some(counter.work), counter.beyond]).flatten();
    // None of them twice.
    let counted: BTreeMap<Work, f64> = works.map(|work| (work, 0.0)).collect();
    let waiting = Mutex::new(counted.keys().copied().collect::<Vec<_>>());
    let counted = Mutex::new(Ok(counted));
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cpus {
            scope.spawn(|| {
                while let Some(work) = { waiting.lock().expect("no panic").pop() } {
                    let Work { case, functions } = work;
                    let each = callgrind::count_each(&program, case, functions, LENGTHS);
                    let mut counted = counted.lock().expect("no panic");
                    match (each, counted.as_mut()) {
                        (Ok(each), Ok(counted)) => drop(counted.insert(work, each.total())),
                        (Err(error), Ok(_)) => *counted = Err(error),
                        (_, Err(_)) => return,
                    }
                }
            });
        }
    });
    let counted = counted.into_inner().expect("no panic")?;
    let of = |counter: &Counter| {
        counted[&counter.work] - counter.beyond.map_or(0.0, |work| counted[&work])
    };
    Ok(counters.iter().map(|counter| (counter.name, rounded(of(counter)))).collect())
}

/// Whether callgrind passes itself off as the processor of the baselines. It never has AVX-512.
fn callgrind_has_avx2() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::is_x86_feature_detected!("avx2");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// As it is stored.
fn rounded(count: f64) -> f64 {
    (count * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_sorted_and_have_names_of_their_own() {
        assert!(COUNTERS.is_sorted_by(|a, b| a.name < b.name));
    }
}
