//! The eBPF program on the interface: redirects RoCEv2 for our address to the socket, and passes
//! everything else to the kernel.
//!
//! Assembled by hand: two dozen instructions do not justify requiring a BPF compiler on every build
//! machine.

use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::sys::Instruction;

/// The verdict that passes a frame to the kernel.
pub(super) const PASS: u32 = 2;

// Instruction classes and operations, from the kernel's `bpf.h` and `bpf_common.h`.
const LOAD_IMM64: u8 = 0x18;
const LOAD_U8: u8 = 0x71;
const LOAD_U16: u8 = 0x69;
const LOAD_U32: u8 = 0x61;
const MOV_IMM: u8 = 0xb7;
const MOV: u8 = 0xbf;
const ADD_IMM: u8 = 0x07;
const AND_IMM: u8 = 0x57;
const JUMP_GT: u8 = 0x2d;
/// Compares 32 bits.
const JUMP_NE_IMM: u8 = 0x56;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;

/// The immediate of a [`LOAD_IMM64`] is the descriptor of a map.
const PSEUDO_MAP_FD: u8 = 1;
const REDIRECT_MAP: i32 = 51;

// Members of the context, `struct xdp_md`.
const DATA: i16 = 0;
const DATA_END: i16 = 4;
const RX_QUEUE: i16 = 16;

// Offsets in a frame without VLAN tags and IP options.
const ETHERTYPE: i16 = 12;
const IP: i16 = 14;

/// Registers: the return value, arguments, and a callee-saved one.
const R0: u8 = 0;
const CTX: u8 = 1;
const PACKET: u8 = 2;
const END: u8 = 3;
const BOUND: u8 = 4;
const VALUE: u8 = 5;

/// The program for an address and UDP port. It redirects to the socket that `map` has for the
/// receiving queue; frames on a queue without a socket also go to the kernel.
///
/// Frames with a VLAN tag or IP options, and fragments, go to the kernel: RoCEv2 uses none of them,
/// and the kernel knows what to do.
pub(super) fn program(addr: IpAddr, udp_port: u16, map: BorrowedFd<'_>) -> Vec<Instruction> {
    let mut code = Assembler::default();
    let (udp, need) = match addr {
        IpAddr::V4(_) => (IP + 20, 42),
        IpAddr::V6(_) => (IP + 40, 62),
    };
    // Save the queue before the arguments are overwritten.
    code.op(LOAD_U32, 6, CTX, RX_QUEUE, 0);
    code.op(LOAD_U32, PACKET, CTX, DATA, 0);
    code.op(LOAD_U32, END, CTX, DATA_END, 0);
    code.op(MOV, BOUND, PACKET, 0, 0);
    code.op(ADD_IMM, BOUND, 0, 0, need);
    code.jump_to_pass(JUMP_GT, BOUND, END, 0);
    match addr {
        IpAddr::V4(v4) => {
            code.unless_u16(ETHERTYPE, libc::ETH_P_IP as u16);
            code.unless_u8(IP, 0x45);
            code.unless_u8(IP + 9, libc::IPPROTO_UDP as u8);
            // More fragments follow, or it is not the first.
            code.op(LOAD_U16, VALUE, PACKET, IP + 6, 0);
            code.op(AND_IMM, VALUE, 0, 0, 0x3fff_u16.to_be().into());
            code.jump_to_pass(JUMP_NE_IMM, VALUE, 0, 0);
            code.unless_u32(IP + 16, v4.octets());
        }
        IpAddr::V6(v6) => {
            code.unless_u16(ETHERTYPE, libc::ETH_P_IPV6 as u16);
            code.unless_u8(IP + 6, libc::IPPROTO_UDP as u8);
            for (i, word) in v6.octets().as_chunks().0.iter().enumerate() {
                code.unless_u32(IP + 24 + 4 * i as i16, *word);
            }
        }
    }
    code.unless_u16(udp + 2, udp_port);
    code.op(LOAD_IMM64, 1, PSEUDO_MAP_FD, 0, map.as_raw_fd());
    code.op(0, 0, 0, 0, 0);
    code.op(MOV, 2, 6, 0, 0);
    // The return value when the queue has no socket.
    code.op(MOV_IMM, 3, 0, 0, PASS as i32);
    code.op(CALL, 0, 0, 0, REDIRECT_MAP);
    code.op(EXIT, 0, 0, 0, 0);
    code.pass()
}

/// Instructions, and which of them jump to the end.
#[derive(Default)]
struct Assembler {
    code: Vec<Instruction>,
    to_pass: Vec<usize>,
}

impl Assembler {
    fn op(&mut self, opcode: u8, dst: u8, src: u8, offset: i16, imm: i32) {
        let [o0, o1] = offset.to_ne_bytes();
        let [i0, i1, i2, i3] = imm.to_ne_bytes();
        // The registers share a byte, whose halves follow the machine's byte order.
        let registers =
            if cfg!(target_endian = "little") { src << 4 | dst } else { dst << 4 | src };
        self.code.push([opcode, registers, o0, o1, i0, i1, i2, i3]);
    }

    fn jump_to_pass(&mut self, opcode: u8, dst: u8, src: u8, imm: i32) {
        self.to_pass.push(self.code.len());
        self.op(opcode, dst, src, 0, imm);
    }

    fn unless_u8(&mut self, at: i16, value: u8) {
        self.op(LOAD_U8, VALUE, PACKET, at, 0);
        self.jump_to_pass(JUMP_NE_IMM, VALUE, 0, value.into());
    }

    /// Numbers in a frame are big-endian, loads are native: compare with what a load returns.
    fn unless_u16(&mut self, at: i16, value: u16) {
        self.op(LOAD_U16, VALUE, PACKET, at, 0);
        self.jump_to_pass(JUMP_NE_IMM, VALUE, 0, value.to_be().into());
    }

    fn unless_u32(&mut self, at: i16, bytes: [u8; 4]) {
        self.op(LOAD_U32, VALUE, PACKET, at, 0);
        self.jump_to_pass(JUMP_NE_IMM, VALUE, 0, i32::from_ne_bytes(bytes));
    }

    /// Ends with passing the frame, and resolves the jumps to that.
    fn pass(mut self) -> Vec<Instruction> {
        let end = self.code.len();
        for at in self.to_pass.drain(..) {
            let [o0, o1] = ((end - at - 1) as i16).to_ne_bytes();
            self.code[at][2..4].copy_from_slice(&[o0, o1]);
        }
        self.op(MOV_IMM, R0, 0, 0, PASS as i32);
        self.op(EXIT, 0, 0, 0, 0);
        self.code
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::sys::{SocketMap, XdpProgram};
    use crate::xdp::frame::tests::frame_between;

    const PORT: u16 = 4791;

    fn load(addr: &str) -> Option<XdpProgram> {
        let addr = addr.parse().unwrap();
        let loaded =
            SocketMap::new(1).and_then(|map| XdpProgram::load(&program(addr, PORT, map.as_fd())));
        loaded.inspect_err(|e| println!("skipped: no eBPF programs here, or not for us: {e}")).ok()
    }

    #[test]
    fn it_is_as_long_and_jumps_as_far_as_it_should() {
        let nowhere = std::io::stdin();
        for (addr, len) in [("10.0.0.1", 27), ("fd00::1", 28)] {
            let code = program(addr.parse().unwrap(), PORT, nowhere.as_fd());
            assert_eq!(code.len(), len, "{addr}");
            assert_eq!(code.last().unwrap()[0], EXIT);
            for (at, op) in
                code.iter().enumerate().filter(|(_, op)| [JUMP_GT, JUMP_NE_IMM].contains(&op[0]))
            {
                let offset = i16::from_ne_bytes([op[2], op[3]]);
                assert_eq!(at as i16 + 1 + offset, len as i16 - 2, "instruction {at}");
            }
        }
    }

    /// With a map without sockets, frames that would be redirected pass as well, by the map's
    /// default. So this checks that the kernel accepts the program and that nothing is dropped.
    #[test]
    fn the_kernel_takes_it_and_everything_passes_a_map_without_sockets() {
        for (ours, peer) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
            let Some(program) = load(ours) else { return };
            let frame = frame_between(peer.parse().unwrap(), ours.parse().unwrap(), PORT, 64);
            assert_eq!(program.test_run(&frame).unwrap(), PASS);
            for len in 14..frame.len() {
                assert_eq!(program.test_run(&frame[..len]).unwrap(), PASS, "cut at {len}");
            }
        }
    }

    /// The same program, but with a distinct verdict for the frames that it would redirect.
    #[test]
    fn it_picks_out_our_frames_and_no_others() {
        const OURS: u32 = 1;
        for (ours, peer) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
            let (ours, peer): (IpAddr, IpAddr) = (ours.parse().unwrap(), peer.parse().unwrap());
            let Ok(map) = SocketMap::new(1) else {
                println!("skipped: no eBPF maps here, or not for us");
                return;
            };
            let mut code = program(ours, PORT, map.as_fd());
            let default = code.len() - 5;
            assert_eq!(code[default][..2], [MOV_IMM, 3]);
            code[default][4] = OURS as u8;
            let program = match XdpProgram::load(&code) {
                Ok(program) => program,
                Err(e) => return println!("skipped: no eBPF programs here, or not for us: {e}"),
            };
            let good = frame_between(peer, ours, PORT, 64);
            assert_eq!(program.test_run(&good).unwrap(), OURS);
            let other_port = frame_between(peer, ours, PORT + 1, 64);
            assert_eq!(program.test_run(&other_port).unwrap(), PASS);
            let other_addr = frame_between(ours, peer, PORT, 64);
            assert_eq!(program.test_run(&other_addr).unwrap(), PASS);
            let headers = if ours.is_ipv4() { 42 } else { 62 };
            for len in 14..headers {
                assert_eq!(program.test_run(&good[..len]).unwrap(), PASS, "cut at {len}");
            }
            let mut changes = vec![(12, 0x81), (14, 0x46)];
            changes.extend(if ours.is_ipv4() {
                [(20, 0x20), (21, 1), (23, 6), (33, 9)]
            } else {
                [(20, 44), (38, 1), (45, 1), (53, 9)]
            });
            for (at, value) in changes {
                if ours.is_ipv6() && at == 14 {
                    continue;
                }
                let mut frame = good.clone();
                frame[at] = value;
                assert_eq!(program.test_run(&frame).unwrap(), PASS, "byte {at}");
            }
        }
    }
}
