//! Messages that several lanes carry together.

mod common;

use bowline::{
    Device, Error, Failure, LaneCount, Mr, Pd, ReliableConfig, ReliableEvent, ReliableQp,
    SdrConfig, SdrError, WriteOptions,
};
use common::{ALL, PATIENCE, random_addr};

const LANES: usize = 3;
/// Data of a group: what one lane carries in a row.
const GROUP: usize = 4 * 8192;
const MAX: usize = 20 * GROUP;

fn config() -> ReliableConfig {
    ReliableConfig {
        sdr: SdrConfig { chunk_bytes: 8192, ..SdrConfig::default() },
        max_write: MAX as u64,
        k: 4,
        m: 2,
        ..ReliableConfig::default()
    }
}

/// One end, with memory for a message and what lies behind it.
struct End {
    device: Device,
    mr: Mr,
    qp: ReliableQp,
}

impl End {
    fn new(lanes: usize, link: &str, spread: impl Fn(&Pd) -> ReliableQp) -> End {
        let lanes: LaneCount = lanes.to_string().parse().unwrap();
        let builder = Device::builder(random_addr()).lanes(lanes);
        let device = builder.link(link.parse().unwrap()).open().unwrap();
        let pd = device.alloc_pd().unwrap();
        let mr = pd.register(MAX + GROUP, ALL).unwrap();
        End { device, mr, qp: spread(&pd) }
    }

    fn connect(&self, to: &End) {
        self.qp.connect(to.device.addr(), &to.qp.info().unwrap()).unwrap();
    }
}

fn pair(lanes: [usize; 2], link: &str) -> [End; 2] {
    let spread = |pd: &Pd| ReliableQp::spread(pd, &config(), LANES).unwrap();
    let [a, b] = lanes.map(|lanes| End::new(lanes, link, spread));
    a.connect(&b);
    b.connect(&a);
    [a, b]
}

/// Sends `len` bytes into a receive of `capacity`, and checks every byte of it and behind it.
fn deliver([a, b]: &[End; 2], number: u32, len: usize, capacity: usize, scheme: &str) {
    let pattern = |at: usize| (at * 31 + at / 255 + number as usize * 7) as u8;
    let bytes: Vec<u8> = (0..len).map(pattern).collect();
    a.mr.write_at(0, &bytes);
    b.mr.write_at(0, &vec![0xa5; MAX + GROUP]);
    b.qp.recv(&b.mr, 0..capacity).unwrap();
    let scheme = a.qp.scheme(scheme).unwrap();
    a.qp.write(&a.mr, 0..len, WriteOptions { scheme, imm: Some(number) }).unwrap();
    let received = b.qp.next(PATIENCE).unwrap();
    let ReliableEvent::Received { len: reported, imm, .. } = received else {
        panic!("{received:?}")
    };
    assert_eq!((reported, imm), (len as u64, Some(number)));
    let memory = b.mr.to_vec(0, MAX + GROUP);
    assert!(memory[..len] == bytes, "message {number} of {len} bytes");
    assert!(memory[len..].iter().all(|byte| *byte == 0xa5), "behind message {number}");
    a.qp.next(PATIENCE).unwrap();
}

#[test]
fn every_byte_arrives_in_its_place_over_a_link_that_loses() {
    let ends = pair([LANES; 2], "loss=1%");
    let sizes = [0, 1, GROUP - 1, GROUP, GROUP + 1, 2 * GROUP + 5, 3 * GROUP, 7 * GROUP + 123, MAX];
    for (number, len) in sizes.into_iter().enumerate() {
        let scheme = ["sr-nack", "ec-mds"][number % 2];
        deliver(&ends, number as u32, len, if number % 3 == 0 { len } else { MAX }, scheme);
    }
    for end in &ends {
        assert_eq!(end.qp.lanes(), LANES);
    }
    let sent = ends[0].device.counters().unwrap().tx_packets;
    assert!(sent > 200, "{sent} packets of all lanes");
}

#[test]
fn ends_need_not_have_as_many_lanes() {
    let ends = pair([LANES, 1], "loss=0%");
    deliver(&ends, 1, 9 * GROUP + 1, MAX, "sr-nack");
}

#[test]
fn a_message_that_is_too_long_for_its_receive_fails_at_both_ends() {
    let [a, b] = pair([LANES; 2], "loss=0%");
    b.qp.recv(&b.mr, 0..2 * GROUP).unwrap();
    a.qp.write(&a.mr, 0..5 * GROUP, WriteOptions::default()).unwrap();
    for (end, expected) in [(&b, Failure::TooLong), (&a, Failure::Aborted)] {
        match end.qp.next(PATIENCE) {
            Err(Error::Message(failure)) => assert_eq!(failure, expected),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn ends_that_spread_differently_do_not_connect() {
    let whole = |pd: &Pd| ReliableQp::new(pd, &config()).unwrap();
    let spread = |pd: &Pd| ReliableQp::spread(pd, &config(), LANES).unwrap();
    let (a, b) = (End::new(1, "loss=0%", whole), End::new(LANES, "loss=0%", spread));
    let why = a.qp.connect(b.device.addr(), &b.qp.info().unwrap()).unwrap_err();
    assert!(matches!(why, Error::Sdr(SdrError::Mismatch { .. })), "{why}");
    let pd = a.device.alloc_pd().unwrap();
    assert!(ReliableQp::spread(&pd, &config(), 0).is_err());
}
