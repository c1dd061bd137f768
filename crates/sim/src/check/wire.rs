//! Every packet that leaves an engine is valid and has a correct checksum.

use bowline_wire::{
    FlowKey, ICRC_LEN, OpKind, PacketView, REPAIR_EXT_LEN, RepairHeader, SEALED_TAG_LEN, icrc_of,
};

/// Longest payload of a packet.
const MAX_PAYLOAD: usize = 4096;
/// What a repair adds to that.
const REPAIR_HEADERS: usize = RepairHeader::LEN + REPAIR_EXT_LEN;
/// What a sealed packet adds to that: headers and tag.
const SEALED_HEADERS: usize = bowline_nic::MAX_HEADER + REPAIR_HEADERS + SEALED_TAG_LEN;

/// Checks a packet as it leaves its engine, with this IPv4 identification.
///
/// # Errors
/// What is wrong with it.
pub fn check_sent(key: &FlowKey, ip_id: u16, bytes: &[u8]) -> Result<(), String> {
    let view = PacketView::parse(bytes).map_err(|error| error.to_string())?;
    let kind = view.info().kind;
    let more = match kind {
        OpKind::Repair => REPAIR_HEADERS,
        OpKind::Sealed => SEALED_HEADERS,
        _ => 0,
    };
    if view.payload().len() > MAX_PAYLOAD + more {
        return Err(format!("{} bytes of payload", view.payload().len()));
    }
    if kind == OpKind::Sealed {
        // The receiver checks the tag instead.
        return Ok(());
    }
    let right = icrc_of(key, ip_id, &bytes[..bytes.len() - ICRC_LEN]);
    if view.icrc() != right {
        return Err(format!("ICRC {:#010x}, should be {right:#010x}", view.icrc()));
    }
    Ok(())
}
