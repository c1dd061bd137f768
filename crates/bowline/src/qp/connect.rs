//! Connecting a queue pair.

use bowline_nic::{AddressVector, Connect, PacketSeal, Time};
use bowline_seal::{Role, SealConfig, SessionSecret};

use super::Qp;
use crate::{Endpoint, Error};

/// Options of a connection; the defaults suit a data centre and loopback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectOptions {
    /// Retransmission timeout: 4.096 µs times 2 to this power, 1..=31. On a long link it must be
    /// longer than the round trip; 14, the default, is 67 ms.
    pub timeout: u8,
    /// Retries after timeouts before the connection fails, 0..=7.
    pub retry_count: u8,
    /// Retries when the peer has no receive posted, 0..=7; 7 means unlimited.
    pub rnr_retry: u8,
    /// Code of the time that the peer must wait when no receive is posted here, 0..=31; 12, the
    /// default, is 0.64 ms.
    pub min_rnr_timer: u8,
    /// DSCP of its packets, in the upper six bits.
    pub traffic_class: u8,
    /// Bytes in flight; by default its share of the device's window.
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
        if !ours.qp_type.descriptor().connected {
            return self.activate();
        }
        let rd_atomic = ours.rd_atomic.min(peer.rd_atomic);
        let connect = Connect {
            av: AddressVector { dst: peer.addr, traffic_class: options.traffic_class },
            path_mtu: ours.mtu.min(peer.mtu),
            rq_psn: peer.psn,
            sq_psn: ours.psn,
            max_dest_rd_atomic: rd_atomic,
            max_rd_atomic: rd_atomic,
            min_rnr_timer: options.min_rnr_timer,
            timeout: options.timeout,
            retry_count: options.retry_count,
            rnr_retry: options.rnr_retry,
            ..Connect::new(peer.addr, peer.qpn)
        };
        // The first step was done when it was created.
        let [_, rtr, rts] = connect.steps(ours.qp_type);
        self.modify(&rtr)?;
        if let Some(bytes) = options.window_bytes {
            self.set_window(bytes)?;
        }
        self.modify(&rts)
    }

    /// Seals its next connection with keys of this session, for ends that agree on them by other
    /// means than a [`Channel`](crate::Channel). Call it before connecting. A number is used once
    /// per session; both ends must have the same number and cipher, and different roles.
    pub fn seal(
        &self,
        session: &SessionSecret,
        number: u64,
        role: Role,
        config: &SealConfig,
    ) -> Result<(), Error> {
        self.seal_by(|now| bowline_seal::seal(session, number, role, config, now))
    }

    /// Seals its next connection.
    pub(crate) fn seal_by(&self, make: impl FnOnce(Time) -> PacketSeal) -> Result<(), Error> {
        if !self.inner.qp_type.descriptor().connected {
            let why = "a datagram queue pair has many peers and no key: use RC, UC or XP over a channel that seals";
            return Err(Error::Invalid { what: "queue pair", why: why.to_owned() });
        }
        self.device().needs_soft_nic("sealing packets")?;
        Ok(self.control(|nic, now, qpn| nic.seal_qp(qpn, make(now)))??)
    }

    /// Whether its packets are sealed: encrypted and authenticated (`docs/sealed.md`).
    pub fn is_sealed(&self) -> Result<bool, Error> {
        if self.inner.core.verbs().is_some() {
            return Ok(false);
        }
        self.control(|nic, _, qpn| nic.is_sealed(qpn))
    }

    /// Makes a UD queue pair ready to send and to receive: datagrams need no connection.
    pub fn activate(&self) -> Result<(), Error> {
        let [_, rtr, rts] = Connect::datagram_steps(self.inner.qkey, self.inner.psn);
        self.modify(&rtr)?;
        self.modify(&rts)
    }

    /// The Q_Key that datagrams to it must carry.
    pub fn qkey(&self) -> u32 {
        self.inner.qkey
    }
}
