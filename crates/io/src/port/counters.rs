//! Counters of a port, middleware included.

macro_rules! port_counters {
    ($($(#[doc = $help:literal])+ $field:ident,)*) => {
        /// What a port and its middleware have counted. A snapshot is a copy.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct PortCounters {
            $($(#[doc = $help])+ pub $field: u64,)*
        }

        impl PortCounters {
            /// Every counter: name, help, value.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
                [$((stringify!($field), concat!($($help),+), self.$field)),*].into_iter()
            }

            /// Adds the counters of another port to these; of maxima, the greater stays.
            pub fn merge(&mut self, other: &PortCounters) {
                $(self.$field = if stringify!($field).contains("_max_") {
                    self.$field.max(other.$field)
                } else {
                    self.$field + other.$field
                };)*
            }
        }
    };
}

port_counters! {
    /// Bursts sent.
    tx_bursts,
    /// Packets sent.
    tx_packets,
    /// UDP payload bytes sent.
    tx_bytes,
    /// Times the kernel had no room and the rest of a batch had to wait.
    tx_blocked,
    /// Times a receiver on this host had no room and the rest of a batch had to wait.
    tx_paused,
    /// Packets not sent: forbidden, as by a firewall.
    tx_drop_denied,
    /// Packets not sent: no route, or the link is down.
    tx_drop_unreachable,
    /// Packets not sent: no neighbour answers for the address, or for the router to it.
    tx_drop_unresolved,
    /// Packets not sent: longer than the link's MTU.
    tx_drop_too_long,
    /// Packets not sent: the kernel was out of buffers.
    tx_drop_no_buffers,
    /// Packets not sent: their payload's memory is no longer mapped.
    tx_drop_fault,
    /// Packets not sent for any other reason.
    tx_drop_other,
    /// Times segmentation offload turned out not to work on the path, and was given up.
    gso_fallbacks,
    /// Datagrams received; with receive offload one holds many frames.
    rx_datagrams,
    /// Frames received.
    rx_frames,
    /// UDP payload bytes received.
    rx_bytes,
    /// Datagrams that the kernel dropped because the socket's buffer was full.
    rx_overflow,
    /// Datagrams cut short, and dropped.
    rx_truncated,
    /// Frames dropped: fragments, or with headers that are wrong or disagree.
    rx_malformed,
    /// Frames dropped: not addressed to this port, or with a VLAN tag.
    rx_foreign,
    /// Errors that the network reported to the socket; none has any effect.
    rx_errors,
    /// Frames that arrived here but belong to another process on the address.
    misrouted,
    /// Frames handed on to the process that they belong to.
    handed_on,
    /// Frames that another process handed on to this one.
    handed_in,
    /// Misrouted frames dropped: their owner is gone, or slow.
    drop_misrouted,
    /// Times the steering of the address's sockets was renewed.
    steering_updates,
    /// Bursts sent through shared memory; also counted among all bursts.
    shm_tx_bursts,
    /// Frames received through shared memory; also counted among all frames.
    shm_rx_frames,
    /// Times a process of this host has taken a ring of shared memory.
    shm_peers,
    /// Engines of this host that are reached by UDP because they have no ring.
    shm_fallbacks,
    /// Times a sleeping reader had to be woken.
    shm_wakes,
    /// Rings refused, or given up because what was in them could not be right.
    shm_refused,
    /// Packets not sent: their reader had stopped reading.
    shm_drop_stalled,
    /// Packets not sent: they were made for a ring that has gone.
    shm_drop_gone,
    /// Packets dropped by impairment: loss.
    impair_lost,
    /// Packets dropped by impairment: the emulated queue was full.
    impair_queue_full,
    /// Packets sent twice by impairment.
    impair_duplicated,
    /// Packets with a bit flipped by impairment.
    impair_corrupted,
    /// Packets let past others by impairment.
    impair_reordered,
    /// Packets that impairment marked: congestion experienced.
    impair_marked,
    /// The most nanoseconds that impairment released a packet too late.
    impair_max_lateness_ns,
    /// Packets that came in and were dropped by a fault on demand.
    fault_dropped_in,
    /// Packets not sent: a fault on demand dropped them.
    fault_dropped_out,
    /// Frames written to a capture.
    pcap_frames,
    /// Frames missing in a capture because writing failed.
    pcap_lost,
}
