//! Reads captures of either format as a sequence of frames.

use std::error::Error;
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};

use bowline_wire::LinkType;
use pcap_file::pcap::PcapReader;
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::{Block, PcapNgReader};
use pcap_file::{DataLink, PcapError, TsResolution};

const NANOS_PER_SEC: u64 = 1_000_000_000;
const PCAPNG_MAGIC: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// One frame of a capture.
pub(super) struct Frame {
    /// Position in the file, from 1.
    pub(super) number: u64,
    /// Time of capture since 1970.
    pub(super) time_ns: u64,
    /// The link layer, if this program can read it.
    pub(super) link: Option<LinkType>,
    /// Length of the frame on the wire. The capture may hold fewer bytes.
    pub(super) wire_len: u32,
    /// The bytes captured.
    pub(super) bytes: Vec<u8>,
}

impl Frame {
    /// Whether the capture holds only the beginning of the frame.
    pub(super) fn is_cut(&self) -> bool {
        (self.bytes.len() as u64) < u64::from(self.wire_len)
    }
}

/// An open capture.
pub(crate) struct Capture {
    path: PathBuf,
    format: Format,
    frames_read: u64,
    error: Option<CaptureError>,
}

enum Format {
    Pcap(PcapReader<Box<dyn Source>>),
    PcapNg(PcapNgReader<Box<dyn Source>>),
}

/// A source of a capture's bytes.
pub(crate) trait Source: Read + Seek {}

impl<T: Read + Seek> Source for T {}

impl Capture {
    pub(super) fn open(path: &Path) -> Result<Self, CaptureError> {
        let failed = |error| CaptureError { path: path.to_owned(), kind: Failure::Open(error) };
        Capture::new(path, Box::new(File::open(path).map_err(failed)?))
    }

    /// Opens a capture; `path` is its name in errors.
    pub(crate) fn new(path: &Path, mut file: Box<dyn Source>) -> Result<Self, CaptureError> {
        let failed = |kind: Failure| CaptureError { path: path.to_owned(), kind };
        let mut magic = [0; 4];
        file.read_exact(&mut magic)
            .and_then(|()| file.rewind())
            .map_err(|error| failed(Failure::of_first_read(error)))?;

        let format = if magic == PCAPNG_MAGIC {
            PcapNgReader::new(file).map(Format::PcapNg)
        } else {
            PcapReader::new(file).map(Format::Pcap)
        };
        let compressed = magic.starts_with(&GZIP_MAGIC);
        let format = format.map_err(|_| failed(Failure::NotACapture { compressed }))?;
        if let Format::Pcap(reader) = &format {
            let datalink = reader.header().datalink;
            link_type(datalink).ok_or_else(|| failed(Failure::LinkType(datalink)))?;
        }
        Ok(Self { path: path.to_owned(), format, frames_read: 0, error: None })
    }

    /// The next frame. After the last one, [`Capture::into_error`] tells whether the file was read
    /// to its end.
    pub(super) fn next_frame(&mut self) -> Option<Frame> {
        if self.error.is_some() {
            return None;
        }
        let number = self.frames_read + 1;
        let next = match &mut self.format {
            Format::Pcap(reader) => next_pcap(reader, number),
            Format::PcapNg(reader) => next_pcapng(reader, number),
        };
        match next? {
            Ok(frame) => {
                self.frames_read = number;
                Some(frame)
            }
            Err(source) => {
                let kind = Failure::Read { after: self.frames_read, source };
                self.error = Some(CaptureError { path: self.path.clone(), kind });
                None
            }
        }
    }

    /// The error that stopped the reader before the end of the file.
    pub(super) fn into_error(self) -> Option<CaptureError> {
        self.error
    }
}

fn next_pcap(
    reader: &mut PcapReader<Box<dyn Source>>,
    number: u64,
) -> Option<Result<Frame, PcapError>> {
    let header = reader.header();
    let nanos_per_tick = match header.ts_resolution {
        TsResolution::MicroSecond => 1000,
        TsResolution::NanoSecond => 1,
    };
    // Use the raw reader: the checked one rejects every frame that exceeded the snapshot length.
    let packet = match reader.next_raw_packet()? {
        Ok(packet) => packet,
        Err(error) => return Some(Err(error)),
    };
    Some(Ok(Frame {
        number,
        time_ns: u64::from(packet.ts_sec) * NANOS_PER_SEC
            + u64::from(packet.ts_frac) * nanos_per_tick,
        link: link_type(header.datalink),
        wire_len: packet.orig_len,
        bytes: packet.data.into_owned(),
    }))
}

fn next_pcapng(
    reader: &mut PcapNgReader<Box<dyn Source>>,
    number: u64,
) -> Option<Result<Frame, PcapError>> {
    loop {
        let block = match reader.next_block()? {
            Ok(block) => block.into_owned(),
            Err(error) => return Some(Err(error)),
        };
        let (interface, ticks, wire_len, bytes) = match block {
            // The reader returns ticks of the interface's own clock in a field meant for
            // nanoseconds.
            Block::EnhancedPacket(packet) => {
                let ticks = packet.timestamp.as_nanos() as u64;
                (packet.interface_id, ticks, packet.original_len, packet.data)
            }
            Block::Packet(packet) => {
                let interface = u32::from(packet.interface_id);
                (interface, packet.timestamp, packet.original_len, packet.data)
            }
            Block::SimplePacket(packet) => (0, 0, packet.original_len, packet.data),
            _ => continue,
        };
        // The data of a simple packet block includes its padding.
        let mut bytes = bytes.into_owned();
        bytes.truncate(wire_len as usize);

        let Some(interface) = reader.interfaces().get(interface as usize) else {
            return Some(Err(PcapError::InvalidInterfaceId(interface)));
        };
        return Some(Ok(Frame {
            number,
            time_ns: ticks_to_ns(interface, ticks),
            link: link_type(interface.linktype),
            wire_len,
            bytes,
        }));
    }
}

/// Converts ticks of an interface's clock, which are microseconds unless the interface says
/// otherwise.
fn ticks_to_ns(interface: &InterfaceDescriptionBlock<'_>, ticks: u64) -> u64 {
    let resolution = interface.options.iter().find_map(|option| match option {
        InterfaceDescriptionOption::IfTsResol(resolution) => Some(*resolution),
        _ => None,
    });
    let resolution = resolution.unwrap_or(6);
    let exponent = u32::from(resolution & 0x7f);
    let base: u128 = if resolution & 0x80 == 0 { 10 } else { 2 };
    let ticks_per_sec = base.saturating_pow(exponent);
    (u128::from(ticks) * u128::from(NANOS_PER_SEC) / ticks_per_sec) as u64
}

fn link_type(datalink: DataLink) -> Option<LinkType> {
    // The upper half of the field tells whether frames end in a checksum.
    LinkType::from_pcap(u32::from(datalink) & 0xffff)
}

/// Why a capture cannot be read, and what to do about it.
#[derive(Debug)]
pub(crate) struct CaptureError {
    path: PathBuf,
    kind: Failure,
}

#[derive(Debug)]
enum Failure {
    Open(io::Error),
    NotACapture { compressed: bool },
    LinkType(DataLink),
    Read { after: u64, source: PcapError },
}

impl Failure {
    fn of_first_read(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Self::NotACapture { compressed: false },
            _ => Self::Open(error),
        }
    }
}

impl fmt::Display for CaptureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match &self.kind {
            Failure::Open(error) => {
                write!(f, "cannot read {path}: {error}; give the path of a pcap or pcapng file")
            }
            Failure::NotACapture { compressed: true } => {
                write!(f, "{path} is compressed; unpack it first: gunzip {path}")
            }
            Failure::NotACapture { compressed: false } => write!(
                f,
                "{path} is not a capture in pcap or pcapng format; \
                 record one with: tcpdump -i any -w FILE udp port 4791"
            ),
            Failure::LinkType(datalink) => write!(
                f,
                "{path} has frames of link type {}, which is not supported; \
                 capture on an Ethernet or loopback interface, or with -i any",
                u32::from(*datalink)
            ),
            Failure::Read { after, source } if is_cut_short(source) => write!(
                f,
                "{path} ends in the middle of a frame, after {after} whole ones; what precedes \
                 was printed. Stop the capture before reading it"
            ),
            Failure::Read { after, source } => write!(
                f,
                "{path} is damaged after frame {after}: {source}; what precedes was printed. \
                 Capture again, or repair the file"
            ),
        }
    }
}

impl Error for CaptureError {}

fn is_cut_short(error: &PcapError) -> bool {
    match error {
        PcapError::IncompleteBuffer => true,
        PcapError::IoError(error) => error.kind() == io::ErrorKind::UnexpectedEof,
        _ => false,
    }
}
