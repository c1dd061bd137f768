//! Counters of a device and of a QP.

/// Declares a block of counters with their names and help texts once, for snapshots and for text.
macro_rules! counters {
    ($(#[$meta:meta])* $name:ident { $($(#[doc = $help:literal])+ $field:ident,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct $name {
            $($(#[doc = $help])+ pub $field: u64,)*
        }

        impl $name {
            /// Every counter: name, help, value.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
                [$((stringify!($field), concat!($($help),+), self.$field)),*].into_iter()
            }

            /// Adds another block to this one.
            pub fn merge(&mut self, other: &$name) {
                $(self.$field += other.$field;)*
            }
        }
    };
}

counters! {
    /// Device counters. A snapshot is a clone.
    Counters {
        /// Packets sent.
        tx_packets,
        /// UDP payload bytes sent.
        tx_bytes,
        /// Frames received.
        rx_packets,
        /// UDP payload bytes received.
        rx_bytes,
        /// Message bytes received: of SENDs and WRITEs that arrived whole, and of all that XP has
        /// placed.
        rx_message_bytes,
        /// WRITEs copied straight into the memory of a peer on this host.
        direct_writes,
        /// Packets sent again.
        retransmitted_packets,
        /// Retransmission timeouts.
        timeouts,
        /// Probes sent to peers that had said nothing.
        keepalive_probes,
        /// Peers that answered no probe.
        keepalive_failures,
        /// ACKs sent.
        tx_acks,
        /// ACKs received.
        rx_acks,
        /// NAKs sent: PSN sequence error.
        tx_nak_sequence,
        /// NAKs sent: invalid request.
        tx_nak_invalid,
        /// NAKs sent: remote access error.
        tx_nak_access,
        /// NAKs sent: remote operational error.
        tx_nak_operational,
        /// RNR NAKs sent: no receive was posted.
        tx_rnr,
        /// NAKs received: PSN sequence error.
        rx_nak_sequence,
        /// NAKs received: invalid request.
        rx_nak_invalid,
        /// NAKs received: remote access error.
        rx_nak_access,
        /// NAKs received: remote operational error.
        rx_nak_operational,
        /// RNR NAKs received.
        rx_rnr,
        /// Duplicate requests that were answered again.
        duplicates,
        /// Responses that came out of order and made a READ or atomic start again.
        read_gaps,
        /// Congestion notifications sent.
        tx_cnps,
        /// Congestion notifications received.
        rx_cnps,
        /// Frames marked by a switch: congestion experienced.
        rx_ecn_marked,
        /// Frames dropped: not a packet, or an unknown opcode.
        drop_malformed,
        /// Frames dropped: wrong ICRC.
        drop_icrc,
        /// Frames accepted with an IP identification solved for: a weaker check.
        icrc_solved,
        /// Frames dropped: not sealed, for a QP whose packets are.
        drop_unsealed,
        /// Sealed packets dropped: of an epoch whose key is gone, or too far ahead.
        drop_epoch,
        /// Sealed packets dropped: came before, or too late to tell.
        drop_replayed,
        /// Sealed packets dropped: the tag is not the peer's.
        drop_forged,
        /// Frames dropped: no such QP.
        drop_no_qp,
        /// Frames dropped: from an address that is not the QP's peer.
        drop_wrong_peer,
        /// Frames dropped: wrong partition key.
        drop_pkey,
        /// Frames dropped: wrong Q_Key.
        drop_qkey,
        /// Frames dropped: the QP's state or type does not take them.
        drop_state,
        /// Frames dropped: out of sequence.
        drop_sequence,
        /// Frames dropped: stale or unexpected responses.
        drop_stale,
        /// Packets dropped: of a message that has ended, or that later ones have preempted.
        drop_late,
        /// Packets dropped: without the connection's token.
        drop_token,
        /// Messages of unreliable QPs dropped: a packet was missing.
        drop_message,
        /// Messages of unreliable QPs dropped: no receive was posted.
        drop_no_receive,
        /// Frames refused: key, rights, domain or bounds do not allow the access.
        access_violations,
        /// Work requests completed.
        completions,
        /// Work requests completed with an error.
        completion_errors,
        /// Completions lost to an overflowing queue.
        cq_overflows,
        /// Events lost because nobody polled them.
        events_lost,
    }
}

counters! {
    /// Counters of a QP.
    QpCounters {
        /// Packets sent.
        tx_packets,
        /// UDP payload bytes sent.
        tx_bytes,
        /// Packets received.
        rx_packets,
        /// UDP payload bytes received.
        rx_bytes,
        /// Packets sent again.
        retransmitted_packets,
        /// Retransmission timeouts.
        timeouts,
        /// NAKs and RNR NAKs received.
        rx_naks,
        /// NAKs and RNR NAKs sent.
        tx_naks,
        /// Congestion notifications received.
        rx_cnps,
    }
}

impl Counters {
    /// The counters in Prometheus' text format, labelled with the device's name.
    pub fn prometheus(&self, device: &str) -> String {
        use core::fmt::Write;
        let mut text = String::new();
        let device = escape_label(device);
        for (name, help, value) in self.iter() {
            let help = help.trim();
            // Writing to a String cannot fail.
            let _ = writeln!(text, "# HELP bowline_{name}_total {help}");
            let _ = writeln!(text, "# TYPE bowline_{name}_total counter");
            let _ = writeln!(text, "bowline_{name}_total{{device=\"{device}\"}} {value}");
        }
        text
    }
}

/// Escapes what Prometheus' text format reserves in a label's value.
fn escape_label(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
