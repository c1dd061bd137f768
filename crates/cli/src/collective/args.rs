//! Options of `bowline collective`.

use std::time::Duration;

use bowline::{
    Algorithm, Bounds, CommTransport, DataType, Deadline, LinkProfile, Operation, Rank,
    RateControl, Recovery, ReduceOp, TimeoutRule, Via,
};
use bowline_link::units;
use clap::{Args, ValueEnum, value_parser};

use crate::nic_name::NicName;
use crate::output::{parse_bytes, parse_time};

/// Measure collective operations between ranks, as nccl-tests do
///
/// Without a launcher it starts the ranks itself, as processes on this machine. Under torchrun,
/// mpirun or srun each process is a rank.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    bowline collective allreduce -b 8 -e 128M -f 2 --ranks 4\n  \
    bowline collective allgather -b 1M -e 1M --ranks 8 --algorithm ring --json\n  \
    bowline collective allreduce -b 64K -e 64K -n 1000 --ranks 2 --type bf16 --op average\n  \
    bowline collective allreduce -e 16M --ranks 4 --transport xp --deadline adaptive --max-loss 1%\n  \
    bowline collective broadcast -b 1M -e 16M --ranks 4 --multicast\n  \
    bowline collective allreduce -b 16M -e 16M --transport sr-nack --link rate=1Gbps,delay=5ms,loss=0.1%\n  \
    torchrun --nproc-per-node 4 --no-python bowline collective allreduce -e 1M\n  \
    BOWLINE_STORE=file:///shared/dir srun -n 16 bowline collective all-to-all --device 10.0.0.7 --insecure\n\n\
    Outside loopback, ranks authenticate to rank 0 (at MASTER_ADDR) and encrypt their packets. All ranks need \
    the same key, e.g. from a shared home directory, or keys that the others trust (`bowline key trust`). A \
    store (BOWLINE_STORE) cannot authenticate ranks: it needs --insecure.\n\n\
    Sizes are those of the whole buffer, all blocks included. Times are means over ranks in microseconds. \
    algbw is size divided by time, busbw is what each rank's link carries, both in GB/s. p99 is the slowest \
    rank's. #wrong counts wrong elements; if there are any, or if a rank fails, the exit status is 1. Over XP, \
    loss is the share of bytes that was missing, and #wrong is counted in an operation that may lose nothing.")]
pub(crate) struct CollectiveArgs {
    /// What to measure
    pub(super) test: Test,
    /// Ranks to start on this machine [default: 2, or as the launcher says]
    #[arg(long, value_name = "COUNT", value_parser = value_parser!(u32).range(1..=250))]
    pub(super) ranks: Option<u32>,
    /// Smallest size in bytes; K, M and G are powers of 1024
    #[arg(short = 'b', long, default_value = "8", value_parser = parse_bytes, value_name = "BYTES")]
    pub(super) min_bytes: u32,
    /// Largest size
    #[arg(short = 'e', long, default_value = "32M", value_parser = parse_bytes, value_name = "BYTES")]
    pub(super) max_bytes: u32,
    /// Factor from one size to the next
    #[arg(short = 'f', long, default_value_t = 2)]
    #[arg(value_parser = value_parser!(u32).range(2..=1024))]
    pub(super) factor: u32,
    /// Timed operations per size
    #[arg(short = 'n', long, default_value_t = 20)]
    #[arg(value_parser = value_parser!(u32).range(1..=1_000_000))]
    pub(super) iters: u32,
    /// Warm-up operations per size, not timed
    #[arg(short = 'w', long, default_value_t = 5)]
    #[arg(value_parser = value_parser!(u32).range(0..=1_000_000))]
    pub(super) warmup: u32,
    /// Whether to check results: 1 or 0
    #[arg(short = 'c', long, default_value_t = 1, value_parser = value_parser!(u8).range(0..=1))]
    pub(super) check: u8,
    /// Elements: f32, f64, f16, bf16, i8, u8, i32, u32, i64 or u64
    #[arg(short = 'd', long = "type", default_value = "f32", value_name = "TYPE")]
    pub(super) dtype: DataType,
    /// Reduction: sum, product, min, max or average
    #[arg(short = 'o', long, default_value = "sum", value_name = "OP")]
    pub(super) op: ReduceOp,
    /// Root of broadcast, reduce, gather and scatter
    #[arg(short = 'r', long, default_value_t = 0, value_name = "RANK")]
    pub(super) root: Rank,
    /// Algorithm: auto, exchange, direct, ring, halving, tree, two-level, bruck or multicast
    #[arg(short, long, default_value = "auto", value_name = "NAME")]
    pub(super) algorithm: Algorithm,
    /// Largest message between two ranks, in bytes
    #[arg(long, default_value = "128K", value_parser = parse_bytes, value_name = "BYTES")]
    pub(super) chunk: u32,
    /// Most bytes in flight to a rank [default: 1M, or 4M over SDR's schemes]
    #[arg(long, value_parser = parse_bytes, value_name = "BYTES")]
    pub(super) window: Option<u32>,
    /// Transport: `rc`; `xp`, with limits on time and loss; or, for long links, `sr-nack`,
    /// `ec-mds`, or `auto`, which picks one of these two for each message
    #[arg(long, default_value = "rc", value_name = "NAME")]
    pub(super) transport: CommTransport,
    /// Give each rank a multicast group of all the others and use it for `broadcast`: the root
    /// reads its data once, and its port copies the packets
    #[arg(long)]
    pub(super) multicast: bool,
    /// How long operations over XP wait for packets that may be lost: `never` give up, `adaptive`,
    /// `paper`, or a time, e.g. 500us [default: never]
    #[arg(long, value_name = "TIME", value_parser = parse_deadline)]
    pub(super) deadline: Option<Deadline>,
    /// Share of bytes that may be missing in operations over XP, e.g. 1% or 0.01 [default: 0]
    #[arg(long, value_name = "SHARE", value_parser = units::parse_probability)]
    pub(super) max_loss: Option<f64>,
    /// When to encode data that is reduced over XP, so that a lost packet adds a small error to
    /// many elements instead of losing some: auto (while operations end with missing bytes), always
    /// or never [default: auto]
    #[arg(long, value_name = "WHEN", num_args = 0..=1, default_missing_value = "always")]
    pub(super) recovery: Option<RecoveryArg>,
    /// How long an operation may take
    #[arg(long, default_value = "60s", value_parser = parse_time, value_name = "TIME")]
    pub(super) timeout: Duration,
    /// This rank's NIC, under a launcher: an address of this machine, or verbs:NAME for a RoCE NIC
    /// of the system [default: a loopback address for each rank, or the address from which
    /// MASTER_ADDR is reached]
    #[arg(long, value_name = "NIC")]
    pub(super) device: Option<NicName>,
    /// Packet transport of each rank: auto, shared memory between ranks of one host and UDP to all
    /// others; shm, the same, or an error without shared memory; udp [default: auto]
    #[arg(long, value_name = "PORT")]
    pub(super) via: Option<Via>,
    /// Impair what each rank sends, e.g. loss=0.1%,delay=10ms,rate=1Gbps,queue=8MiB
    #[arg(long, value_name = "PROFILE")]
    pub(super) link: Option<LinkProfile>,
    /// Congestion control of XP and the schemes: none, fixed:1Gbps, dcqcn, bbr [default: bbr to
    /// another host]
    #[arg(long, value_name = "NAME")]
    pub(super) cc: Option<RateControl>,
    /// Disable authentication and encryption between ranks (on loopback they are off by default)
    #[arg(long)]
    pub(super) insecure: bool,
    /// Authenticate ranks and encrypt every packet, even on loopback
    #[arg(long, conflicts_with = "insecure")]
    pub(super) seal: bool,
    /// Print one JSON object and nothing else
    #[arg(long)]
    pub(super) json: bool,
    /// Run as a rank, regardless of the other options
    #[arg(long, hide = true)]
    pub(super) member: bool,
}

fn parse_deadline(text: &str) -> Result<Deadline, String> {
    match text {
        "never" => Ok(Deadline::Never),
        "adaptive" => Ok(Deadline::Adaptive(TimeoutRule::Margin)),
        "paper" => Ok(Deadline::Adaptive(TimeoutRule::Paper)),
        time => units::parse_duration(time).map(Deadline::After),
    }
}

/// What to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Test {
    /// All ranks get the reduction of all buffers
    Allreduce,
    /// Each rank gets a block of the reduction
    ReduceScatter,
    /// All ranks get the blocks of all ranks
    Allgather,
    /// Each rank gets its block from every rank
    AllToAll,
    /// All ranks get the root's buffer
    Broadcast,
    /// The root gets the reduction
    Reduce,
    /// The root gets the blocks of all ranks
    Gather,
    /// Each rank gets its block of the root's buffer
    Scatter,
    /// Each rank sends to the next and receives from the one before
    Sendrecv,
    /// All ranks wait for each other
    Barrier,
}

impl Test {
    /// The name as typed on the command line.
    pub(super) fn name(self) -> String {
        let value = self.to_possible_value().expect("no test is skipped");
        value.get_name().to_owned()
    }

    /// The operation on buffers of `bytes` bytes, and the number of elements it counts.
    pub(super) fn operation(
        self,
        bytes: usize,
        args: &CollectiveArgs,
        ranks: u32,
    ) -> (Operation, usize) {
        let all = bytes / args.dtype.size();
        let (block, root) = (all / ranks as usize, args.root);
        match self {
            Test::Allreduce => (Operation::Allreduce { count: all }, all),
            Test::ReduceScatter => (Operation::ReduceScatter { count: block }, block),
            Test::Allgather => (Operation::Allgather { count: block }, block),
            Test::AllToAll => (Operation::AllToAll { count: block }, block),
            Test::Broadcast => (Operation::Broadcast { count: all, root }, all),
            Test::Reduce => (Operation::Reduce { count: all, root }, all),
            Test::Gather => (Operation::Gather { count: block, root }, block),
            Test::Scatter => (Operation::Scatter { count: block, root }, block),
            Test::Sendrecv => (Operation::Send { count: all, to: 0 }, all),
            Test::Barrier => (Operation::Barrier, 0),
        }
    }

    /// Bytes that a rank's link carries, relative to the size.
    pub(super) fn bus_factor(self, ranks: u32) -> f64 {
        let n = f64::from(ranks);
        match self {
            Test::Allreduce => 2.0 * (n - 1.0) / n,
            Test::ReduceScatter | Test::Allgather | Test::AllToAll => (n - 1.0) / n,
            Test::Gather | Test::Scatter => (n - 1.0) / n,
            Test::Broadcast | Test::Reduce | Test::Sendrecv | Test::Barrier => 1.0,
        }
    }

    /// Whether the operation combines elements.
    pub(super) fn reduces(self) -> bool {
        matches!(self, Test::Allreduce | Test::ReduceScatter | Test::Reduce)
    }

    /// Whether the operation has a root.
    pub(super) fn is_rooted(self) -> bool {
        matches!(self, Test::Broadcast | Test::Reduce | Test::Gather | Test::Scatter)
    }

    /// Whether input and output can be one buffer. An all-to-all exchange never works in place, and
    /// nobody sends to itself.
    pub(super) fn is_in_place_too(self) -> bool {
        !matches!(self, Test::AllToAll | Test::Sendrecv | Test::Barrier)
    }
}

/// Values of `--recovery`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum RecoveryArg {
    Auto,
    Always,
    Never,
}

impl CollectiveArgs {
    /// The bounds on time and loss, if the operations use XP.
    pub(super) fn bounds(&self) -> Result<Option<Bounds>, String> {
        if self.transport != CommTransport::Xp {
            let given =
                self.deadline.is_some() || self.max_loss.is_some() || self.recovery.is_some();
            return match given {
                true => Err("--deadline, --max-loss and --recovery need --transport xp".to_owned()),
                false => Ok(None),
            };
        }
        let max_loss = self.max_loss.unwrap_or(0.0);
        let bounds = Bounds::new(self.deadline.unwrap_or_default(), max_loss);
        let recovery = match self.recovery.unwrap_or(RecoveryArg::Auto) {
            RecoveryArg::Auto => Recovery::Auto,
            RecoveryArg::Always => Recovery::Always,
            RecoveryArg::Never => Recovery::Never,
        };
        let bounds = bounds.map(|bounds| Some(Bounds { recovery, ..bounds }));
        bounds.ok_or_else(|| {
            format!("invalid --max-loss {max_loss}: write a share from 0 to 1, e.g. 1% or 0.01")
        })
    }

    /// The sizes to measure, in order.
    pub(super) fn sizes(&self) -> Result<Vec<usize>, String> {
        if self.test == Test::Barrier {
            return Ok(vec![0]);
        }
        if self.min_bytes > self.max_bytes {
            return Err(format!(
                "the smallest size, {}, is larger than the largest, {}: give -b below -e",
                self.min_bytes, self.max_bytes
            ));
        }
        let next = |bytes: &u64| Some(*bytes * u64::from(self.factor));
        let sizes = std::iter::successors(Some(u64::from(self.min_bytes)), next);
        Ok(sizes.take_while(|b| *b <= self.max_bytes.into()).map(|b| b as usize).collect())
    }
}
