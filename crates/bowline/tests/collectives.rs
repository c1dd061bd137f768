//! Communicators over real sockets, one thread per rank.

use std::net::TcpListener;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bowline::{
    Access, Algorithm, Bounds, Cause, CollectiveFailure, CommOptions, CommTransport, Communicator,
    DataType, Deadline, Device, DeviceBuilder, Error, Mr, Operation, Pd, Rank, ReduceOp, Request,
    SdrScheme, Tensor, Via, rendezvous,
};

const OPTIONS: CommOptions = CommOptions {
    timeout: Duration::from_secs(60),
    setup_timeout: Duration::from_secs(60),
    chunk_bytes: 16 << 10,
    window_bytes: None,
    transport: CommTransport::Rc,
    multicast: false,
    bounds: Bounds::EXACT,
};

/// A directory for a store, gone at the end.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        let name = format!("bowline-collectives-{name}-{}", std::process::id());
        Dir(std::env::temp_dir().join(name))
    }

    fn url(&self) -> String {
        format!("file://{}", self.0.display())
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What a rank has.
struct Rig {
    device: Device,
    pd: Pd,
    comm: Communicator,
}

impl Rig {
    fn tensor(&self, values: &[f32]) -> (Mr, Tensor) {
        let mr = self.pd.register(values.len() * 4, Access::LOCAL_WRITE).unwrap();
        mr.write_at(0, &values.iter().flat_map(|v| v.to_ne_bytes()).collect::<Vec<_>>());
        let tensor = Tensor::new(&mr, 0..values.len() * 4, DataType::F32).unwrap();
        (mr, tensor)
    }
}

fn values(mr: &Mr) -> Vec<f32> {
    let bytes = mr.to_vec(0, mr.len());
    bytes.as_chunks().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect()
}

/// Runs `body` at each rank, in a network of its own; returns the results.
fn ranks<R: Send>(net: u8, count: u32, body: impl Fn(Rig) -> R + Sync) -> Vec<R> {
    ranks_with(net, count, OPTIONS, "", body)
}

/// The same with other options, over a link of this profile.
fn ranks_with<R: Send>(
    net: u8,
    count: u32,
    options: CommOptions,
    link: &str,
    body: impl Fn(Rig) -> R + Sync,
) -> Vec<R> {
    let over = |builder: DeviceBuilder| match link {
        "" => builder,
        link => builder.link(link.parse().unwrap()),
    };
    ranks_on(net, count, options, over, body)
}

/// The same on other devices.
fn ranks_on<R: Send>(
    net: u8,
    count: u32,
    options: CommOptions,
    device: impl Fn(DeviceBuilder) -> DeviceBuilder + Sync,
    body: impl Fn(Rig) -> R + Sync,
) -> Vec<R> {
    ranks_on_each(net, count, options, |builder, _| device(builder), body)
}

/// The same on a device of its own kind for each rank.
fn ranks_on_each<R: Send>(
    net: u8,
    count: u32,
    options: CommOptions,
    device: impl Fn(DeviceBuilder, Rank) -> DeviceBuilder + Sync,
    body: impl Fn(Rig) -> R + Sync,
) -> Vec<R> {
    let dir = Dir::new(&format!("{net}"));
    let run = |rank: Rank| {
        let builder = Device::builder(format!("127.77.{net}.{}", rank + 1).parse().unwrap());
        let device = device(builder, rank).open().unwrap();
        let pd = device.alloc_pd().unwrap();
        let meeting = rendezvous::in_store(&dir.url(), "test", rank, count).unwrap();
        let comm = Communicator::meet(&pd, meeting, options).unwrap();
        body(Rig { device, pd, comm })
    };
    let run = &run;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..count).map(|rank| scope.spawn(move || run(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

const OVER_XP: CommOptions = CommOptions { transport: CommTransport::Xp, ..OPTIONS };

#[test]
fn collectives_over_xp_are_exact_over_a_lossy_link() {
    let count = 50_000;
    let value =
        |rank: u32, i: usize| ((i * 7919 + rank as usize * 104_729) % 1_000_003) as f32 * 1.1;
    let outputs = ranks_with(21, 3, OVER_XP, "loss=1%", |rig| {
        let rank = rig.comm.rank();
        let (mr, data) = rig.tensor(&(0..count).map(|i| value(rank, i)).collect::<Vec<_>>());
        let report = rig.comm.allreduce(&data, ReduceOp::Sum).unwrap().wait_report().unwrap();
        assert_eq!(report.missing_bytes, 0);
        // Operations that cannot have bounds use RC, and set-up exchanges lose nothing.
        rig.comm.barrier().unwrap().wait().unwrap();
        let same = rig.comm.duplicate().unwrap();
        same.barrier().unwrap().wait().unwrap();
        values(&mr)
    });
    let sum = |i: usize| (0..3).map(|rank| value(rank, i)).reduce(|a, b| a + b).unwrap();
    let expected: Vec<_> = (0..count).map(sum).collect();
    assert!(outputs.iter().all(|output| *output == expected), "in rank order, as over RC");
}

#[test]
fn collectives_over_sdrs_schemes_are_exact_over_a_long_lossy_link() {
    let count = 100_000;
    let value =
        |rank: u32, i: usize| ((i * 7919 + rank as usize * 104_729) % 1_000_003) as f32 * 1.1;
    for (net, scheme) in [23, 24, 25].into_iter().zip(SdrScheme::ALL) {
        let options = CommOptions { transport: CommTransport::Sdr(scheme), ..OPTIONS };
        let outputs = ranks_with(net, 3, options, "loss=1%,delay=1ms", |rig| {
            let rank = rig.comm.rank();
            let (mr, data) = rig.tensor(&(0..count).map(|i| value(rank, i)).collect::<Vec<_>>());
            for _ in 0..2 {
                rig.comm.allreduce(&data, ReduceOp::Max).unwrap().wait().unwrap();
            }
            rig.comm.barrier().unwrap().wait().unwrap();
            let same = rig.comm.duplicate().unwrap();
            same.barrier().unwrap().wait().unwrap();
            values(&mr)
        });
        let most = |i: usize| (0..3).map(|rank| value(rank, i)).reduce(f32::max).unwrap();
        let expected: Vec<_> = (0..count).map(most).collect();
        assert!(outputs.iter().all(|output| *output == expected), "{}", scheme.name());
    }
}

const BY_MULTICAST: CommOptions = CommOptions { multicast: true, ..OPTIONS };

#[test]
fn a_broadcast_by_multicast_gives_every_rank_the_tensor_of_its_root() {
    let value = |root: u32, count: usize, i: usize| ((i * 31 + count) % 9973) as f32 + root as f32;
    for (net, link) in [(41, ""), (42, "loss=1%")] {
        ranks_with(net, 4, BY_MULTICAST, link, |rig| {
            let (comm, rank) = (&rig.comm, rig.comm.rank());
            assert!(comm.has_multicast());
            for count in [1, 1000, 4096, 200_000] {
                let mut works = Vec::new();
                for root in 0..comm.size() {
                    let mine = |i| if rank == root { value(root, count, i) } else { -1.0 };
                    let (mr, data) = rig.tensor(&(0..count).map(mine).collect::<Vec<_>>());
                    works.push((root, mr, comm.broadcast(&data, root).unwrap()));
                    // Other operations go on between.
                    let (_, one) = rig.tensor(&[1.0]);
                    comm.allreduce(&one, ReduceOp::Sum).unwrap().wait().unwrap();
                }
                for (root, mr, work) in works {
                    work.wait().unwrap();
                    let expected: Vec<_> = (0..count).map(|i| value(root, count, i)).collect();
                    assert!(values(&mr) == expected, "{count} of rank {root} at {rank}{link}");
                }
            }
            let same = comm.duplicate().unwrap();
            assert!(same.has_multicast());
            let (mr, data) = rig.tensor(&[rank as f32]);
            same.broadcast(&data, 2).unwrap().wait().unwrap();
            assert_eq!(values(&mr), [2.0]);
        });
    }
}

#[test]
fn without_multicast_groups_broadcasts_go_as_ever() {
    ranks_with(43, 2, BY_MULTICAST, "", |rig| {
        assert!(!rig.comm.has_multicast(), "there is nothing to copy for one other rank");
        let (mr, data) = rig.tensor(&[rig.comm.rank() as f32; 5000]);
        rig.comm.broadcast(&data, 1).unwrap().wait().unwrap();
        assert_eq!(values(&mr), [1.0; 5000]);
    });
    ranks_with(44, 3, OPTIONS, "", |rig| {
        assert!(!rig.comm.has_multicast(), "nobody has asked for it");
        let (_, data) = rig.tensor(&[1.0]);
        let operation = Operation::Broadcast { count: 1, root: 0 };
        let algorithm = Algorithm::Multicast;
        let request = Request { algorithm, in_place: true, ..Request::new(operation) };
        let refused = rig.comm.start(&request, None, Some(&data));
        assert!(matches!(refused, Err(Error::Group(_))), "{refused:?}");
    });
}

#[test]
fn an_operation_with_bounds_loses_no_more_than_it_may() {
    let bounds = Bounds::new(Deadline::After(Duration::from_micros(1)), 0.05).unwrap();
    let options = CommOptions { bounds, ..OVER_XP };
    let count = 60_000;
    let outputs = ranks_with(22, 3, options, "loss=2%", |rig| {
        let (mr, data) = rig.tensor(&vec![rig.comm.rank() as f32 + 1.0; count]);
        let report = rig.comm.allreduce(&data, ReduceOp::Average).unwrap().wait_report().unwrap();
        assert!(
            report.missing_bytes <= bounds.allowed(report.expected_bytes / 2 + 8),
            "{report:?}"
        );
        let ring = Request {
            algorithm: Algorithm::Ring,
            in_place: true,
            ..Request::new(Operation::Allreduce { count })
        };
        let refused = rig.comm.start(&ring, None, Some(&data));
        assert!(matches!(refused, Err(Error::Request(_))), "{refused:?}");
        values(&mr)
    });
    assert!(outputs.windows(2).all(|pair| pair[0] == pair[1]), "replicas are equal");
    // Averages are by what arrived: of some of 1, 2 and 3, each rank's own among them.
    let may_be = [1.0, 1.5, 2.0, 2.5, 3.0];
    assert!(outputs[0].iter().all(|value| may_be.contains(value)));
}

#[test]
fn every_collective_gives_every_rank_its_part() {
    ranks(1, 3, |rig| {
        let (comm, rank, n) = (&rig.comm, rig.comm.rank() as f32, 3.0);
        assert_eq!(comm.size(), 3);

        let (mr, data) = rig.tensor(&[rank, 10.0 * rank, 1.0]);
        comm.allreduce(&data, ReduceOp::Sum).unwrap().wait().unwrap();
        assert_eq!(values(&mr), [3.0, 30.0, n]);

        let (mr, data) = rig.tensor(&[rank, rank + 1.0, rank + 2.0]);
        comm.reduce_scatter(&data, ReduceOp::Max).unwrap().wait().unwrap();
        assert_eq!(values(&mr)[rank as usize], 2.0 + rank);

        let (_, input) = rig.tensor(&[rank, -rank]);
        let (mr, output) = rig.tensor(&[9.0; 6]);
        comm.allgather_into(&input, &output).unwrap().wait().unwrap();
        assert_eq!(values(&mr), [0.0, 0.0, 1.0, -1.0, 2.0, -2.0]);

        let (_, input) = rig.tensor(&[0.0, 1.0, 2.0].map(|to: f32| 10.0 * rank + to));
        let (mr, output) = rig.tensor(&[9.0; 3]);
        comm.all_to_all_into(&input, &output).unwrap().wait().unwrap();
        assert_eq!(values(&mr), [rank, 10.0 + rank, 20.0 + rank]);

        let (mr, data) = rig.tensor(&[rank, 7.0 * rank]);
        comm.broadcast(&data, 2).unwrap().wait().unwrap();
        assert_eq!(values(&mr), [2.0, 14.0]);

        let (mr, data) = rig.tensor(&[rank + 1.0]);
        comm.reduce(&data, ReduceOp::Product, 1).unwrap().wait().unwrap();
        assert_eq!(values(&mr), [if rank == 1.0 { 6.0 } else { rank + 1.0 }]);

        let (_, input) = rig.tensor(&[rank]);
        let (mr, output) = rig.tensor(&[9.0; 3]);
        let output = (rank == 0.0).then_some(&output);
        comm.gather_into(&input, output, 0).unwrap().wait().unwrap();
        assert_eq!(values(&mr), if rank == 0.0 { [0.0, 1.0, 2.0] } else { [9.0; 3] });

        let (_, input) = rig.tensor(&[5.0, 6.0, 7.0]);
        let (mr, output) = rig.tensor(&[9.0]);
        let input = (rank == 1.0).then_some(&input);
        comm.scatter_into(input, &output, 1).unwrap().wait().unwrap();
        assert_eq!(values(&mr), [5.0 + rank]);

        comm.barrier().unwrap().wait().unwrap();
    });
}

/// More than the rings hold, by every algorithm, with several operations going on.
fn sum_long_tensors(rig: &Rig) {
    const COUNT: usize = 700_001;
    let rank = rig.comm.rank() as f32;
    let input: Vec<f32> = (0..COUNT).map(|i| (i % 1000) as f32 + rank).collect();
    let expected: Vec<f32> = (0..COUNT).map(|i| 4.0 * (i % 1000) as f32 + 6.0).collect();
    use Algorithm::{Direct, Exchange, Halving, Ring, Tree};
    let started: Vec<_> = [Exchange, Direct, Ring, Halving, Tree]
        .into_iter()
        .map(|algorithm| {
            let operation = Operation::Allreduce { count: COUNT };
            let request = Request { algorithm, in_place: true, ..Request::new(operation) };
            let (mr, data) = rig.tensor(&input);
            let work = rig.comm.start(&request, None, Some(&data)).unwrap();
            (algorithm, mr, work)
        })
        .collect();
    for (algorithm, mr, work) in started {
        work.wait().unwrap();
        assert!(values(&mr) == expected, "{algorithm}");
    }
}

#[test]
fn long_tensors_by_every_algorithm() {
    ranks(2, 4, |rig| {
        assert_eq!(rig.comm.ranks_in_memory(), 0, "over UDP");
        sum_long_tensors(&rig);
    });
}

/// Packets carry no data then, but the news of it.
#[test]
fn ranks_of_a_host_share_their_rings() {
    let received = ranks_on(
        14,
        4,
        OPTIONS,
        |device| device.via(Via::Shm),
        |rig| {
            assert_eq!(rig.comm.ranks_in_memory(), 3);
            sum_long_tensors(&rig);
            let bytes = rig.device.port_counters().unwrap().rx_bytes;
            let part = rig.comm.split(Some(0), rig.comm.rank()).unwrap();
            assert_eq!(part.unwrap().ranks_in_memory(), 3, "the ranks of a split too");
            bytes
        },
    );
    assert!(received.iter().all(|bytes| *bytes < 1 << 20), "{received:?} bytes in packets");
}

/// Nothing is lost between ranks that share memory, so nothing there goes over XP. Two of three
/// ranks do here.
#[test]
fn bounded_operations_go_through_shared_rings_too() {
    const COUNT: usize = 500_000;
    let device = |builder: DeviceBuilder, rank| match rank {
        2 => builder.via(Via::Udp),
        _ => builder.via(Via::Auto),
    };
    let received = ranks_on_each(16, 3, OVER_XP, device, |rig| {
        let rank = rig.comm.rank();
        assert_eq!(rig.comm.ranks_in_memory(), if rank == 2 { 0 } else { 1 });
        let request = Request::new(Operation::Allreduce { count: COUNT });
        let input = rig.tensor(&vec![rank as f32; COUNT]);
        let output = rig.tensor(&vec![0.0; COUNT]);
        let work = rig.comm.start(&request, Some(&input.1), Some(&output.1)).unwrap();
        let report = work.wait_report().unwrap();
        assert_eq!(report.missing_bytes, 0);
        // By `direct`, each rank gets its third of the inputs of others, and their results.
        let from_each = 2 * (COUNT as u64 * 4).div_ceil(3);
        assert!(report.expected_bytes.abs_diff(2 * from_each) < 64, "{report:?}");
        assert!(values(&output.0).iter().all(|sum| *sum == 3.0));
        rig.device.port_counters().unwrap().rx_bytes
    });
    assert!(received[0] < received[2] * 2 / 3, "{received:?} bytes in packets");
}

/// What goes over an emulated link, or into a capture, is all there is.
#[test]
fn packets_that_are_watched_or_delayed_carry_the_data() {
    let delayed = |device: DeviceBuilder| device.via(Via::Shm).link("delay=1ms".parse().unwrap());
    ranks_on(15, 2, OPTIONS, delayed, |rig| assert_eq!(rig.comm.ranks_in_memory(), 0));
}

#[test]
fn works_may_be_dropped_and_go_on() {
    let sums = ranks(3, 2, |rig| {
        let (mr, data) = rig.tensor(&vec![1.0; 100_000]);
        drop(rig.comm.allreduce(&data, ReduceOp::Sum).unwrap());
        drop(rig.comm.allreduce(&data, ReduceOp::Sum).unwrap());
        drop(data);
        rig.comm.barrier().unwrap().wait().unwrap();
        values(&mr)
    });
    assert!(sums.iter().flatten().all(|sum| *sum == 4.0));
}

#[test]
fn a_rank_that_has_gone_is_named_by_all_others() {
    let ended = ranks(4, 4, |rig| {
        let (_, data) = rig.tensor(&[1.0; 1000]);
        rig.comm.allreduce(&data, ReduceOp::Sum).unwrap().wait().unwrap();
        if rig.comm.rank() == 2 {
            // The others may still wait for its last ACKs.
            std::thread::sleep(Duration::from_millis(300));
            // Its cable is out from here on.
            rig.device.fault(&"down".parse().unwrap());
            return None;
        }
        let started = Instant::now();
        let error = rig.comm.allreduce(&data, ReduceOp::Sum).unwrap().wait().unwrap_err();
        let again = rig.comm.barrier().unwrap().wait().unwrap_err();
        assert_eq!(error.to_string(), again.to_string(), "it fails for good");
        Some((error, started.elapsed()))
    });
    for (error, elapsed) in ended.into_iter().flatten() {
        let Error::Collective(CollectiveFailure { rank: 2, cause: Cause::Unreachable }) = error
        else {
            panic!("{error}");
        };
        // Half a second, eight ACK timeouts of 0.27 s, and a busy machine.
        assert!(elapsed < Duration::from_secs(10), "{elapsed:?}");
    }
}

#[test]
fn a_rank_that_leaves_too_early_is_named_at_once() {
    let ended = ranks(5, 3, |rig| {
        if rig.comm.rank() == 1 {
            return None;
        }
        let (_, data) = rig.tensor(&[1.0; 1000]);
        Some(rig.comm.allreduce(&data, ReduceOp::Sum).unwrap().wait().unwrap_err().to_string())
    });
    for error in ended.into_iter().flatten() {
        assert!(error.starts_with("rank 1 has left the group"), "{error}");
    }
}

#[test]
fn ranks_in_different_operations_find_out() {
    let errors = ranks(6, 2, |rig| {
        let count = if rig.comm.rank() == 0 { 1000 } else { 1001 };
        let (_, data) = rig.tensor(&vec![1.0; count]);
        rig.comm.allreduce(&data, ReduceOp::Sum).unwrap().wait().unwrap_err().to_string()
    });
    assert!(errors.iter().all(|error| error.contains("same operations")), "{errors:?}");
}

#[test]
fn communicators_split_and_run_beside_each_other() {
    ranks(7, 4, |rig| {
        let rank = rig.comm.rank();
        let color = (rank != 3).then_some(rank % 2);
        // The keys turn their order around.
        let part = rig.comm.split(color, 10 - rank).unwrap();
        let both = rig.comm.duplicate().unwrap();
        assert_eq!((both.rank(), both.size()), (rank, 4));
        let (mr, data) = rig.tensor(&[rank as f32]);
        match &part {
            None => assert_eq!(rank, 3),
            Some(part) => {
                let expected = match rank {
                    0 => (1, 2),
                    2 => (0, 2),
                    _ => (0, 1),
                };
                assert_eq!((part.rank(), part.size()), expected);
                part.allreduce(&data, ReduceOp::Sum).unwrap().wait().unwrap();
                assert_eq!(values(&mr), [if rank == 1 { 1.0 } else { 2.0 }]);
            }
        }
        drop(part);
        let (mr, data) = rig.tensor(&[rank as f32]);
        both.allreduce(&data, ReduceOp::Sum).unwrap().wait().unwrap();
        assert_eq!(values(&mr), [6.0]);
    });
}

#[test]
fn ranks_meet_at_an_address_and_a_missing_one_is_named() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let meet = |rank: Rank, ranks: u32, timeout: Duration| {
        let pd = Device::open(&format!("127.77.8.{}", rank + 1)).unwrap().alloc_pd().unwrap();
        let meeting = rendezvous::at_address(free, rank, ranks).unwrap();
        let options = CommOptions { setup_timeout: timeout, ..OPTIONS };
        let comm = Communicator::meet(&pd, meeting, options)?;
        comm.barrier()?.wait()
    };
    let meet = &meet;
    std::thread::scope(|scope| {
        let patience = Duration::from_secs(60);
        let all: Vec<_> =
            (0..3).rev().map(|rank| scope.spawn(move || meet(rank, 3, patience))).collect();
        all.into_iter().for_each(|thread| thread.join().unwrap().unwrap());
    });
    let error = meet(0, 2, Duration::from_millis(200)).unwrap_err().to_string();
    assert!(error.contains("rank 1 did not come within 200ms"), "{error}");
}

/// Entries of an earlier run under the same name do not mislead the next one.
#[test]
fn a_store_may_hold_another_runs_entries() {
    let dir = Dir::new("again");
    for turn in 0..2 {
        std::thread::scope(|scope| {
            for rank in 0..2 {
                let url = dir.url();
                scope.spawn(move || {
                    // The second time ranks come far apart, and the first finds old entries.
                    std::thread::sleep(Duration::from_millis(u64::from(turn * rank) * 200));
                    let addr = format!("127.77.9.{}", rank + 1);
                    let pd = Device::open(&addr).unwrap().alloc_pd().unwrap();
                    let comm = Communicator::with_store(&pd, &url, "again", rank, 2).unwrap();
                    comm.barrier().unwrap().wait().unwrap();
                });
            }
        });
    }
}
