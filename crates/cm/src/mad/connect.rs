//! Messages that make a connection: REQ, REP, RTU (sections 12.6.5, 12.6.8, 12.6.9).

use bowline_wire::{Psn, Qpn};

use super::CommId;
use super::fields::{Layout, Pass};
use crate::{CmTimeout, ServiceId};

/// A path of a REQ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Path {
    /// The sender's LID; all ones on RoCE, which has none.
    pub local_lid: u16,
    /// The receiver's LID.
    pub remote_lid: u16,
    /// The sender's GID: its IP address.
    pub local_gid: [u8; 16],
    /// The receiver's GID.
    pub remote_gid: [u8; 16],
    /// The flow label, 20 bits.
    pub flow_label: u32,
    /// The rate in the standard's encoding, 6 bits.
    pub packet_rate: u8,
    /// The traffic class.
    pub traffic_class: u8,
    /// The hop limit.
    pub hop_limit: u8,
    /// The service level, 4 bits.
    pub service_level: u8,
    /// Whether both are in one subnet.
    pub subnet_local: bool,
    /// How long requests on the path wait for acknowledgement.
    pub ack_timeout: CmTimeout,
}

impl Path {
    fn fields(&mut self, at: usize, pass: &mut Pass<'_>) {
        pass.bits(at, 0, 16, &mut self.local_lid);
        pass.bits(at + 2, 0, 16, &mut self.remote_lid);
        pass.bytes(at + 4, &mut self.local_gid);
        pass.bytes(at + 20, &mut self.remote_gid);
        pass.bits(at + 36, 0, 20, &mut self.flow_label);
        pass.bits(at + 39, 2, 6, &mut self.packet_rate);
        pass.bits(at + 40, 0, 8, &mut self.traffic_class);
        pass.bits(at + 41, 0, 8, &mut self.hop_limit);
        pass.bits(at + 42, 0, 4, &mut self.service_level);
        pass.bits(at + 42, 4, 1, &mut self.subnet_local);
        pass.bits(at + 43, 0, 5, &mut self.ack_timeout);
    }
}

/// REQ: asks for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Req {
    /// The sender's ID of the connection.
    pub local_comm_id: CommId,
    /// The requested service.
    pub service_id: ServiceId,
    /// The sender's adapter.
    pub local_ca_guid: u64,
    /// The Q_Key of a datagram service; unused here.
    pub local_qkey: u32,
    /// The sender's queue pair.
    pub local_qpn: Qpn,
    /// READs and atomics that the sender can serve at a time.
    pub responder_resources: u8,
    /// End-to-end context of reliable datagrams; unused.
    pub local_eecn: u32,
    /// READs and atomics that the sender can have outstanding.
    pub initiator_depth: u8,
    /// End-to-end context of reliable datagrams; unused.
    pub remote_eecn: u32,
    /// How long the sender waits for an answer before it retransmits.
    pub remote_response_timeout: CmTimeout,
    /// The service: 0 RC, 1 UC, 2 RD, 3 see `extended_transport`. Two bits.
    pub transport: u8,
    /// Whether the sender has end-to-end flow control.
    pub flow_control: bool,
    /// The first PSN that the receiver of this message is to send.
    pub starting_psn: Psn,
    /// How long the receiver is to wait for the sender's answers.
    pub local_response_timeout: CmTimeout,
    /// Retransmissions of requests, 3 bits.
    pub retry_count: u8,
    /// The partition.
    pub pkey: u16,
    /// The path's MTU as verbs number it (1 is 256, 5 is 4096 bytes), 4 bits.
    pub path_mtu: u8,
    /// Reliable datagram channel; unused.
    pub rdc_exists: bool,
    /// Retries after RNR NAKs, 3 bits.
    pub rnr_retry_count: u8,
    /// Retransmissions of CM messages, 4 bits.
    pub max_cm_retries: u8,
    /// Whether the sender's queue pair has a shared receive queue.
    pub srq: bool,
    /// The service if `transport` is 3: 1 is XRC. Three bits.
    pub extended_transport: u8,
    /// The path.
    pub primary: Path,
    /// The path to migrate to; zero if there is none.
    pub alternate: Path,
    /// Whether the sender accepts suggested alternate paths.
    pub sap_supported: bool,
    /// The application's private data.
    pub private_data: [u8; Req::PRIVATE_LEN],
}

impl Req {
    /// Bytes of private data.
    pub const PRIVATE_LEN: usize = 92;
    /// `transport` of a reliable connection.
    pub const RC: u8 = 0;
}

impl Default for Req {
    fn default() -> Req {
        Req {
            local_comm_id: CommId(0),
            service_id: ServiceId(0),
            local_ca_guid: 0,
            local_qkey: 0,
            local_qpn: Qpn::new(0),
            responder_resources: 0,
            local_eecn: 0,
            initiator_depth: 0,
            remote_eecn: 0,
            remote_response_timeout: CmTimeout::new(0),
            transport: 0,
            flow_control: false,
            starting_psn: Psn::new(0),
            local_response_timeout: CmTimeout::new(0),
            retry_count: 0,
            pkey: 0,
            path_mtu: 0,
            rdc_exists: false,
            rnr_retry_count: 0,
            max_cm_retries: 0,
            srq: false,
            extended_transport: 0,
            primary: Path::default(),
            alternate: Path::default(),
            sap_supported: false,
            private_data: [0; Req::PRIVATE_LEN],
        }
    }
}

impl Layout for Req {
    fn fields(&mut self, pass: &mut Pass<'_>) {
        pass.bits(0, 0, 32, &mut self.local_comm_id);
        pass.bits(8, 0, 64, &mut self.service_id);
        pass.bits(16, 0, 64, &mut self.local_ca_guid);
        pass.bits(28, 0, 32, &mut self.local_qkey);
        pass.bits(32, 0, 24, &mut self.local_qpn);
        pass.bits(35, 0, 8, &mut self.responder_resources);
        pass.bits(36, 0, 24, &mut self.local_eecn);
        pass.bits(39, 0, 8, &mut self.initiator_depth);
        pass.bits(40, 0, 24, &mut self.remote_eecn);
        pass.bits(43, 0, 5, &mut self.remote_response_timeout);
        pass.bits(43, 5, 2, &mut self.transport);
        pass.bits(43, 7, 1, &mut self.flow_control);
        pass.bits(44, 0, 24, &mut self.starting_psn);
        pass.bits(47, 0, 5, &mut self.local_response_timeout);
        pass.bits(47, 5, 3, &mut self.retry_count);
        pass.bits(48, 0, 16, &mut self.pkey);
        pass.bits(50, 0, 4, &mut self.path_mtu);
        pass.bits(50, 4, 1, &mut self.rdc_exists);
        pass.bits(50, 5, 3, &mut self.rnr_retry_count);
        pass.bits(51, 0, 4, &mut self.max_cm_retries);
        pass.bits(51, 4, 1, &mut self.srq);
        pass.bits(51, 5, 3, &mut self.extended_transport);
        self.primary.fields(52, pass);
        self.alternate.fields(96, pass);
        pass.bits(139, 5, 1, &mut self.sap_supported);
        pass.bytes(140, &mut self.private_data);
    }
}

/// REP: accepts a REQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rep {
    /// The sender's ID of the connection.
    pub local_comm_id: CommId,
    /// The receiver's ID of it.
    pub remote_comm_id: CommId,
    /// The Q_Key of a datagram service; unused here.
    pub local_qkey: u32,
    /// The sender's queue pair.
    pub local_qpn: Qpn,
    /// End-to-end context of reliable datagrams; unused.
    pub local_eecn: u32,
    /// The first PSN that the receiver of this message is to send.
    pub starting_psn: Psn,
    /// READs and atomics that the sender can serve at a time.
    pub responder_resources: u8,
    /// READs and atomics that the sender can have outstanding.
    pub initiator_depth: u8,
    /// How long the sender may take to acknowledge.
    pub target_ack_delay: CmTimeout,
    /// Whether the alternate path was accepted, 2 bits.
    pub failover_accepted: u8,
    /// Whether the sender has end-to-end flow control.
    pub flow_control: bool,
    /// Retries after RNR NAKs, 3 bits.
    pub rnr_retry_count: u8,
    /// Whether the sender's queue pair has a shared receive queue.
    pub srq: bool,
    /// The sender's adapter.
    pub local_ca_guid: u64,
    /// The application's private data.
    pub private_data: [u8; Rep::PRIVATE_LEN],
}

impl Rep {
    /// Bytes of private data.
    pub const PRIVATE_LEN: usize = 196;
}

impl Default for Rep {
    fn default() -> Rep {
        Rep {
            local_comm_id: CommId(0),
            remote_comm_id: CommId(0),
            local_qkey: 0,
            local_qpn: Qpn::new(0),
            local_eecn: 0,
            starting_psn: Psn::new(0),
            responder_resources: 0,
            initiator_depth: 0,
            target_ack_delay: CmTimeout::new(0),
            failover_accepted: 0,
            flow_control: false,
            rnr_retry_count: 0,
            srq: false,
            local_ca_guid: 0,
            private_data: [0; Rep::PRIVATE_LEN],
        }
    }
}

impl Layout for Rep {
    fn fields(&mut self, pass: &mut Pass<'_>) {
        pass.bits(0, 0, 32, &mut self.local_comm_id);
        pass.bits(4, 0, 32, &mut self.remote_comm_id);
        pass.bits(8, 0, 32, &mut self.local_qkey);
        pass.bits(12, 0, 24, &mut self.local_qpn);
        pass.bits(16, 0, 24, &mut self.local_eecn);
        pass.bits(20, 0, 24, &mut self.starting_psn);
        pass.bits(24, 0, 8, &mut self.responder_resources);
        pass.bits(25, 0, 8, &mut self.initiator_depth);
        pass.bits(26, 0, 5, &mut self.target_ack_delay);
        pass.bits(26, 5, 2, &mut self.failover_accepted);
        pass.bits(26, 7, 1, &mut self.flow_control);
        pass.bits(27, 0, 3, &mut self.rnr_retry_count);
        pass.bits(27, 3, 1, &mut self.srq);
        pass.bits(28, 0, 64, &mut self.local_ca_guid);
        pass.bytes(36, &mut self.private_data);
    }
}

/// RTU: the sender has received the REP and is ready to use the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rtu {
    /// The sender's ID of the connection.
    pub local_comm_id: CommId,
    /// The receiver's ID of it.
    pub remote_comm_id: CommId,
    /// The application's private data.
    pub private_data: [u8; Rtu::PRIVATE_LEN],
}

impl Rtu {
    /// Bytes of private data.
    pub const PRIVATE_LEN: usize = 224;
}

impl Default for Rtu {
    fn default() -> Rtu {
        Rtu {
            local_comm_id: CommId(0),
            remote_comm_id: CommId(0),
            private_data: [0; Rtu::PRIVATE_LEN],
        }
    }
}

impl Layout for Rtu {
    fn fields(&mut self, pass: &mut Pass<'_>) {
        pass.bits(0, 0, 32, &mut self.local_comm_id);
        pass.bits(4, 0, 32, &mut self.remote_comm_id);
        pass.bytes(8, &mut self.private_data);
    }
}
