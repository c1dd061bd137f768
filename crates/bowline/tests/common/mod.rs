//! Two ends on loopback addresses of their own, for every test alike.
#![allow(dead_code, reason = "every test file uses its own part of this")]

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use bowline::{Access, Completion, CompletionExt, Cq, Device, Mr, Pd, Qp, QpType, RemoteMr};

/// No wait of a test is longer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// Everything that may be done to memory.
pub(crate) const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC);

/// An address that nobody else is likely to use at the moment.
pub(crate) fn random_addr() -> IpAddr {
    use std::hash::{BuildHasher, RandomState};
    let [a, b, c, ..] = RandomState::new().hash_one(0).to_le_bytes();
    // Neither the network itself, nor 127.0.0.x, where people run servers.
    IpAddr::V4(Ipv4Addr::new(127, a.max(1), b, c.clamp(1, 254)))
}

/// A device with a domain, a queue, a region of 1 MiB and a queue pair.
pub(crate) struct End {
    pub(crate) device: Device,
    pub(crate) pd: Pd,
    pub(crate) cq: Cq,
    pub(crate) mr: Mr,
    pub(crate) qp: Qp,
}

impl End {
    pub(crate) fn new(qp_type: QpType) -> End {
        End::on(&Device::builder(random_addr()).open().unwrap(), qp_type)
    }

    pub(crate) fn on(device: &Device, qp_type: QpType) -> End {
        let pd = device.alloc_pd().unwrap();
        let cq = device.create_cq(1024).unwrap();
        let mr = pd.register(1 << 20, ALL).unwrap();
        let qp = pd.qp(qp_type, &cq).build().unwrap();
        End { device: device.clone(), pd, cq, mr, qp }
    }

    pub(crate) fn connect(&self, to: &End) {
        self.qp.connect(&to.qp.endpoint()).unwrap();
        to.qp.connect(&self.qp.endpoint()).unwrap();
    }

    pub(crate) fn remote(&self) -> RemoteMr {
        self.mr.remote()
    }
}

/// Two connected ends.
pub(crate) fn pair(qp_type: QpType) -> (End, End) {
    let (a, b) = (End::new(qp_type), End::new(qp_type));
    a.connect(&b);
    (a, b)
}

/// Polls until a completion comes, checking that it is a success.
pub(crate) fn poll_one(cq: &Cq) -> Completion {
    let mut out = [Completion::default()];
    let deadline = std::time::Instant::now() + PATIENCE;
    while cq.poll(&mut out).unwrap() == 0 {
        assert!(std::time::Instant::now() < deadline, "no completion came");
    }
    out[0].ok().unwrap()
}

/// Bytes that differ everywhere.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i ^ (i >> 8) ^ (i >> 16)) as u8).collect()
}
