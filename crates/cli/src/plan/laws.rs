//! Checks the model's laws for go-back-N and LoWAR against the code, in virtual time, so that the
//! planner's recommendation matches what Bowline does.

use bowline::{FecMode, Mtu};
use bowline_link::{LinkConfig, Loss as CableLoss, Prob};
use bowline_plan::{Link, Loss, Message, Scheme, Transfer};
use bowline_sim::experiment::{GoodputConfig, goodput};

const MTU: Mtu = Mtu::B1024;
/// BTH, ICRC and the headers below: the overhead of a packet in the middle of a message.
const HEADERS: u64 = 12 + 4 + 8 + 20 + 14 + 4;

/// Mean completion times of consecutive messages, by the law and by the code.
fn both(bytes: u32, bandwidth_bps: u64, rtt_ms: u64, loss: f64, fec: Option<&str>) -> (f64, f64) {
    let mode: Option<FecMode> = fec.map(|text| text.parse().unwrap());
    let scheme = match fec {
        Some(_) => Scheme::Lowar { r: 32, c: 1 },
        None => Scheme::GoBackN,
    };
    let link = Link {
        bandwidth_bps: bandwidth_bps as f64,
        rtt_s: rtt_ms as f64 / 1e3,
        loss: Loss::Packet(loss),
    };
    let mtu_bytes = u64::from(MTU.bytes());
    let message = Message { bytes: bytes.into(), chunk_bytes: mtu_bytes, mtu_bytes };
    let law = Transfer::new(link, message).unwrap().completion(&scheme).unwrap();
    let cable = LinkConfig {
        // The model ignores headers.
        rate_bps: Some(bandwidth_bps * (mtu_bytes + HEADERS) / mtu_bytes),
        delay_ns: rtt_ms * 500_000,
        queue_bytes: 256 << 20,
        ecn: None,
    };
    // The timeout closest to the model's three round trips: 4.096 µs · 2^code.
    let timeout = (rtt_ms as f64 * 3e3 / 4.096).log2().round() as u8;
    let run = goodput(&GoodputConfig {
        seed: 1,
        cable,
        loss: CableLoss::Iid(Prob::new(loss)),
        changes: &[],
        fec: mode,
        mtu: MTU,
        message_bytes: bytes,
        messages: 200,
        depth: 1,
        window_bytes: u32::MAX / 2,
        timeout,
    })
    .expect("the connection does not give up");
    let sum: u64 = run.completion_ns.iter().sum();
    (law.mean_s(), sum as f64 / 1e9 / run.completion_ns.len() as f64)
}

#[test]
fn go_back_n_and_lowar_take_what_the_planner_says() {
    let cases = [
        (1 << 20, 1_000_000_000, 40, 1e-3),
        (4 << 20, 1_000_000_000, 40, 1e-4),
        (256 << 10, 1_000_000_000, 20, 1e-2),
        (1 << 20, 10_000_000_000, 10, 1e-4),
    ];
    for (bytes, bandwidth_bps, rtt_ms, loss) in cases {
        for fec in [None, Some("32,1")] {
            let (law_s, code_s) = both(bytes, bandwidth_bps, rtt_ms, loss, fec);
            let error = code_s / law_s - 1.0;
            // At high loss, retransmitted packets are lost too, and then take a timeout.
            let bar = if loss < 5e-3 { 0.1 } else { 0.25 };
            assert!(
                error.abs() < bar,
                "{bytes} {bandwidth_bps} {rtt_ms} {loss} {fec:?}: {error:+.3}"
            );
        }
    }
}
