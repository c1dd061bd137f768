use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use bowline::{Connector, Listener, WcOpcode, WcStatus};

use super::super::args::PerfArgs;
use super::head::{Word, verdict};
use super::*;

fn hosts() -> Vec<String> {
    ["a", "b", "c"].map(str::to_owned).to_vec()
}

fn gave(side: Side, why: &str) -> Word {
    Word::Gave(Broken::new(side, why))
}

#[test]
fn a_server_that_has_hung_up_is_to_blame() {
    let words = [gave(Side::Next, "no answer"), Word::Gone, gave(Side::Previous, "no answer")];
    assert_eq!(verdict(&hosts(), &words, None), "b: disconnected, which broke the chain");
}

#[test]
fn the_last_complaint_in_the_chain_names_who_hangs() {
    let words = [gave(Side::Next, "nothing for 10 s"), gave(Side::Next, "late"), Word::Silent];
    assert_eq!(verdict(&hosts(), &words, None), "c: late (reported by b)");
    let words = [gave(Side::Next, "no answer"), Word::Silent, gave(Side::Previous, "no answer")];
    assert_eq!(verdict(&hosts(), &words, None), "b: no answer (reported by a)");
    let words = [gave(Side::Previous, "no answer"), Word::Silent, Word::Silent];
    assert_eq!(verdict(&hosts(), &words, None), "the sender: no answer (reported by a)");
}

#[test]
fn without_complaints_the_senders_own_error_names_the_first_server() {
    let words = [Word::Silent, Word::Silent, Word::Silent];
    let own = Broken::new(Side::Next, "no answer");
    assert_eq!(verdict(&hosts(), &words, Some(&own)), "a: no answer");
    assert!(verdict(&hosts(), &words, None).starts_with("no acknowledgement from c"));
}

#[test]
fn a_report_is_read_back_short_and_plain() {
    let long = "\x1b[31m".to_owned() + &"x".repeat(1000);
    let message = Broken::new(Side::Next, long).to_message().unwrap();
    let Broken { side, why } = Broken::from_message(&message).unwrap();
    assert_eq!(side, Side::Next);
    assert!(why.len() == MAX_WHY && why.starts_with("[31mx"), "{why}");
    for other in [&b"own:{}"[..], b"chain:", b"chain:{\"side\":\"up\"}", b""] {
        assert_eq!(Broken::from_message(other), None);
    }
}

#[test]
fn places_that_cannot_be_are_refused() {
    let place = |position, servers| Place { position, servers };
    assert!(place(0, 1).is_sane() && place(2, 3).is_sane());
    assert!(!place(3, 3).is_sane() && !place(0, 0).is_sane() && !place(0, 5000).is_sane());
}

/// The specification for these options.
fn spec(test: &str, chain: Option<Place>) -> Spec {
    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        perf: PerfArgs,
    }
    let line: Line = clap::Parser::parse_from(["perf", test, "-s", "3000", "-t", "4"]);
    Spec { chain, ..Spec::new(&line.perf) }
}

fn end(test: &str, chain: Option<Place>) -> End {
    let [a, b, ..] = RandomState::new().hash_one(0).to_le_bytes();
    let addr = format!("127.{}.{}.1", a.clamp(1, 254), b);
    let device = Device::open(&addr).unwrap();
    End::new(device, spec(test, chain)).unwrap()
}

#[test]
fn every_server_of_a_chain_has_every_byte_when_the_sender_hears_so() {
    for test in ["write-bw", "send-bw"] {
        let listener = Listener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let done = Arc::new(AtomicBool::new(false));
        let mut channels = Vec::new();
        let members: Vec<_> = (0..3)
            .map(|position| {
                let done = Arc::clone(&done);
                let member = thread::spawn(move || {
                    let mut end = end(test, Some(Place { position, servers: 3 }));
                    let mut channel = Connector::new().connect(address).unwrap();
                    end.connect(&mut channel).unwrap();
                    end.pass_on(3000, &done).unwrap();
                    end.memory.digest(0..end.received(), 3000)
                });
                channels.push(listener.accept().unwrap());
                member
            })
            .collect();
        let mut head = end(test, None);
        let mut down = head.down.take().unwrap();
        down.connect(&mut channels[0], &head.memory).unwrap();
        for position in 1..3 {
            let (before, after) = channels.split_at_mut(position);
            Channel::connect_peers(&mut before[position - 1], &mut after[0]).unwrap();
        }
        head.memory.fill(3000);
        let mut eye = Eye::new();
        while down.done() < 1001 {
            assert!(eye.idle() < Duration::from_secs(20), "{test}: stuck at {}", down.done());
            while down.posted < 1001 && down.posted < down.done() + head.memory.depth {
                down.send(&head.memory, head.spec.test, 3000).unwrap();
            }
            for completion in eye.look(&head.cq).unwrap() {
                down.on_completion(completion).unwrap();
            }
        }
        done.store(true, Ordering::Release);
        let sent = head.memory.digest(0..1001, 3000);
        for member in members {
            assert_eq!(member.join().unwrap(), sent, "{test}");
        }
        head.memory.mr.write_at(2999, b"!");
        assert_ne!(head.memory.digest(0..1001, 3000), sent, "one byte makes a difference");
    }
}

#[test]
fn an_acknowledgement_of_what_was_not_sent_is_refused() {
    let mut down = end("write-bw", None).down.unwrap();
    (down.posted, down.acked) = (7, 5);
    let ack = |imm| Completion {
        status: WcStatus::Success,
        opcode: WcOpcode::Recv,
        imm,
        ..Completion::default()
    };
    for imm in [Some(8), Some(4), Some(u32::MAX), None] {
        let broken = down.on_completion(&ack(imm)).unwrap_err();
        assert!(broken.why.contains("protocol error"), "{imm:?}: {broken}");
        assert_eq!(down.acked, 5, "{imm:?}");
    }
    let written = Completion { opcode: WcOpcode::RecvWriteImm, ..ack(Some(6)) };
    assert!(down.on_completion(&written).is_err(), "nothing is written towards the sender");
    assert_eq!(down.done(), 0);
}
