//! One rank, which measures.

use std::error::Error;
use std::net::IpAddr;
use std::process::ExitCode;
use std::time::Instant;

use bowline::{
    Access, Bounds, CommOptions, Communicator, DataType, Mr, Operation, Pd, ReduceOp, Request,
    Tensor, Work, rendezvous,
};

use bowline::rendezvous::Meeting;

use super::args::{CollectiveArgs, Test};
use super::data::Data;
use super::report::{Half, Report, Row};
use crate::nic_name::NicName;
use crate::output;
use crate::peers::KeyGuard;

/// A rank, with buffers for the largest size.
struct Bench<'a> {
    args: &'a CollectiveArgs,
    bounds: Option<Bounds>,
    comm: Communicator,
    pd: Pd,
    data: Data,
    input: Mr,
    output: Mr,
}

pub(super) fn run(args: &CollectiveArgs) -> Result<ExitCode, Box<dyn Error>> {
    let meeting = rendezvous::from_env()?;
    let (rank, ranks) = (meeting.rank, meeting.ranks);
    if args.test.is_rooted() && args.root >= ranks {
        return Err(format!("invalid --root {}: there are {ranks} ranks, from 0", args.root).into());
    }
    let name = match &args.device {
        Some(name) => name.clone(),
        None => NicName::Addr(rendezvous::device_addr(None, rank)?),
    };
    // Refuse before anything is opened.
    let meeting = guarded(args, name.addr()?, meeting)?;
    let via = args.via.unwrap_or_else(|| name.usual_via());
    let mut builder = name.builder().via(via).notice(output::notice);
    if let Some(link) = &args.link {
        builder = builder.link(link.clone());
    }
    if let Some(cc) = &args.cc {
        builder = builder.congestion_control(cc.clone());
    }
    let device = builder.open()?;
    let pd = device.alloc_pd()?;
    let bounds = args.bounds()?;
    let options = CommOptions {
        timeout: args.timeout,
        chunk_bytes: args.chunk,
        window_bytes: args.window,
        transport: args.transport,
        multicast: args.multicast,
        bounds: bounds.unwrap_or(Bounds::EXACT),
        ..CommOptions::default()
    };
    let sizes = args.sizes()?;
    let comm = Communicator::meet(&pd, meeting, options)?;
    // Space for the blocks of all ranks, even if a size is not divisible by their number.
    let longest = sizes.iter().max().copied().unwrap_or(0).max(args.dtype.size());
    let bench = Bench {
        args,
        bounds,
        data: Data::new(args, rank, ranks),
        input: pd.register(longest, Access::LOCAL_WRITE)?,
        output: pd.register(longest, Access::LOCAL_WRITE)?,
        comm,
        pd,
    };
    let mut report = Report::new(args, &bench.comm, &device, rank == 0 && !args.json);
    report.print_header();
    let name = format!("collective {}", args.test.name());
    let progress = (rank == 0).then(|| output::progress(sizes.len() as u64, &name));
    for bytes in sizes {
        let row = bench.row(bytes)?;
        // The progress bar would overwrite a line that is printed past it.
        match &progress {
            Some(bar) => bar.suspend(|| report.add(row)),
            None => report.add(row),
        }
        if let Some(bar) = &progress {
            bar.inc(1);
        }
    }
    if let Some(bar) = &progress {
        bar.finish_and_clear();
    }
    report.print_end();
    if args.json && rank == 0 {
        output::say(&report.json());
    }
    Ok(if report.wrong() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Makes ranks authenticate each other where other processes could impersonate them.
fn guarded(
    args: &CollectiveArgs,
    addr: IpAddr,
    meeting: Meeting,
) -> Result<Meeting, Box<dyn Error>> {
    // Ranks that this command started itself meet in a private directory.
    let is_private = addr.is_loopback() || args.member;
    if args.insecure || (is_private && !args.seal) {
        return Ok(meeting);
    }
    let guard = KeyGuard::of_user()?;
    let advice = "or use --insecure to go without authentication and encryption";
    meeting.guarded(Box::new(guard)).map_err(|e| format!("{e}; {advice}").into())
}

impl Bench<'_> {
    fn row(&self, bytes: usize) -> Result<Row, Box<dyn Error>> {
        let args = self.args;
        let (operation, count) = args.test.operation(bytes, args, self.comm.size());
        let request = Request {
            dtype: args.dtype,
            op: args.op,
            algorithm: args.algorithm,
            ..Request::new(operation)
        };
        // Operations that do not support bounds use RC.
        let bounded = self.bounds.map(|bounds| request.with_bounds(&bounds, self.comm.hosts()));
        let algorithm = match bounded {
            Some(Ok(bounded)) => bounded.algorithm,
            _ => request.algorithm_for(self.comm.hosts())?,
        };
        let out_of_place = self.half(&request, bytes, count)?;
        let in_place = match args.test.is_in_place_too() {
            true => Some(self.half(&Request { in_place: true, ..request }, bytes, count)?),
            false => None,
        };
        Ok(Row { bytes, count, algorithm: algorithm.name(), out_of_place, in_place })
    }

    fn half(&self, request: &Request, bytes: usize, count: usize) -> Result<Half, Box<dyn Error>> {
        let in_place = request.in_place;
        self.data.fill(if in_place { &self.output } else { &self.input }, count, in_place);
        let mut wrong = None;
        if self.args.check == 1 {
            // Check before the timed operations: in place, each operation reduces the result of the
            // previous one.
            self.once(request, count, true)?;
            wrong = Some(self.sum(self.data.wrong(&self.output, count, in_place))?);
        }
        for _ in 0..self.args.warmup {
            self.once(request, count, false)?;
        }
        self.comm.barrier()?.wait()?;
        let mut times = Vec::with_capacity(self.args.iters as usize);
        let (mut missing, mut expected) = (0, 0);
        for _ in 0..self.args.iters {
            let started = Instant::now();
            let (lacks, of) = self.once(request, count, false)?;
            times.push(started.elapsed().as_secs_f64());
            missing += lacks;
            expected += of;
        }
        times.sort_by(f64::total_cmp);
        let mean = times.iter().sum::<f64>() / times.len() as f64;
        let p99 = times[(times.len() * 99).div_ceil(100) - 1];
        let mean = self.agree(mean, ReduceOp::Average)?;
        let p99 = self.agree(p99, ReduceOp::Max)?;
        let bus = self.args.test.bus_factor(self.comm.size());
        let half = Half::new(bytes, mean, p99, bus, wrong);
        if self.bounds.is_none() {
            return Ok(half);
        }
        let (missing, expected) = (self.sum(missing)?, self.sum(expected)?);
        Ok(half.with_loss(missing as f64 / expected.max(1) as f64))
    }

    /// Runs one operation. Returns the bytes that were missing and the bytes that were expected
    /// over XP. An exact operation misses none.
    fn once(
        &self,
        request: &Request,
        count: usize,
        exact: bool,
    ) -> Result<(u64, u64), bowline::Error> {
        let (mut missing, mut expected) = (0, 0);
        for work in self.start(request, count, exact)? {
            let report = work.wait_report()?;
            missing += report.missing_bytes;
            expected += report.expected_bytes;
        }
        Ok((missing, expected))
    }

    fn start(
        &self,
        request: &Request,
        count: usize,
        exact: bool,
    ) -> Result<Vec<Work>, bowline::Error> {
        let (rank, ranks) = (self.comm.rank(), self.comm.size());
        if self.args.test == Test::Sendrecv {
            let bytes = count * request.dtype.size();
            let tensor = |mr| Tensor::new(mr, 0..bytes, request.dtype);
            let (next, before) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
            let send = self.comm.send(&tensor(&self.input)?, next)?;
            return Ok(vec![send, self.comm.recv(&tensor(&self.output)?, before)?]);
        }
        let (input, output) = request.bytes(rank, ranks)?;
        let tensor = |mr, bytes: usize| {
            let tensor = (bytes > 0).then(|| Tensor::new(mr, 0..bytes, request.dtype));
            tensor.transpose()
        };
        let (input, output) = (tensor(&self.input, input)?, tensor(&self.output, output)?);
        let (input, output) = (input.as_ref(), output.as_ref());
        let hosts = self.comm.hosts();
        let is_bounded = self.bounds.is_some_and(|b| request.with_bounds(&b, hosts).is_ok());
        Ok(vec![match exact && is_bounded {
            true => self.comm.start_with(request, input, output, Some(Bounds::EXACT))?,
            false => self.comm.start(request, input, output)?,
        }])
    }

    /// Reduces a number over all ranks.
    fn agree(&self, value: f64, op: ReduceOp) -> Result<f64, bowline::Error> {
        let bytes = self.reduce(value.to_ne_bytes(), DataType::F64, op)?;
        Ok(f64::from_ne_bytes(bytes))
    }

    fn sum(&self, value: u64) -> Result<u64, bowline::Error> {
        Ok(u64::from_ne_bytes(self.reduce(value.to_ne_bytes(), DataType::U64, ReduceOp::Sum)?))
    }

    fn reduce(
        &self,
        value: [u8; 8],
        dtype: DataType,
        op: ReduceOp,
    ) -> Result<[u8; 8], bowline::Error> {
        let mr = self.pd.register(8, Access::LOCAL_WRITE)?;
        mr.write_at(0, &value);
        let operation = Operation::Allreduce { count: 1 };
        let request = Request { dtype, op, in_place: true, ..Request::new(operation) };
        let tensor = Tensor::new(&mr, 0..8, dtype)?;
        // This uses RC, whichever transport is measured.
        self.comm.start_with(&request, None, Some(&tensor), None)?.wait()?;
        let mut out = [0; 8];
        mr.read_at(0, &mut out);
        Ok(out)
    }
}
