//! Scenes about calls that are refused, and about peers that are not let in.

use std::io::Write;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpStream};
use std::ptr::null_mut;

use nccl_net_bowline::abi::{
    HANDLE_BYTES, INVALID_ARGUMENT, INVALID_USAGE, MAX_REQUESTS, PTR_CUDA, PTR_HOST, SUCCESS,
};

use crate::rank::{Outcome, Rank, check, ensure, memory, wait};

fn refused<T: std::fmt::Debug>(result: Result<T, i32>, status: i32, what: &str) -> Outcome {
    match result {
        Err(found) if found == status => Ok(()),
        other => Err(format!("{what}: {other:?} and not {status}")),
    }
}

/// How every call handles wrong arguments, and calls that exist only for form's sake.
pub(crate) fn rules(rank: &mut Rank) -> Outcome {
    ensure(rank.net.name() == "Bowline", "the name")?;
    ensure(check(rank.net.devices(), "devices")? == 1, "the environment names one device")?;
    let properties = check(rank.net.properties(0), "get_properties")?;
    ensure(properties.ptr_support == PTR_HOST, "memory of hosts only")?;
    ensure(properties.max_recvs == 8 && properties.speed > 0, format!("{properties:?}"))?;
    ensure(properties.name == "bl0", format!("the name {}", properties.name))?;
    refused(rank.net.properties(1), INVALID_ARGUMENT, "a device that is not there")?;
    refused(rank.net.properties(-1), INVALID_ARGUMENT, "a negative device")?;
    refused(rank.net.listen(7), INVALID_ARGUMENT, "listening on no device")?;
    let mut garbage = [9; HANDLE_BYTES];
    refused(rank.net.connect(0, &mut garbage), INVALID_ARGUMENT, "a handle of garbage")?;
    refused(rank.net.accept(null_mut()), INVALID_ARGUMENT, "accepting nowhere")?;
    ensure(!rank.net.has_make_v_device(), "devices are not merged")?;
    ensure(rank.net.set_net_attr().is_none_or(|status| status == SUCCESS), "set_net_attr")?;
    let comm = rank.connection(0)?;
    let memory = memory(4096, 1);
    refused(rank.net.reg_mr_of(comm, memory, PTR_CUDA), INVALID_USAGE, "CUDA memory")?;
    refused(rank.net.reg_mr_dma_buf(comm), INVALID_USAGE, "DMA-BUF")?;
    let registered = check(rank.net.reg_mr(comm, memory), "reg_mr")?;
    let device_mr = rank.net.get_device_mr(comm, registered);
    ensure(device_mr.is_none_or(|status| status == INVALID_USAGE), "get_device_mr")?;
    refused(rank.net.dereg_mr(comm, null_mut()), INVALID_ARGUMENT, "no registration")?;
    let data = memory.as_mut_ptr();
    match rank.number {
        0 => sending(rank, comm, data, registered)?,
        _ => receiving(rank, comm, data, registered)?,
    }
    check(rank.net.dereg_mr(comm, registered), "dereg_mr")?;
    let (close, other) = match rank.number {
        0 => (rank.net.close_send(comm), rank.net.close_recv(comm)),
        _ => (rank.net.close_recv(comm), rank.net.close_send(comm)),
    };
    check(close, "close")?;
    refused(other, INVALID_ARGUMENT, "closing what is closed")?;
    refused(rank.net.reg_mr(comm, memory), INVALID_ARGUMENT, "a connection that is closed")
}

type Handle = crate::net::Handle;

fn sending(rank: &mut Rank, comm: Handle, data: *mut u8, memory: Handle) -> Outcome {
    let receive = rank.net.irecv(comm, &[(data, 1, 1)], memory);
    refused(receive, INVALID_ARGUMENT, "receiving where one sends")?;
    refused(rank.net.close_listen(comm), INVALID_ARGUMENT, "a connection is no listener")?;
    rank.meet()?;
    // The receive of 1000 bytes has arrived once this returns anything but "not yet".
    let long = wait_status(|| rank.net.isend(comm, data, 1001, 1, memory))?;
    ensure(long == INVALID_ARGUMENT, format!("a send that is too long: {long}"))?;
    let outside = rank.net.isend(comm, data.wrapping_add(4000), 97, 1, memory);
    refused(outside, INVALID_ARGUMENT, "a send from outside its memory")?;
    let unknown = rank.net.isend(comm, data, 8, 1, std::ptr::without_provenance_mut(99));
    refused(unknown, INVALID_ARGUMENT, "a send from memory of nobody")?;
    let request = wait("isend", || rank.net.isend(comm, data, 1000, 1, memory))?;
    ensure(rank.wait_for(request)?[0] == 1000, "1000 bytes")?;
    refused(rank.net.test(request), INVALID_ARGUMENT, "a request that is over")?;
    for _ in 0..MAX_REQUESTS {
        let request = wait("isend", || rank.net.isend(comm, data, 2, 2, memory))?;
        rank.wait_for(request)?;
    }
    rank.meet()
}

/// The first error that a call returns.
fn wait_status<T>(mut call: impl FnMut() -> Result<Option<T>, i32>) -> Outcome<i32> {
    wait("isend", || match call() {
        Ok(None) => Ok(None),
        Ok(Some(_)) => Ok(Some(SUCCESS)),
        Err(status) => Ok(Some(status)),
    })
}

fn receiving(rank: &mut Rank, comm: Handle, data: *mut u8, memory: Handle) -> Outcome {
    let send = rank.net.isend(comm, data, 1, 1, memory);
    refused(send, INVALID_ARGUMENT, "sending where one receives")?;
    let outside = rank.net.irecv(comm, &[(data, 4097, 1)], memory);
    refused(outside, INVALID_ARGUMENT, "a receive outside its memory")?;
    refused(rank.net.irecv(comm, &[], memory), INVALID_ARGUMENT, "no receives")?;
    let crowd = [(data, 1, 1); 9];
    refused(rank.net.irecv(comm, &crowd, memory), INVALID_ARGUMENT, "nine receives at once")?;
    let first = wait("irecv", || rank.net.irecv(comm, &[(data, 1000, 1)], memory))?;
    ensure(rank.net.test(first) == Ok(None), "nothing has come")?;
    let flush = check(rank.net.iflush(comm, data, 1000, memory), "iflush")?;
    ensure(flush.is_none(), "there is nothing to flush")?;
    rank.meet()?;
    ensure(rank.wait_for(first)?[0] == 1000, "1000 bytes")?;
    let consumed = rank.net.irecv_consumed(comm, first);
    ensure(consumed.is_none_or(|status| status == SUCCESS), "irecv_consumed")?;
    // As many requests as NCCL may have, and no more.
    let mut requests = Vec::new();
    for i in 0..MAX_REQUESTS {
        let place = [(data.wrapping_add(i * 8), 8, 2)];
        requests.push(wait("irecv", || rank.net.irecv(comm, &place, memory))?);
    }
    let one_more = rank.net.irecv(comm, &[(data, 8, 2)], memory);
    // A message may have arrived meanwhile, but its request has not been tested.
    ensure(one_more == Ok(None), format!("a request too many: {one_more:?}"))?;
    for request in requests {
        ensure(rank.wait_for(request)?[0] == 2, "2 bytes")?;
    }
    rank.meet()
}

/// The address in a handle, where its end listens.
fn address_of(handle: &[u8]) -> SocketAddr {
    let mut ip = [0; 16];
    ip.copy_from_slice(&handle[12..28]);
    let ip: IpAddr = Ipv6Addr::from(ip).to_canonical();
    SocketAddr::new(ip, u16::from_be_bytes([handle[8], handle[9]]))
}

/// Strangers connect first: one sends nothing, one sends garbage, one has another key.
pub(crate) fn strangers(rank: &mut Rank) -> Outcome {
    if rank.number == 1 {
        let listener = rank.listen()?;
        let comm = wait("accept", || rank.net.accept(listener))?;
        rank.meet()?;
        ensure(rank.net.accept(listener) == Ok(None), "nobody else is let in")?;
        check(rank.net.close_listen(listener), "close_listen")?;
        return check(rank.net.close_recv(comm), "close_recv");
    }
    let handle = rank.hear()?;
    let knock = || TcpStream::connect(address_of(&handle)).map_err(|e| e.to_string());
    let silent = knock()?;
    let mut loud = knock()?;
    loud.write_all(&[0x5a; 4096]).map_err(|e| e.to_string())?;
    let mut forged: [u8; HANDLE_BYTES] = handle.as_slice().try_into().map_err(|_| "no handle")?;
    forged[40] ^= 1;
    let status = wait_status(|| rank.net.connect(0, &mut forged))?;
    ensure(status != SUCCESS, "another key was let in")?;
    let comm = rank.connect(&handle)?;
    rank.meet()?;
    drop((silent, loud));
    check(rank.net.close_send(comm), "close_send")
}
