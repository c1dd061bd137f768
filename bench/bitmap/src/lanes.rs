//! Lanes that land packets, and what they cost.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};

use bowline_bench_common::{cpu_time_s, pin};
use bowline_sdr::{Landed, RecvTable};

use crate::Result;
use crate::stream::{Arrivals, LAYOUT, Message, PACKETS};

/// How the work is dealt out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dealing {
    /// One lane does all.
    OneLane,
    /// Two lanes, each with every second message of the same table.
    Messages,
    /// Two lanes, each with every second stripe of every message.
    Stripes,
}

impl Dealing {
    pub(crate) const ALL: [Dealing; 3] = [Dealing::OneLane, Dealing::Messages, Dealing::Stripes];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Dealing::OneLane => "one lane",
            Dealing::Messages => "two lanes, a message each",
            Dealing::Stripes => "two lanes, stripes of a message",
        }
    }

    fn lanes(self) -> u64 {
        if self == Dealing::OneLane { 1 } else { 2 }
    }
}

/// Messages that a stream has open at a time.
const DEPTH: u64 = 16;
/// Messages by which the application is behind the packets: lanes need not wait for each other.
const BEHIND: u64 = 8;

/// A lane's account of itself.
struct Account {
    packets: u64,
    chunks: u64,
    cpu_s: f64,
}

/// Runs `messages` messages through a new table, and returns packets a second of lanes' own time.
pub(crate) fn run(
    dealing: Dealing,
    chunk_shift: u32,
    messages: u64,
    cpus: [usize; 2],
) -> Result<f64> {
    let table = RecvTable::new(LAYOUT, PACKETS, chunk_shift);
    let stream = Stream {
        table: &table,
        dealing,
        messages,
        passed: [const { Progress(AtomicU64::new(0)) }; 2],
        opened: [const { Progress(AtomicU64::new(0)) }; 2],
    };
    let barrier = Barrier::new(dealing.lanes() as usize);
    let accounts: Vec<Result<Account>> = std::thread::scope(|scope| {
        let lanes: Vec<_> = (0..dealing.lanes())
            .map(|lane| {
                let (stream, barrier) = (&stream, &barrier);
                let cpu = cpus[lane as usize];
                scope.spawn(move || {
                    let pinned = pin(cpu);
                    barrier.wait();
                    pinned.map_err(|e| format!("CPU {cpu}: {e}"))?;
                    Ok(stream.lane(lane))
                })
            })
            .collect();
        lanes.into_iter().map(|lane| lane.join().expect("a lane does not panic")).collect()
    });
    let accounts = accounts.into_iter().collect::<Result<Vec<_>>>()?;
    let chunks: u64 = accounts.iter().map(|a| a.chunks).sum();
    if chunks != messages * u64::from(PACKETS >> chunk_shift) {
        return Err(format!("{chunks} chunks were completed in {messages} messages").into());
    }
    let packets: u64 = accounts.iter().map(|a| a.packets).sum();
    let longest_s = accounts.iter().map(|a| a.cpu_s).fold(0.0, f64::max);
    Ok(packets as f64 / longest_s)
}

/// How far a lane is. On a cache line of its own, since the other lane looks at it.
#[repr(align(64))]
struct Progress(AtomicU64);

struct Stream<'a> {
    table: &'a RecvTable,
    dealing: Dealing,
    messages: u64,
    /// Messages that each lane has passed.
    passed: [Progress; 2],
    /// Messages up to which each lane has opened its own.
    opened: [Progress; 2],
}

impl Stream<'_> {
    fn lane(&self, lane: u64) -> Account {
        let stripes = if self.dealing == Dealing::Stripes { 2 } else { 1 };
        let arrivals = Arrivals::of_lane(lane as u32 % stripes, stripes);
        let step = if self.dealing == Dealing::Messages { 2 } else { 1 };
        let mut account = Account { packets: 0, chunks: 0, cpu_s: 0.0 };
        let start_s = cpu_time_s();
        let first = if self.dealing == Dealing::Messages { lane } else { 0 };
        for number in (0..DEPTH).filter(|n| self.opens(lane, *n)) {
            self.open(lane, number);
        }
        for number in (first..self.messages).step_by(step) {
            self.land(&arrivals, number, &mut account);
            self.passed[lane as usize].0.store(number + 1, Ordering::Release);
            if let Some(over) = number.checked_sub(BEHIND).filter(|n| self.opens(lane, *n)) {
                self.close(over);
                self.land_late(&arrivals, over, &mut account);
                self.open(lane, over + DEPTH);
            }
        }
        account.cpu_s = cpu_time_s() - start_s;
        account
    }

    /// Whether a lane opens and closes a message: as many each.
    fn opens(&self, lane: u64, number: u64) -> bool {
        number % self.dealing.lanes() == lane
    }

    fn open(&self, lane: u64, number: u64) {
        let Message { id, generation } = Message::of(number);
        self.table.open(id, generation, PACKETS);
        self.opened[lane as usize].0.store(number + 1, Ordering::Release);
    }

    fn land(&self, arrivals: &Arrivals, number: u64, account: &mut Account) {
        if self.dealing == Dealing::Stripes {
            wait_for(&self.opened[(number % 2) as usize], number + 1);
        }
        let message = Message::of(number);
        let base = message.base();
        for imm in arrivals.imms() {
            let landed = self.table.land(message.generation, base | imm);
            account.chunks += u64::from(landed == Landed::Chunk);
        }
        account.packets += arrivals.imms().len() as u64;
    }

    /// Ends a message when all lanes have passed it.
    fn close(&self, number: u64) {
        if self.dealing == Dealing::Stripes {
            self.passed.iter().for_each(|passed| wait_for(passed, number + 1));
        }
        let id = Message::of(number).id;
        assert!(self.table.chunks(id).is_complete(), "message {number} is not all there");
        self.table.close(id);
    }

    fn land_late(&self, arrivals: &Arrivals, number: u64, account: &mut Account) {
        let message = Message::of(number);
        let late = arrivals.late().iter();
        let late = late.map(|imm| self.table.land(message.generation, message.base() | imm));
        account.packets += late.filter(|landed| *landed == Landed::Late).count() as u64;
    }
}

fn wait_for(progress: &Progress, at_least: u64) {
    while progress.0.load(Ordering::Acquire) < at_least {
        std::hint::spin_loop();
    }
}
