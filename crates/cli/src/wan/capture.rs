//! Captures what crosses the link in a pcap file.

use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use bowline_wan::Tap;
use pcap_file::DataLink;
use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};

/// Writes every packet to a file. If the disk is full, the file ends there, and the link continues.
pub(super) fn tap(path: &Path) -> Result<Tap, String> {
    let failed = |e: &dyn std::fmt::Display| format!("cannot write {}: {e}", path.display());
    let file = File::create(path).map_err(|e| failed(&e))?;
    let header = PcapHeader { datalink: DataLink::RAW, ..PcapHeader::default() };
    let writer = PcapWriter::with_header(BufWriter::new(file), header).map_err(|e| failed(&e))?;
    let writer = Mutex::new(Some(writer));
    Ok(Tap::new(move |packet| {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let mut writer = writer.lock().unwrap_or_else(PoisonError::into_inner);
        let packet = PcapPacket::new(now, packet.len() as u32, packet);
        if writer.as_mut().is_some_and(|writer| writer.write_packet(&packet).is_err()) {
            *writer = None;
        }
    }))
}
