//! Scenes in which messages arrive: all sizes, many connections, groups, and a library that is
//! loaded twice.

use crate::net::Handle;
use crate::rank::{Outcome, Rank, check, ensure, memory, wait};

/// Maximum message length, in a full run and in a quick run.
const FULL: usize = 64 << 20;
const QUICK: usize = 1 << 20;
/// Guard bytes after each receive, which must not change.
const GUARD: usize = 64;
const UNTOUCHED: u8 = 0xa5;

/// The bytes of a message.
fn fill(out: &mut [u8], seed: usize) {
    for (i, byte) in out.iter_mut().enumerate() {
        *byte = (i ^ (i >> 8) ^ (i >> 16)).wrapping_mul(31).wrapping_add(seed * 7 + 1) as u8;
    }
}

fn is_filled(bytes: &[u8], seed: usize) -> bool {
    let mut due = vec![0; bytes.len()];
    fill(&mut due, seed);
    due == bytes
}

/// Starts a send, however long the peer takes to get ready.
fn send(rank: &Rank, comm: Handle, bytes: &mut [u8], tag: i32, memory: Handle) -> Outcome<Handle> {
    let (data, len) = (bytes.as_mut_ptr(), bytes.len());
    wait("isend", || rank.net.isend(comm, data, len, tag, memory))
}

fn recv(
    rank: &Rank,
    comm: Handle,
    receives: &[(*mut u8, usize, i32)],
    memory: Handle,
) -> Outcome<Handle> {
    wait("irecv", || rank.net.irecv(comm, receives, memory))
}

/// Messages of all sizes in both directions, into receives that fit exactly and into longer ones.
pub(crate) fn sizes(rank: &mut Rank) -> Outcome {
    let longest = if rank.is_full { FULL } else { QUICK };
    let powers = (0..).map(|power| 1_usize << power).take_while(|size| *size <= longest);
    let odd = [0, 3, 4095, 4097, 65_537, longest - 1];
    let sizes: Vec<usize> = powers.chain(odd).collect();
    for sender in [0, 1] {
        let comm = rank.connection(sender)?;
        let memory = memory(longest + longest / 2 + 2 * GUARD, UNTOUCHED);
        let registered = check(rank.net.reg_mr(comm, memory), "reg_mr")?;
        for (round, size) in sizes.iter().copied().enumerate() {
            if rank.number == sender {
                fill(&mut memory[..size], round);
                let request = send(rank, comm, &mut memory[..size], 5, registered)?;
                let sent = rank.wait_for(request)?;
                ensure(sent[0] == size as i32, format!("{size} bytes sent as {}", sent[0]))?;
                continue;
            }
            let room = size + if round % 2 == 0 { 0 } else { size / 2 + 1 };
            memory[..room + GUARD].fill(UNTOUCHED);
            let request = recv(rank, comm, &[(memory.as_mut_ptr(), room, 5)], registered)?;
            let got = rank.wait_for(request)?;
            ensure(got[0] == size as i32, format!("{size} bytes came as {}", got[0]))?;
            ensure(is_filled(&memory[..size], round), format!("{size} bytes changed"))?;
            let rest = &memory[size..room + GUARD];
            ensure(rest.iter().all(|byte| *byte == UNTOUCHED), format!("behind {size} bytes"))?;
        }
        check(rank.net.dereg_mr(comm, registered), "dereg_mr")?;
        close(rank, comm, sender)?;
    }
    Ok(())
}

fn close(rank: &Rank, comm: Handle, sender: u32) -> Outcome {
    match rank.number == sender {
        true => check(rank.net.close_send(comm), "close_send"),
        false => check(rank.net.close_recv(comm), "close_recv"),
    }
}

/// Eight connections at once, with alternating directions, each with messages in flight.
pub(crate) fn connections(rank: &mut Rank) -> Outcome {
    const COUNT: usize = 8;
    const DEEP: usize = 4;
    let (rounds, size) = if rank.is_full { (8, 1 << 20) } else { (3, 100_000) };
    let sender_of = |i: usize| (i % 2) as u32;
    let comms = (0..COUNT).map(|i| rank.connection(sender_of(i))).collect::<Outcome<Vec<_>>>()?;
    let mut memory: Vec<_> = (0..COUNT).map(|_| memory(DEEP * size, 0)).collect();
    let mut registered = Vec::new();
    for (comm, memory) in comms.iter().zip(&mut memory) {
        registered.push(check(rank.net.reg_mr(*comm, memory), "reg_mr")?);
    }
    for round in 0..rounds {
        let mut requests = Vec::new();
        for deep in 0..DEEP {
            for i in 0..COUNT {
                let (seed, is_sender) = (round + deep + i, sender_of(i) == rank.number);
                let bytes = &mut memory[i][deep * size..(deep + 1) * size];
                if is_sender {
                    fill(bytes, seed);
                } else {
                    bytes.fill(UNTOUCHED);
                    let place = [(bytes.as_mut_ptr(), size, 9)];
                    requests.push((recv(rank, comms[i], &place, registered[i])?, i, deep));
                }
            }
        }
        for deep in 0..DEEP {
            for i in (0..COUNT).filter(|i| sender_of(*i) == rank.number) {
                let bytes = &mut memory[i][deep * size..(deep + 1) * size];
                requests.push((send(rank, comms[i], bytes, 9, registered[i])?, i, deep));
            }
        }
        for (request, i, deep) in requests {
            let sizes = rank.wait_for(request)?;
            ensure(sizes[0] == size as i32, format!("{size} bytes became {}", sizes[0]))?;
            let bytes = &memory[i][deep * size..(deep + 1) * size];
            ensure(is_filled(bytes, round + deep + i), format!("connection {i} mixes messages"))?;
        }
    }
    rank.meet()?;
    for (i, comm) in comms.iter().enumerate() {
        check(rank.net.dereg_mr(*comm, registered[i]), "dereg_mr")?;
        close(rank, *comm, sender_of(i))?;
    }
    Ok(())
}

/// Receives with several tags at once, matched by sends in another order.
pub(crate) fn groups(rank: &mut Rank) -> Outcome {
    const ROOM: usize = 10_000;
    const DEEP: usize = 3;
    let comm = rank.connection(0)?;
    let memory = memory(DEEP * 8 * ROOM, 0);
    let registered = check(rank.net.reg_mr(comm, memory), "reg_mr")?;
    // One message may be longer than an SDR segment.
    let size_of = |deep: usize, i: usize| (deep * 2_000 + i * 700 + 1) % ROOM;
    for count in (1..=8_usize).rev() {
        let tag_of = |i: usize| 100 + ((i * 3) % 8) as i32;
        let mut requests = Vec::new();
        for deep in 0..DEEP {
            let at = |i: usize| (deep * 8 + i) * ROOM;
            if rank.number == 1 {
                let bytes = memory.as_mut_ptr();
                let place = |i: usize| (bytes.wrapping_add(at(i)), ROOM, tag_of(i));
                let receives: Vec<_> = (0..count).map(place).collect();
                requests.push(recv(rank, comm, &receives, registered)?);
            } else {
                // There is no receive for this one.
                let none = rank.net.isend(comm, memory.as_mut_ptr(), 1, 7, registered);
                ensure(none == Ok(None), format!("a send without a receive: {none:?}"))?;
                for i in (0..count).rev() {
                    let bytes = &mut memory[at(i)..at(i) + size_of(deep, i)];
                    fill(bytes, count + i);
                    requests.push(send(rank, comm, bytes, tag_of(i), registered)?);
                }
            }
        }
        for (n, request) in requests.into_iter().enumerate() {
            let sizes = rank.wait_for(request)?;
            if rank.number == 0 {
                continue;
            }
            for (i, size) in sizes[..count].iter().enumerate() {
                let (at, due) = ((n * 8 + i) * ROOM, size_of(n, i));
                ensure(*size == due as i32, format!("{due} bytes came as {size}"))?;
                ensure(is_filled(&memory[at..at + due], count + i), "a group mixes messages")?;
            }
            ensure(sizes[count..].iter().all(|size| *size == -1), "sizes of no receive")?;
        }
        rank.meet()?;
    }
    check(rank.net.dereg_mr(comm, registered), "dereg_mr")?;
    close(rank, comm, 0)
}

/// The library is unloaded, as NCCL does, and loaded again.
pub(crate) fn reload(rank: &mut Rank) -> Outcome {
    for round in 0..2 {
        let comm = rank.connection(0)?;
        let memory = memory(1000, 0);
        let registered = check(rank.net.reg_mr(comm, memory), "reg_mr")?;
        if rank.number == 0 {
            fill(memory, round);
            let request = send(rank, comm, memory, 1, registered)?;
            rank.wait_for(request)?;
        } else {
            let request = recv(rank, comm, &[(memory.as_mut_ptr(), 1000, 1)], registered)?;
            rank.wait_for(request)?;
            ensure(is_filled(memory, round), "1000 bytes changed")?;
        }
        // Nothing is deregistered explicitly: closing does that.
        close(rank, comm, 0)?;
        if round == 0 {
            rank.reload()?;
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }
    Ok(())
}
