//! The parsers: whatever the bytes, no panic; what parses is emitted again byte for byte.
#![no_main]

use bowline_wire::{Frame, LinkType, PacketView, RoceFrame};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(view) = PacketView::parse(data) {
        let _ = (view.bth(), view.reth(), view.aeth(), view.atomic_eth(), view.atomic_ack());
        let _ = (view.deth(), view.imm(), view.ieth(), view.payload(), view.icrc());
    }
    for link in [LinkType::Ethernet, LinkType::RawIp] {
        let Ok(frame) = RoceFrame::parse(link, data) else { continue };
        let _ = (frame.flow(), frame.tos(), frame.ip_id(), frame.icrc_verdict());
        if let Ok(repr) = Frame::try_from(frame) {
            let mut again = vec![0; repr.wire_len().expect("what was parsed has a length")];
            repr.emit(&mut again).expect("what was parsed can be emitted");
            assert!(data.starts_with(&again), "emitted differently than parsed");
        }
    }
});
