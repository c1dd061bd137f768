//! Sockets over RDMA, as a program of `<rdma/rsocket.h>` uses them.

#![allow(clippy::undocumented_unsafe_blocks, reason = "see support")]

mod support;

use std::ffi::{c_int, c_void};
use std::mem::zeroed;
use std::net::Ipv4Addr;
use std::thread;

use support::*;

const SOL_RDMA: c_int = 0x10000;
const RDMA_IOMAPSIZE: c_int = 3;
const ADDR_LEN: u32 = size_of::<libc::sockaddr_in>() as u32;

/// The address of the first device, and a port.
fn addr(port: u16) -> libc::sockaddr_in {
    set_up();
    let devices = std::env::var("BOWLINE_DEVICES").unwrap();
    let first = devices.split(',').next().unwrap().split('=').nth(1).unwrap();
    let ip: Ipv4Addr = first.parse().unwrap();
    let mut addr: libc::sockaddr_in = unsafe { zeroed() };
    addr.sin_family = libc::AF_INET as u16;
    addr.sin_port = port.to_be();
    addr.sin_addr.s_addr = u32::from(ip).to_be();
    addr
}

fn socket() -> c_int {
    let fd = rsocket(libc::AF_INET, libc::SOCK_STREAM, 0);
    assert!(fd >= 0, "errno {}", errno());
    fd
}

fn listener(port: u16) -> c_int {
    let (fd, at) = (socket(), addr(port));
    unsafe {
        assert_eq!(rbind(fd, (&raw const at).cast(), ADDR_LEN), 0, "errno {}", errno());
    }
    assert_eq!(rlisten(fd, 8), 0, "errno {}", errno());
    fd
}

fn connect(port: u16) -> c_int {
    let (fd, to) = (socket(), addr(port));
    unsafe {
        assert_eq!(rconnect(fd, (&raw const to).cast(), ADDR_LEN), 0, "errno {}", errno());
    }
    fd
}

fn accept(listens: c_int) -> c_int {
    let (mut from, mut len): (libc::sockaddr_in, _) = (unsafe { zeroed() }, ADDR_LEN);
    let fd = unsafe { raccept(listens, (&raw mut from).cast(), &mut len) };
    assert!(fd >= 0, "errno {}", errno());
    assert_eq!((from.sin_family, len), (libc::AF_INET as u16, ADDR_LEN));
    fd
}

fn send_all(fd: c_int, bytes: &[u8]) {
    let sent = unsafe { rsend(fd, bytes.as_ptr().cast(), bytes.len(), 0) };
    assert_eq!(sent, bytes.len() as isize, "errno {}", errno());
}

fn receive_all(fd: c_int, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let got = unsafe { rrecv(fd, bytes.as_mut_ptr().cast(), len, libc::MSG_WAITALL) };
    assert_eq!(got, len as isize, "errno {}", errno());
    bytes
}

fn pattern(len: usize, salt: usize) -> Vec<u8> {
    (0..len).map(|i| ((i * 131) ^ (i >> 9) ^ salt) as u8).collect()
}

fn wait_for(fd: c_int, events: i16) -> i16 {
    let mut one = libc::pollfd { fd, events, revents: 0 };
    let ready = unsafe { rpoll(&mut one, 1, PATIENCE.as_millis() as c_int) };
    assert_eq!(ready, 1, "errno {}", errno());
    one.revents
}

#[test]
fn bytes_go_both_ways_in_any_sizes_until_the_end() {
    let listens = listener(7301);
    let server = thread::spawn(move || {
        let fd = accept(listens);
        for round in 0..40 {
            let bytes = receive_all(fd, 1 << (round % 20));
            assert!(bytes == pattern(bytes.len(), round), "round {round}");
            send_all(fd, &bytes);
        }
        // More than all buffers hold, in one piece.
        let long = receive_all(fd, 5_000_000);
        assert!(long == pattern(long.len(), 77));
        assert_eq!(unsafe { rrecv(fd, [0_u8].as_mut_ptr().cast(), 1, 0) }, 0, "the end");
        send_all(fd, b"bye");
        assert_eq!(rclose(fd), 0);
        assert_eq!(rclose(listens), 0);
    });
    let fd = connect(7301);
    for round in 0..40 {
        let bytes = pattern(1 << (round % 20), round);
        send_all(fd, &bytes);
        assert!(receive_all(fd, bytes.len()) == bytes, "round {round}");
    }
    send_all(fd, &pattern(5_000_000, 77));
    assert_eq!(rshutdown(fd, libc::SHUT_WR), 0);
    let one = [1_u8];
    assert_eq!(unsafe { rsend(fd, one.as_ptr().cast(), 1, 0) }, -1);
    assert_eq!(errno(), libc::EPIPE);
    assert_eq!(receive_all(fd, 3), b"bye");
    assert_eq!(unsafe { rrecv(fd, [0_u8].as_mut_ptr().cast(), 1, 0) }, 0, "the end");
    server.join().unwrap();
    assert_eq!(rclose(fd), 0);
    assert_eq!((rclose(fd), errno()), (-1, libc::EBADF));
}

#[test]
fn nothing_blocks_that_was_told_not_to() {
    let listens = listener(7302);
    assert_eq!(rfcntl(listens, libc::F_SETFL, libc::O_NONBLOCK), 0);
    unsafe {
        assert_eq!(raccept(listens, std::ptr::null_mut(), std::ptr::null_mut()), -1);
    }
    assert_eq!(errno(), libc::EAGAIN);
    let (fd, to) = (socket(), addr(7302));
    assert_eq!(rfcntl(fd, libc::F_SETFL, libc::O_NONBLOCK), 0);
    assert_eq!(rfcntl(fd, libc::F_GETFL, 0) & libc::O_NONBLOCK, libc::O_NONBLOCK);
    unsafe {
        assert_eq!(rconnect(fd, (&raw const to).cast(), ADDR_LEN), -1);
        assert_eq!(errno(), libc::EINPROGRESS);
    }
    assert_eq!(wait_for(listens, libc::POLLIN), libc::POLLIN);
    let peer = accept(listens);
    assert_eq!(wait_for(fd, libc::POLLOUT), libc::POLLOUT);
    let mut byte = [0_u8];
    unsafe {
        assert_eq!(rrecv(fd, byte.as_mut_ptr().cast(), 1, 0), -1);
        assert_eq!(errno(), libc::EAGAIN);
        // The buffers fill, and then it says so.
        let bytes = pattern(1 << 16, 3);
        let mut sent = 0;
        loop {
            let one = rsend(fd, bytes.as_ptr().cast(), bytes.len(), 0);
            if one < 0 {
                assert_eq!(errno(), libc::EAGAIN);
                break;
            }
            sent += one as usize;
            assert!(sent < 1 << 26, "a window without end");
        }
        let mut got = 0;
        while got < sent {
            wait_for(peer, libc::POLLIN);
            let mut into = vec![0_u8; 1 << 16];
            let one = rread(peer, into.as_mut_ptr().cast(), into.len());
            assert!(one > 0, "errno {}", errno());
            got += one as usize;
        }
        assert_eq!(got, sent);
    }
    assert_eq!(rclose(peer), 0);
    assert_ne!(wait_for(fd, libc::POLLIN) & (libc::POLLIN | libc::POLLHUP), 0);
    assert_eq!(unsafe { rrecv(fd, byte.as_mut_ptr().cast(), 1, 0) }, 0);
    assert_eq!(rclose(fd), 0);
    assert_eq!(rclose(listens), 0);
}

#[test]
fn pieces_peeking_and_options_are_as_with_other_sockets() {
    let listens = listener(7303);
    let server = thread::spawn(move || accept(listens));
    let fd = connect(7303);
    let peer = server.join().unwrap();
    unsafe {
        let (mut a, mut b) = (*b"hello ", *b"world");
        let pieces = [
            libc::iovec { iov_base: a.as_mut_ptr().cast(), iov_len: a.len() },
            libc::iovec { iov_base: b.as_mut_ptr().cast(), iov_len: b.len() },
        ];
        assert_eq!(rwritev(fd, pieces.as_ptr(), 2), 11);
        let mut into = [0_u8; 32];
        wait_for(peer, libc::POLLIN);
        let at: *mut c_void = into.as_mut_ptr().cast();
        assert_eq!(rrecv(peer, at, 5, libc::MSG_PEEK), 5);
        assert_eq!(rrecv(peer, at, 11, libc::MSG_WAITALL), 11);
        assert_eq!(&into[..11], b"hello world");
        let (mut value, mut len): (c_int, u32) = (0, 4);
        let place: *mut c_void = (&raw mut value).cast();
        assert_eq!(rgetsockopt(fd, libc::SOL_SOCKET, libc::SO_ERROR, place, &mut len), 0);
        assert_eq!(value, 0);
        let one: c_int = 1;
        let one = (&raw const one).cast();
        assert_eq!(rsetsockopt(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, one, 4), 0);
        assert_eq!(rsetsockopt(fd, libc::IPPROTO_TCP, 9999, one, 4), -1);
        assert_eq!(errno(), libc::ENOPROTOOPT);
        let mut reads: libc::fd_set = zeroed();
        libc::FD_SET(fd, &mut reads);
        let mut none = libc::timeval { tv_sec: 0, tv_usec: 0 };
        let null = std::ptr::null_mut();
        assert_eq!(rselect(fd + 1, &mut reads, null, null, &mut none), 0);
        assert!(!libc::FD_ISSET(fd, &reads));
        libc::FD_SET(fd, &mut reads);
        send_all(peer, b"x");
        let mut long = libc::timeval { tv_sec: 30, tv_usec: 0 };
        assert_eq!(rselect(fd + 1, &mut reads, null, null, &mut long), 1);
        assert!(libc::FD_ISSET(fd, &reads));
    }
    for fd in [fd, peer, listens] {
        assert_eq!(rclose(fd), 0);
    }
}

#[test]
fn mapped_memory_is_written_without_the_stream() {
    let maps = |fd: c_int| unsafe {
        let value: c_int = 4;
        let at: *const c_void = (&raw const value).cast();
        assert_eq!(rsetsockopt(fd, SOL_RDMA, RDMA_IOMAPSIZE, at, 4), 0);
    };
    let listens = listener(7304);
    maps(listens);
    let server = thread::spawn(move || {
        let fd = accept(listens);
        let mut memory = vec![0_u8; 300_000];
        let at: *mut c_void = memory.as_mut_ptr().cast();
        assert_eq!(unsafe { riomap(fd, at, memory.len(), libc::PROT_WRITE, 0, 1000) }, 1000);
        // The mapping travels before the next bytes.
        send_all(fd, b"mapped");
        assert_eq!(receive_all(fd, 4), b"done");
        assert!(memory[7..250_007] == pattern(250_000, 5));
        assert!(memory[..7].iter().chain(&memory[250_007..]).all(|byte| *byte == 0));
        assert_eq!(unsafe { riounmap(fd, at, memory.len()) }, 0);
        assert_eq!(unsafe { riounmap(fd, at, memory.len()) }, -1);
        assert_eq!(rclose(fd), 0);
    });
    let (fd, to) = (socket(), addr(7304));
    maps(fd);
    unsafe {
        assert_eq!(rconnect(fd, (&raw const to).cast(), ADDR_LEN), 0, "errno {}", errno());
        assert_eq!(receive_all(fd, 6), b"mapped");
        let bytes = pattern(250_000, 5);
        assert_eq!(riowrite(fd, bytes.as_ptr().cast(), bytes.len(), 1007, 0), bytes.len());
        assert_eq!(riowrite(fd, bytes.as_ptr().cast(), 1, 5_000_000, 0), usize::MAX);
        send_all(fd, b"done");
    }
    server.join().unwrap();
    assert_eq!(rclose(fd), 0);
    assert_eq!(rclose(listens), 0);
}

#[test]
fn what_is_wrong_is_refused() {
    set_up();
    assert_eq!((rsocket(libc::AF_INET, libc::SOCK_DGRAM, 0), errno()), (-1, libc::EPROTONOSUPPORT));
    assert_eq!((rsocket(libc::AF_UNIX, libc::SOCK_STREAM, 0), errno()), (-1, libc::EAFNOSUPPORT));
    assert_eq!((rlisten(1 << 20, 1), errno()), (-1, libc::EBADF));
    let (fd, to) = (socket(), addr(7309));
    unsafe {
        assert_eq!(rrecv(fd, [0_u8].as_mut_ptr().cast(), 1, 0), -1);
        assert_eq!(errno(), libc::ENOTCONN);
        // Nobody listens there.
        assert_eq!(rconnect(fd, (&raw const to).cast(), ADDR_LEN), -1);
        assert_eq!(errno(), libc::ECONNREFUSED);
    }
    assert_eq!(rclose(fd), 0);
}
