//! A rank that measures.

use std::error::Error;
use std::process::ExitCode;
use std::time::Instant;

use bowline::{
    Access, CommOptions, Communicator, DataType, Device, Mr, Pd, ReduceOp, Request, Tensor, Work,
    rendezvous,
};

use super::args::{CollectiveArgs, Test};
use super::data::Data;
use super::report::{Half, Report, Row};
use crate::output;

/// A rank, with buffers for the largest size.
struct Bench<'a> {
    args: &'a CollectiveArgs,
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
        return Err(format!("--root {} is no rank of {ranks}: they count from 0", args.root).into());
    }
    let addr = match args.device {
        Some(addr) => addr,
        None => rendezvous::device_addr(None, rank)?,
    };
    let device = Device::builder(addr).notice(output::notice).open()?;
    let pd = device.alloc_pd()?;
    let options =
        CommOptions { timeout: args.timeout, chunk_bytes: args.chunk, ..CommOptions::default() };
    let sizes = args.sizes()?;
    let comm = Communicator::meet(&pd, meeting, options)?;
    // Blocks of all ranks, though a size may not be divisible.
    let longest = sizes.iter().max().copied().unwrap_or(0).max(args.dtype.size());
    let bench = Bench {
        args,
        data: Data::new(args, rank, ranks),
        input: pd.register(longest, Access::LOCAL_WRITE)?,
        output: pd.register(longest, Access::LOCAL_WRITE)?,
        comm,
        pd,
    };
    let mut report = Report::new(args, ranks, &device, rank == 0);
    report.print_header();
    let name = format!("collective {}", args.test.name());
    let progress = (rank == 0).then(|| output::progress(sizes.len() as u64, &name));
    for bytes in sizes {
        let row = bench.row(bytes)?;
        // A line printed through the bar would be drawn over.
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
        println!("{}", report.json());
    }
    Ok(if report.wrong() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
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
        let algorithm = request.algorithm_for(self.comm.size())?;
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
            // Before the timed ones, since each in place reduces what the one before has left.
            self.once(request, count)?;
            wrong = Some(self.sum(self.data.wrong(&self.output, count, in_place))?);
        }
        for _ in 0..self.args.warmup {
            self.once(request, count)?;
        }
        self.comm.barrier()?.wait()?;
        let mut times = Vec::with_capacity(self.args.iters as usize);
        for _ in 0..self.args.iters {
            let started = Instant::now();
            self.once(request, count)?;
            times.push(started.elapsed().as_secs_f64());
        }
        times.sort_by(f64::total_cmp);
        let mean = times.iter().sum::<f64>() / times.len() as f64;
        let p99 = times[(times.len() * 99).div_ceil(100) - 1];
        let mean = self.agree(mean, ReduceOp::Average)?;
        let p99 = self.agree(p99, ReduceOp::Max)?;
        let bus = self.args.test.bus_factor(self.comm.size());
        Ok(Half::new(bytes, mean, p99, bus, wrong))
    }

    fn once(&self, request: &Request, count: usize) -> Result<(), bowline::Error> {
        self.start(request, count)?.into_iter().try_for_each(Work::wait)
    }

    fn start(&self, request: &Request, count: usize) -> Result<Vec<Work>, bowline::Error> {
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
        Ok(vec![self.comm.start(request, input.as_ref(), output.as_ref())?])
    }

    /// A number of all ranks.
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
        self.comm.allreduce(&Tensor::new(&mr, 0..8, dtype)?, op)?.wait()?;
        let mut out = [0; 8];
        mr.read_at(0, &mut out);
        Ok(out)
    }
}
