//! Scenes in which rank 1 is killed: rank 0 notices within a time limit, and every later call
//! returns at once.

use std::time::{Duration, Instant};

use nccl_net_bowline::abi::{REMOTE_ERROR, SYSTEM_ERROR};

use crate::rank::{Outcome, Rank, check, ensure, memory, wait};

/// How long it may take to notice that a peer was killed, even on a busy machine.
const BOUND: Duration = Duration::from_secs(15);
const SIZE: usize = 4 << 20;

/// Calls until an error is returned, which must blame the peer or the system.
fn fails<T>(what: &str, mut call: impl FnMut() -> Result<Option<T>, i32>) -> Outcome<Duration> {
    let start = Instant::now();
    while start.elapsed() < BOUND {
        match call() {
            Err(REMOTE_ERROR | SYSTEM_ERROR) => return Ok(start.elapsed()),
            Err(status) => return Err(format!("{what} says {status}")),
            Ok(Some(_)) => return Err(format!("{what} succeeds with nobody there")),
            Ok(None) => std::thread::yield_now(),
        }
    }
    Err(format!("{what} still waits after {BOUND:?}"))
}

/// Rank 1 waits until it is killed.
fn wait_for_death(rank: &mut Rank) -> Outcome {
    rank.tell(b"ready")?;
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// The receiver is killed, with posted receives that are not filled, and messages in flight.
pub(crate) fn receiver(rank: &mut Rank) -> Outcome {
    let comm = rank.connection(0)?;
    let memory = memory(4 * SIZE, 1);
    let registered = check(rank.net.reg_mr(comm, memory), "reg_mr")?;
    if rank.number == 1 {
        for i in 0..4 {
            let place = [(memory[i * SIZE..].as_mut_ptr(), SIZE, 1)];
            wait("irecv", || rank.net.irecv(comm, &place, registered))?;
        }
        return wait_for_death(rank);
    }
    rank.hear()?;
    let mut requests = Vec::new();
    let data = memory.as_mut_ptr();
    for _ in 0..3 {
        requests.push(wait("isend", || rank.net.isend(comm, data, SIZE, 1, registered))?);
    }
    rank.kill_other()?;
    // Messages that arrived before that may have completed.
    let start = Instant::now();
    while let Some(request) = requests.first() {
        match rank.net.test(*request) {
            Ok(Some(_)) => drop(requests.remove(0)),
            Ok(None) => ensure(start.elapsed() < BOUND, "a send to nobody hangs")?,
            Err(REMOTE_ERROR | SYSTEM_ERROR) => break,
            Err(status) => return Err(format!("test says {status}")),
        }
    }
    // In any case, a message that is sent now is not received.
    let mut late = None;
    fails("isend and test", || {
        if late.is_none() {
            late = rank.net.isend(comm, data, SIZE, 1, registered)?;
        }
        late.map_or(Ok(None), |request| rank.net.test(request))
    })?;
    let again = Instant::now();
    fails("isend", || rank.net.isend(comm, data, SIZE, 1, registered))?;
    ensure(again.elapsed() < Duration::from_secs(1), "an error is remembered")?;
    check(rank.net.dereg_mr(comm, registered), "dereg_mr")?;
    check(rank.net.close_send(comm), "close_send")
}

/// The sender is killed while a receive waits for a message.
pub(crate) fn sender(rank: &mut Rank) -> Outcome {
    let comm = rank.connection(1)?;
    let memory = memory(2 * SIZE, 1);
    let registered = check(rank.net.reg_mr(comm, memory), "reg_mr")?;
    let data = memory.as_mut_ptr();
    if rank.number == 1 {
        let request = wait("isend", || rank.net.isend(comm, data, SIZE, 1, registered))?;
        rank.wait_for(request)?;
        return wait_for_death(rank);
    }
    let receives = [(data, SIZE, 1)];
    let first = wait("irecv", || rank.net.irecv(comm, &receives, registered))?;
    let second = wait("irecv", || rank.net.irecv(comm, &receives, registered))?;
    rank.wait_for(first)?;
    rank.hear()?;
    rank.kill_other()?;
    fails("test", || rank.net.test(second))?;
    fails("irecv", || rank.net.irecv(comm, &receives, registered))?;
    check(rank.net.close_recv(comm), "close_recv")
}

/// The listener is killed before any rank connects, and the connecting rank before it is accepted.
pub(crate) fn listener(rank: &mut Rank) -> Outcome {
    if rank.number == 1 {
        rank.listen()?;
        let handle = rank.hear()?;
        let mut handle = handle.as_slice().try_into().map_err(|_| "no handle")?;
        check(rank.net.connect(0, &mut handle), "connect")?;
        std::thread::sleep(Duration::from_millis(200));
        return wait_for_death(rank);
    }
    let theirs = rank.hear()?;
    let listener = rank.listen()?;
    rank.hear()?;
    rank.kill_other()?;
    let mut handle = theirs.as_slice().try_into().map_err(|_| "no handle")?;
    fails("connect", || rank.net.connect(0, &mut handle))?;
    // A rank that has died is not accepted, and nothing waits for it.
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(1) {
        let accepted = check(rank.net.accept(listener), "accept")?;
        ensure(accepted.is_none(), "somebody dead is let in")?;
        ensure(start.elapsed() < Duration::from_secs(10), "accept hangs")?;
    }
    check(rank.net.close_listen(listener), "close_listen")
}
