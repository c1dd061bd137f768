//! Two ends of an SDR connection, connected by a wire that the test controls.

use core::net::{IpAddr, Ipv4Addr};
use std::collections::VecDeque;
use std::sync::Arc;

use bowline_nic::{
    Access, AddressVector, Buffer, FrameMeta, IpId, MrKey, Mtu, Nic, NicConfig, PdId, Region, Time,
    TxBatch, TxCaps,
};

use crate::{SdrConfig, SdrQp, Source, Transport};

/// Short messages of short packets, two to a chunk.
pub(crate) fn small(transport: Transport) -> SdrConfig {
    SdrConfig {
        transport,
        mtu: Mtu::B256,
        chunk_bytes: 512,
        max_message: 8 << 10,
        lateness_ns: Some(0),
        ..SdrConfig::default()
    }
}

/// What crosses the wire.
#[derive(Clone)]
pub(crate) struct Frame {
    pub(crate) to: usize,
    pub(crate) meta: FrameMeta,
    pub(crate) bytes: Vec<u8>,
}

impl Frame {
    /// Whether it is a packet of a message, rather than of the control channel.
    pub(crate) fn is_data(&self) -> bool {
        // A WRITE over UC, a SEND over UD, with immediate and of one packet.
        matches!(self.bytes[0], 0x2b | 0x65)
    }
}

/// One end: a NIC and a registered buffer.
pub(crate) struct End {
    pub(crate) nic: Nic,
    pub(crate) pd: PdId,
    pub(crate) buffer: Arc<Buffer>,
    pub(crate) key: MrKey,
}

pub(crate) const BUFFER: usize = 4 << 20;

pub(crate) fn addr(i: usize) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1 + i as u8))
}

impl End {
    pub(crate) fn new(i: usize) -> End {
        End::with_secrets(i, [i as u8; 32])
    }

    /// One whose keys and tokens come from `seed`.
    pub(crate) fn with_secrets(i: usize, seed: [u8; 32]) -> End {
        let mut nic = Nic::new(NicConfig::new(addr(i), seed)).unwrap();
        let pd = nic.alloc_pd().unwrap();
        let buffer = Buffer::new(BUFFER);
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let key = nic.register(pd, Region::owned(buffer.clone()), 0, access).unwrap();
        End { nic, pd, buffer, key }
    }

    pub(crate) fn at(&self, addr: u64) -> Source {
        Source { key: self.key, addr }
    }

    /// Takes all frames that the NIC wants to send to the other end.
    pub(crate) fn transmit(&mut self, now: Time, to: usize, out: &mut VecDeque<Frame>) {
        let mut batch = TxBatch::new(TxCaps::SINGLE, 64);
        loop {
            batch.clear();
            self.nic.poll_transmit(now, &mut batch);
            if batch.is_empty() {
                return;
            }
            for burst in batch.bursts() {
                for packet in batch.packets(burst) {
                    let mut bytes = Vec::new();
                    bytes.extend_from_slice(batch.bytes(packet));
                    let meta = FrameMeta {
                        src: addr(1 - to),
                        dst: addr(to),
                        src_port: 4791,
                        tos: burst.tos,
                        ttl: 64,
                        ip_id: IpId::Known(0),
                    };
                    out.push_back(Frame { to, meta, bytes });
                }
            }
        }
    }
}

/// Two connected SDR QPs.
pub(crate) struct SdrPair {
    pub(crate) ends: [End; 2],
    pub(crate) qps: Vec<SdrQp>,
    pub(crate) now: Time,
}

impl SdrPair {
    pub(crate) fn new(config: &SdrConfig) -> SdrPair {
        let mut ends = [End::new(0), End::new(1)];
        let mut qps: Vec<SdrQp> =
            ends.iter_mut().map(|e| SdrQp::new(&mut e.nic, e.pd, config).unwrap()).collect();
        let infos: Vec<_> = qps.iter().map(SdrQp::info).collect();
        let now = Time::from_micros(1);
        for i in 0..2 {
            let av = AddressVector::new(addr(1 - i));
            qps[i].connect(&mut ends[i].nic, now, av, &infos[1 - i]).unwrap();
        }
        let mut pair = SdrPair { ends, qps, now };
        pair.settle();
        pair
    }

    /// Drives an end and takes what it sends.
    pub(crate) fn take(&mut self, i: usize) -> VecDeque<Frame> {
        let mut frames = VecDeque::new();
        loop {
            let before = frames.len();
            self.qps[i].drive(&mut self.ends[i].nic, self.now);
            self.ends[i].transmit(self.now, 1 - i, &mut frames);
            if frames.len() == before {
                return frames;
            }
        }
    }

    /// Delivers a frame, and drives its receiver.
    pub(crate) fn deliver(&mut self, frame: &Frame) {
        let nic = &mut self.ends[frame.to].nic;
        nic.handle_frame(self.now, &frame.meta, &frame.bytes);
        self.qps[frame.to].drive(nic, self.now);
    }

    /// Delivers everything, until nothing more is sent.
    pub(crate) fn settle(&mut self) {
        loop {
            let frames: Vec<Frame> = (0..2).flat_map(|i| self.take(i)).collect();
            if frames.is_empty() {
                return;
            }
            for frame in &frames {
                self.deliver(frame);
            }
            self.now = self.now.plus_nanos(1_000);
        }
    }
}
