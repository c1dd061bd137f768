//! What each end counted during a test. From both accounts, each end computes the loss and the
//! cost.

use std::error::Error;
use std::thread;
use std::time::{Duration, Instant};

use bowline::multicast::OWN_ANSWER;
use bowline::{Channel, Device};
use serde::{Deserialize, Serialize};

use super::args::{Metric, Spec, Test};

/// If the counters have not changed for this long, everything has arrived.
const SETTLED: Duration = Duration::from_millis(20);
const MAX_SETTLING: Duration = Duration::from_secs(1);
/// How long an impaired link may take to drain.
const MAX_DRAINING: Duration = Duration::from_secs(10);

/// Which end this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Client,
    Server,
}

/// What one end did in one test.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Account {
    /// Whether its NIC counts packets and messages. A verbs device counts neither.
    pub(crate) is_counted: bool,
    /// Packets that its NIC sent, before any emulated link.
    tx_packets: u64,
    rx_packets: u64,
    /// Bytes of messages that arrived.
    pub(crate) message_bytes: u64,
    cpu_s: f64,
    elapsed_s: f64,
}

/// An account of a running test.
pub(crate) struct Ledger {
    before: Counts,
    started: Instant,
    cpu: Duration,
    /// Elapsed time and CPU time of the test itself, once it is over.
    took: Option<(Duration, Duration)>,
    /// Packets sent when the peer was told of the end. The peer might not count later ones.
    sent: Option<u64>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Counts {
    tx_packets: u64,
    rx_packets: u64,
    message_bytes: u64,
    /// Packets that have left the impaired link, delivered or lost.
    gone: u64,
}

impl Counts {
    /// Zeros for a verbs device, whose counters the kernel keeps.
    fn of(device: &Device) -> Result<Counts, bowline::Error> {
        if device.verbs_caps().is_some() {
            return Ok(Counts::default());
        }
        let (nic, port) = (device.counters()?, device.port_counters()?);
        let lost = port.impair_lost + port.impair_queue_full + port.fault_dropped_out;
        let refused: u64 = port
            .iter()
            .filter(|(name, ..)| name.starts_with("tx_drop_") || name.starts_with("shm_drop_"))
            .map(|(_, _, count)| count)
            .sum();
        Ok(Counts {
            tx_packets: nic.tx_packets,
            rx_packets: nic.rx_packets,
            message_bytes: nic.rx_message_bytes,
            gone: (port.tx_packets + lost + refused).saturating_sub(port.impair_duplicated),
        })
    }
}

impl Ledger {
    /// Starts an account, while no packets are in flight.
    pub(crate) fn open(device: &Device) -> Result<Ledger, bowline::Error> {
        let before = Counts::of(device)?;
        Ok(Ledger { before, started: Instant::now(), cpu: cpu_time(), took: None, sent: None })
    }

    /// Ends the test: nothing that follows is part of it.
    pub(crate) fn stop(&mut self) {
        let elapsed = self.started.elapsed();
        self.took.get_or_insert((elapsed, cpu_time().saturating_sub(self.cpu)));
    }

    /// Waits until the link has drained, because delayed packets are not lost. The peer is told of
    /// the end after that.
    pub(crate) fn drain(&mut self, device: &Device) -> Result<(), bowline::Error> {
        self.stop();
        drain(device)?;
        self.sent = Some(Counts::of(device)?.tx_packets);
        Ok(())
    }

    /// Closes the account once nothing more arrives.
    pub(crate) fn close(mut self, device: &Device) -> Result<Account, bowline::Error> {
        self.stop();
        let now = settle(device)?;
        let (elapsed, cpu) = self.took.unwrap_or_default();
        Ok(Account {
            is_counted: device.verbs_caps().is_none(),
            tx_packets: self.sent.unwrap_or(now.tx_packets) - self.before.tx_packets,
            rx_packets: now.rx_packets - self.before.rx_packets,
            message_bytes: now.message_bytes - self.before.message_bytes,
            cpu_s: cpu.as_secs_f64(),
            elapsed_s: elapsed.as_secs_f64(),
        })
    }
}

fn drain(device: &Device) -> Result<(), bowline::Error> {
    let start = Instant::now();
    let mut before = Counts::of(device)?;
    let mut still = Instant::now();
    while before.gone < before.tx_packets && start.elapsed() < MAX_DRAINING {
        thread::sleep(Duration::from_millis(1));
        let now = Counts::of(device)?;
        if now.gone != before.gone {
            still = Instant::now();
        }
        // A port that counts in other units never reports that it is empty.
        if still.elapsed() > MAX_SETTLING {
            break;
        }
        before = now;
    }
    Ok(())
}

fn settle(device: &Device) -> Result<Counts, bowline::Error> {
    let start = Instant::now();
    let mut before = Counts::of(device)?;
    loop {
        thread::sleep(SETTLED);
        let now = Counts::of(device)?;
        if now == before || start.elapsed() > MAX_SETTLING {
            return Ok(now);
        }
        before = now;
    }
}

/// Sends this end's account to the peer and receives the peer's. Returns `None` if the peer has
/// none, as with a group of servers.
pub(crate) fn exchange(
    channel: &mut Channel,
    ours: Option<&Account>,
) -> Result<Option<Account>, Box<dyn Error>> {
    let mut message = OWN_ANSWER.to_vec();
    if let Some(ours) = ours {
        message.extend(serde_json::to_vec(ours)?);
    }
    channel.send(&message)?;
    let answer = channel.recv()?;
    let body = answer
        .strip_prefix(&OWN_ANSWER)
        .ok_or("the peer sent no account of the test: run the same release at both ends")?;
    if body.is_empty() {
        return Ok(None);
    }
    let theirs = serde_json::from_slice(body)
        .map_err(|e| format!("the peer's account of the test cannot be read: {e}"))?;
    Ok(Some(theirs))
}

/// The two accounts combined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Both {
    /// CPU time of all threads relative to elapsed time; 100 is one core.
    pub(crate) client_cpu_percent: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) server_cpu_percent: Option<f64>,
    /// Loss in the direction in which data flows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) to_server: Option<Loss>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) to_client: Option<Loss>,
}

/// Packets in one direction: sent by one end, received by the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Loss {
    pub(crate) sent_packets: u64,
    pub(crate) lost_packets: u64,
}

impl Loss {
    fn between(from: &Account, to: &Account) -> Loss {
        let lost_packets = from.tx_packets.saturating_sub(to.rx_packets);
        Loss { sent_packets: from.tx_packets, lost_packets }
    }

    /// Share of packets that were lost.
    pub(crate) fn share(self) -> f64 {
        self.lost_packets as f64 / self.sent_packets.max(1) as f64
    }
}

impl Both {
    /// Combines the accounts of `end` and its peer.
    pub(crate) fn new(spec: &Spec, end: End, ours: &Account, theirs: Option<&Account>) -> Both {
        let percent = |account: &Account| 100.0 * account.cpu_s / account.elapsed_s.max(1e-9);
        let (client, server) = match end {
            End::Client => (Some(ours), theirs),
            End::Server => (theirs, Some(ours)),
        };
        let (to_server, to_client) = data_flows(spec);
        let counted = |account: Option<&'_ Account>| account.copied().filter(|a| a.is_counted);
        let loss = |from, to| Some(Loss::between(&counted(from)?, &counted(to)?));
        Both {
            client_cpu_percent: client.map_or(0.0, percent),
            server_cpu_percent: server.map(percent),
            to_server: loss(client, server).filter(|_| to_server),
            to_client: loss(server, client).filter(|_| to_client),
        }
    }
}

/// Whether data flows to the server, and to the client.
fn data_flows(spec: &Spec) -> (bool, bool) {
    let is_read = matches!(spec.test, Test::ReadBw | Test::ReadLat | Test::AtomicLat);
    if spec.both || spec.test.metric() == Metric::Latency {
        return (true, true);
    }
    (!is_read, is_read)
}

/// CPU time of all threads of this process so far.
pub(crate) fn cpu_time() -> Duration {
    use rustix::time::{ClockId, clock_gettime};
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::super::args::PerfArgs;
    use super::*;

    #[test]
    fn what_one_end_sent_and_the_other_did_not_receive_is_lost() {
        let client = Account { tx_packets: 1000, rx_packets: 40, ..Account::default() };
        let server = Account { tx_packets: 50, rx_packets: 990, ..Account::default() };
        let loss = Loss::between(&client, &server);
        assert_eq!((loss.sent_packets, loss.lost_packets), (1000, 10));
        assert!((loss.share() - 0.01).abs() < 1e-12);
        // Packets that the network duplicated are not lost.
        let more = Account { rx_packets: 1001, ..server };
        assert_eq!(Loss::between(&client, &more).lost_packets, 0);
    }

    #[test]
    fn an_end_that_counts_nothing_has_lost_nothing() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            perf: PerfArgs,
        }
        let line: Line = clap::Parser::parse_from(["perf", "send-bw", "127.0.0.1"]);
        let spec = Spec::new(&line.perf);
        let counted = Account { is_counted: true, tx_packets: 1000, ..Account::default() };
        let blind = Account::default();
        let both = |theirs| Both::new(&spec, End::Client, &counted, Some(theirs)).to_server;
        assert_eq!(both(&blind), None);
        assert_eq!(both(&counted).map(|loss| loss.lost_packets), Some(1000));
    }

    #[test]
    fn cpu_time_passes() {
        let before = cpu_time();
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(5) {}
        assert!(cpu_time() > before);
    }
}
