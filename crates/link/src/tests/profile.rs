use proptest::prelude::*;

use crate::{Ecn, LinkProfile, Loss, Prob};

fn profile(text: &str) -> LinkProfile {
    text.parse().expect("a right profile")
}

#[test]
fn a_profile_reads_as_written() {
    let text = "loss=0.1%,delay=10ms,jitter=1ms,rate=1Gbps,reorder=1%,duplicate=1%,\
                corrupt=0.01%,queue=8MiB,ecn=red(100KiB,400KiB,20%),seed=7";
    let p = profile(text);
    assert_eq!(p.faults.loss, Loss::Iid(Prob::new(0.001)));
    assert_eq!(p.faults.reorder_ns, 400_000);
    assert_eq!(p.config.delay_ns, 10_000_000);
    assert_eq!(p.config.rate_bps, Some(1_000_000_000));
    assert_eq!(p.config.queue_bytes, 8 << 20);
    let ecn = Ecn { kmin_bytes: 100 << 10, kmax_bytes: 400 << 10, pmax: Prob::new(0.2) };
    assert_eq!(p.config.ecn, Some(ecn));
    assert_eq!(p.seed, 7);
    assert_eq!(profile(""), LinkProfile::default());
    assert_eq!(LinkProfile::default().to_string(), "");
}

#[test]
fn what_is_printed_reads_as_the_same() {
    for text in [
        "loss=0.1%,delay=10ms,jitter=1ms,rate=1Gbps,reorder=1%,corrupt=0.00001%,queue=8MiB",
        " loss=ge(0.1%, 20%, 90%, 0.01%) , rate=2.5Gbps,delay=1.5us",
        "loss=bursts(0.01%,30),duplicate=3%,hold=2us",
        "loss=bursts(0.01%,30,50%),ecn=red(1B,2B,100%),reorder=1%,hold=0ns,seed=1",
    ] {
        let p = profile(text);
        assert_eq!(profile(&p.to_string()), p, "{text}");
    }
}

#[test]
fn a_queue_may_be_written_in_round_trips_at_full_rate() {
    // 1 Gbit/s for 40 ms.
    assert_eq!(profile("queue=1bdp,rate=1gbit,delay=20ms").config.queue_bytes, 5_000_000);
    assert_eq!(profile("rate=1Gbps,delay=20ms,queue=0.5bdp").config.queue_bytes, 2_500_000);
}

#[test]
fn what_is_wrong_in_a_profile_is_named() {
    for (text, names) in [
        ("loss=101%", "loss=101%"),
        ("los=1%", "`los`"),
        ("delay=10", "delay=10"),
        ("delay=-1ms", "delay=-1ms"),
        ("rate=0bps", "rate=0bps"),
        ("rate=fast", "rate=fast"),
        ("queue=8", "queue=8"),
        ("delay=1ms,queue=1bdp", "takes a rate"),
        ("queue=xbdp,rate=1Gbps,delay=1ms", "queue=xbdp"),
        ("loss=ge(1%)", "ge(p,r)"),
        ("loss=ge(1%,2%", "loss=ge(1%,2%"),
        ("loss=bursts(1%,many)", "`many`"),
        ("loss=bursts(1%)", "bursts(begin,packets)"),
        ("ecn=yes", "red(kmin,kmax,pmax)"),
        ("ecn=red(2kB,1kB,10%)", "kmin `2kB`"),
        ("delay=1ms,seed", "`seed`"),
        ("seed=x", "invalid seed `x`"),
        ("loss=nan", "loss=nan"),
    ] {
        let error = text.parse::<LinkProfile>().expect_err(text).to_string();
        assert!(error.contains(names), "{error}");
        assert!(error.contains("loss=0.1%,delay=10ms"), "{error}");
    }
}

proptest! {
    #[test]
    fn no_text_makes_it_panic(text in "[a-z=,()0-9.%]{0,60}") {
        let _ = text.parse::<LinkProfile>();
    }
}
