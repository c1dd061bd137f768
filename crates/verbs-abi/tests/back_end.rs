//! The device core's verbs back end over this library: a device by `verbs:NAME` does what the soft
//! NIC does that is behind it, the conformance body says.

mod support;

use std::time::Duration;

use bowline::{Access, Connector, Device, Error, Listener, Qp, QpType};
use bowline_conformance::ends::device::{DeviceEnd, WallClock};
use bowline_conformance::{End, Lab, Maker, Profile, cases, run_case};

use support::back_end::{open, provide, soft_address};

fn judge(devices: [Device; 2]) {
    let ends = devices.map(|device| -> Box<dyn End> {
        Box::new(DeviceEnd::new(device).expect("a new device has room"))
    });
    let mut lab = Lab::new(ends, Box::new(WallClock::start()));
    let cases = cases(Profile::Clean, Maker::Bowline).into_iter();
    let cases: Vec<_> = cases.filter(|case| !case.check.needs_xp).collect();
    assert!(cases.len() > 50, "{} cases are too few", cases.len());
    let mut failures = Vec::new();
    for case in cases {
        if let Err(failure) = run_case(&mut lab, case).result {
            failures.push(format!("{case}: {failure}"));
        }
    }
    assert!(failures.is_empty(), "{} cases failed:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn the_body_passes_between_two_verbs_devices() {
    judge([open("verbs:bl0"), open("verbs:bl1")]);
}

#[test]
fn the_body_passes_between_a_soft_nic_and_a_verbs_device() {
    judge([open(&soft_address(0)), open("verbs:bl2")]);
}

fn pair(qp_type: QpType) -> (Device, Qp) {
    let device = open("verbs:bl0");
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(16).unwrap());
    let qp = pd.qp(qp_type, &cq).build().unwrap();
    (device, qp)
}

#[test]
fn a_waiter_is_woken_by_the_event_channel() {
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let client = std::thread::spawn(move || {
        let device = open("verbs:bl1");
        let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(16).unwrap());
        let mr = pd.register(64, Access::LOCAL_WRITE).unwrap();
        let qp = pd.qp(QpType::Rc, &cq).build().unwrap();
        let mut channel = Connector::new().connect(address).unwrap();
        channel.connect(&qp, &[]).unwrap();
        // Long enough for the other end to sleep.
        std::thread::sleep(Duration::from_millis(200));
        mr.write_at(0, b"wake up");
        qp.send_imm(1, &mr, 0..7, 42).unwrap();
        cq.next(Duration::from_secs(10)).unwrap();
        channel.barrier().unwrap();
    });
    let device = open("verbs:bl0");
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(16).unwrap());
    let mr = pd.register(64, Access::LOCAL_WRITE).unwrap();
    let srq = pd.create_srq(8, 1).unwrap();
    let qp = pd.qp(QpType::Rc, &cq).srq(&srq).build().unwrap();
    srq.recv(7, &mr, 0..64).unwrap();
    let mut channel = listener.accept().unwrap();
    channel.connect(&qp, &[]).unwrap();
    let received = cq.next(Duration::from_secs(10)).unwrap();
    assert_eq!((received.wr_id, received.imm, received.byte_len), (7, Some(42), 7));
    assert_eq!(mr.to_vec(0, 7), b"wake up");
    channel.barrier().unwrap();
    client.join().unwrap();
}

#[test]
fn what_only_the_soft_nic_can_do_is_refused_with_a_reason() {
    let (device, qp) = pair(QpType::Rc);
    let refusals = [
        qp.set_window(1 << 20),
        qp.set_rate_control("dcqcn".parse().unwrap()),
        device.counters().map(drop),
        Device::named("verbs:bl0").unwrap().fec("32,1".parse().unwrap()).open().map(drop),
        Device::named("verbs:bl0").unwrap().lanes("2".parse().unwrap()).open().map(drop),
        Device::named("verbs:bl0").unwrap().link("loss=1%".parse().unwrap()).open().map(drop),
    ];
    for refusal in refusals {
        let text = refusal.unwrap_err().to_string();
        assert!(text.contains("needs Bowline's soft NIC: "), "{text}");
    }
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(16).unwrap());
    let error = pd.qp(QpType::Xp, &cq).build().unwrap_err().to_string();
    assert!(error.contains("XP"), "{error}");
    assert!(!qp.is_sealed().unwrap());
}

#[test]
fn a_device_that_is_not_there_is_named_with_those_that_are() {
    provide();
    let error = Device::open("verbs:mlx5_0").unwrap_err();
    assert!(matches!(error, Error::Device(_)));
    let text = error.to_string();
    assert!(text.contains("mlx5_0") && text.contains("bl0, bl1, bl2"), "{text}");
    let error = Device::open("verbs:bl0@192.0.2.1").unwrap_err().to_string();
    assert!(error.contains("192.0.2.1") && error.contains("127.72."), "{error}");
}
