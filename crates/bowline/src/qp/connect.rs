//! Bringing a queue pair to the state in which it sends and receives.

use bowline_nic::{AddressVector, QpAttr, QpState, QpType};

use super::Qp;
use crate::{Endpoint, Error};

/// How a connection behaves; the defaults suit a data centre and loopback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectOptions {
    /// Retransmission timeout: 4.096 µs times 2 to this power, 1..=31. On a long link it must be
    /// longer than the round trip; 14, the default, is 67 ms.
    pub timeout: u8,
    /// Retries after timeouts before the connection fails, 0..=7.
    pub retry_count: u8,
    /// Retries when the peer has no receive posted, 0..=7; 7 is without end.
    pub rnr_retry: u8,
    /// Code of the time the peer is told to wait when no receive is posted here, 0..=31; 12, the
    /// default, is 0.64 ms.
    pub min_rnr_timer: u8,
    /// DSCP of its packets, in the upper six bits.
    pub traffic_class: u8,
    /// Bytes in flight; its share of the device's window unless set.
    pub window_bytes: Option<u32>,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        ConnectOptions {
            timeout: 14,
            retry_count: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            traffic_class: 0,
            window_bytes: None,
        }
    }
}

impl Qp {
    /// Connects to the peer's queue pair, with the defaults of [`ConnectOptions`].
    ///
    /// The peer must do the same with [`Qp::endpoint`] of this one before it can answer.
    pub fn connect(&self, peer: &Endpoint) -> Result<(), Error> {
        self.connect_with(peer, &ConnectOptions::default())
    }

    /// Connects to the peer's queue pair.
    pub fn connect_with(&self, peer: &Endpoint, options: &ConnectOptions) -> Result<(), Error> {
        let ours = self.endpoint();
        if ours.qp_type == QpType::Ud {
            return self.activate();
        }
        let reliable = ours.qp_type == QpType::Rc;
        let rd_atomic = ours.rd_atomic.min(peer.rd_atomic);
        self.modify(&QpAttr {
            state: Some(QpState::Rtr),
            av: Some(AddressVector { dst: peer.addr, traffic_class: options.traffic_class }),
            path_mtu: Some(ours.mtu.min(peer.mtu)),
            dest_qpn: Some(peer.qpn),
            rq_psn: Some(peer.psn),
            max_dest_rd_atomic: reliable.then_some(rd_atomic),
            min_rnr_timer: reliable.then_some(options.min_rnr_timer),
            ..QpAttr::default()
        })?;
        if let Some(bytes) = options.window_bytes {
            self.set_window(bytes)?;
        }
        self.modify(&QpAttr {
            state: Some(QpState::Rts),
            sq_psn: Some(ours.psn),
            timeout: reliable.then_some(options.timeout),
            retry_count: reliable.then_some(options.retry_count),
            rnr_retry: reliable.then_some(options.rnr_retry),
            max_rd_atomic: reliable.then_some(rd_atomic),
            ..QpAttr::default()
        })
    }

    /// Makes a UD queue pair ready to send and to receive: datagrams need no connection.
    pub fn activate(&self) -> Result<(), Error> {
        self.modify(&QpAttr { state: Some(QpState::Rtr), ..QpAttr::default() })?;
        self.modify(&QpAttr {
            state: Some(QpState::Rts),
            sq_psn: Some(self.inner.psn),
            ..QpAttr::default()
        })
    }

    /// The Q_Key that datagrams to it must carry.
    pub fn qkey(&self) -> u32 {
        self.inner.qkey
    }
}
