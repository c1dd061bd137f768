//! Extended reliable connections: messages that name the shared receive queue that they are for.

use super::*;
use crate::queue::SharedSrq;

const OK: WcStatus = WcStatus::Success;
const DOMAIN: XrcdId = XrcdId(9);

/// A shared receive queue of an end's, with a completion queue of its own.
struct Named {
    end: usize,
    number: u32,
    id: SrqId,
    queue: SharedSrq,
    cq: CqId,
    pd: PdId,
}

impl Pair {
    fn xrc() -> Pair {
        Pair::new(Mtu::B1024, |init| {
            init.qp_type = QpType::Xrc;
            init.max_recv_wr = 0;
            init.xrcd = Some(DOMAIN);
        })
    }

    fn srq(&mut self, end: usize, domain: XrcdId, number: u32, pd: PdId) -> Named {
        let nic = &mut self.ends[end].nic;
        let (queue, cq) = (SharedSrq::new(64, 4), nic.create_cq(64).unwrap());
        let id = nic.adopt_xrc_srq(pd, &queue, XrcSrq { domain, number, cq }).unwrap();
        Named { end, number, id, queue, cq, pd }
    }

    /// Lets the first end try as often as the standard allows.
    fn patient(&mut self) {
        let drained = QpAttr { state: Some(QpState::Sqd), ..QpAttr::default() };
        let patient = QpAttr { retry_count: Some(7), ..QpAttr::default() };
        let again = QpAttr { state: Some(QpState::Rts), ..QpAttr::default() };
        let (now, end) = (self.now, &mut self.ends[0]);
        for attr in [drained, patient, again] {
            end.nic.modify_qp(now, end.qpn, &attr).unwrap();
        }
    }

    fn post_to(&mut self, srqn: u32, wr_id: u64, op: SendOp, sges: &[Sge]) {
        let end = &mut self.ends[0];
        let wr = SendWr { srqn, ..SendWr::new(wr_id, op, sges) };
        end.nic.post_send(self.now, end.qpn, &wr).unwrap();
    }

    fn completions_at(&mut self, srq: &Named) -> Vec<Completion> {
        let mut out = vec![Completion::default(); 64];
        let n = self.ends[srq.end].nic.poll_cq(srq.cq, &mut out).unwrap();
        out.truncate(n);
        out
    }
}

#[test]
fn messages_go_to_the_queue_that_they_name() {
    let mut p = Pair::xrc();
    let pd = p.ends[1].pd;
    let srqs = [p.srq(1, DOMAIN, 5, pd), p.srq(1, DOMAIN, 0xab_cdef, pd)];
    for (n, len) in [0_u32, 1, 1024, 1025, 5000].into_iter().enumerate() {
        let srq = &srqs[n % 2];
        let (at, place) = (n as u64, 10_000 * n as u64);
        srq.queue.post(&RecvWr::new(100 + at, &[p.ends[1].sge(place, 5000)])).unwrap();
        let bytes = p.fill(0, 0, len as usize);
        let sge = p.ends[0].sge(0, len);
        p.post_to(srq.number, at, SendOp::SendImm(7), &[sge]);
        let frames = p.take(0);
        for frame in &frames {
            assert_eq!(parse(frame).xrceth().unwrap().srqn, srq.number);
            assert_eq!(frame.opcode().service(), Some(bowline_wire::Service::Xrc));
        }
        p.deliver_all(&frames);
        p.exchange();
        assert_eq!(p.ends[0].statuses(), [(at, OK)]);
        let got = p.completions_at(srq);
        assert_eq!(got.len(), 1);
        assert_eq!((got[0].wr_id, got[0].byte_len, got[0].imm), (100 + at, len, Some(7)));
        assert_eq!(got[0].qpn, p.ends[1].qpn);
        assert_eq!(p.ends[1].buffer.to_vec(place as usize, len as usize), bytes);
        assert!(p.completions_at(&srqs[1 - n % 2]).is_empty());
        assert!(p.ends[1].completions().is_empty(), "the QP's own queue");
    }
}

#[test]
fn one_sided_operations_use_the_domain_of_the_queue() {
    let mut p = Pair::xrc();
    let srq = p.srq(1, DOMAIN, 5, p.ends[1].pd);
    let bytes = p.fill(0, 0, 3000);
    let (sge, remote) = (p.ends[0].sge(0, 3000), p.ends[1].remote(64));
    p.post_to(5, 1, SendOp::Write(remote), &[sge]);
    let back = p.ends[0].sge(100_000, 3000);
    p.post_to(5, 2, SendOp::Read(remote), &[back]);
    let word = p.ends[0].sge(200_000, 8);
    p.post_to(5, 3, SendOp::FetchAdd { remote: p.ends[1].remote(8), add: 5 }, &[word]);
    srq.queue.post(&RecvWr::new(50, &[])).unwrap();
    p.post_to(5, 4, SendOp::WriteImm(p.ends[1].remote(9000), 3), &[sge]);
    p.exchange();
    assert_eq!(p.ends[0].statuses(), [1, 2, 3, 4].map(|n| (n, OK)));
    assert_eq!(p.ends[1].buffer.to_vec(64, 3000), bytes);
    assert_eq!(p.ends[0].buffer.to_vec(100_000, 3000), bytes);
    assert_eq!(p.ends[1].buffer.to_vec(8, 8), 5_u64.to_ne_bytes());
    assert_eq!(p.ends[1].buffer.to_vec(9000, 3000), bytes);
    let got = p.completions_at(&srq);
    assert_eq!((got.len(), got[0].wr_id, got[0].byte_len), (1, 50, 3000));
    // A queue of another protection domain does not give access to this memory.
    let other = p.ends[1].nic.alloc_pd().unwrap();
    let elsewhere = p.srq(1, DOMAIN, 6, other);
    p.post_to(elsewhere.number, 5, SendOp::Write(remote), &[sge]);
    p.exchange();
    assert_eq!(p.ends[0].statuses(), [(5, WcStatus::RemAccessErr)]);
}

#[test]
fn whatever_is_lost_arrives_once_and_where_it_was_sent() {
    for every in 4..12 {
        let mut p = Pair::xrc();
        let pd = p.ends[1].pd;
        let srqs = [p.srq(1, DOMAIN, 1, pd), p.srq(1, DOMAIN, 2, pd)];
        p.patient();
        let bytes = p.fill(0, 0, 30_000);
        for n in 0..12_u64 {
            let srq = &srqs[n as usize % 2];
            let sge = p.ends[0].sge(2500 * n, 2500);
            if n % 3 == 2 {
                let back = p.ends[0].sge(100_000 + 2500 * n, 2500);
                p.post_to(srq.number, n, SendOp::Read(p.ends[1].remote(0)), &[back]);
            } else {
                let place = p.ends[1].sge(10_000 + 2500 * n, 2500);
                srq.queue.post(&RecvWr::new(n, &[place])).unwrap();
                p.post_to(srq.number, n, SendOp::Send, &[sge]);
            }
        }
        let mut seen = 0;
        for _ in 0..2000 {
            let frames: Vec<Frame> = (0..2).flat_map(|i| p.take(i)).collect();
            if frames.is_empty() && !p.fire_timer() {
                break;
            }
            for frame in &frames {
                seen += 1;
                if seen % every != 0 || seen > 150 {
                    p.deliver(frame);
                }
            }
        }
        let all: Vec<_> = (0..12).map(|n| (n, OK)).collect();
        assert_eq!(p.ends[0].statuses(), all, "one in {every} lost");
        for (i, srq) in srqs.iter().enumerate() {
            let wr_ids: Vec<u64> = p.completions_at(srq).iter().map(|c| c.wr_id).collect();
            let sends = (0..12_u64).filter(|n| n % 3 != 2 && *n as usize % 2 == i);
            assert_eq!(wr_ids, sends.collect::<Vec<_>>(), "one in {every} lost");
        }
        for n in (0..12).filter(|n| n % 3 != 2) {
            let arrived = p.ends[1].buffer.to_vec(10_000 + 2500 * n, 2500);
            assert_eq!(arrived, bytes[2500 * n..][..2500]);
        }
    }
}

#[test]
fn a_queue_without_receives_is_waited_for() {
    let mut p = Pair::xrc();
    let pd = p.ends[1].pd;
    let (empty, other) = (p.srq(1, DOMAIN, 1, pd), p.srq(1, DOMAIN, 2, pd));
    other.queue.post(&RecvWr::new(9, &[])).unwrap();
    p.post_to(1, 1, SendOp::Send, &[]);
    p.post_to(2, 2, SendOp::Send, &[]);
    p.exchange();
    assert!(p.completions_at(&other).is_empty(), "it comes after");
    empty.queue.post(&RecvWr::new(8, &[])).unwrap();
    p.run_out();
    assert_eq!(p.ends[0].statuses(), [(1, OK), (2, OK)]);
    assert_eq!(p.completions_at(&empty)[0].wr_id, 8);
    assert_eq!(p.completions_at(&other)[0].wr_id, 9);
}

#[test]
fn who_names_no_queue_of_the_domain_is_refused() {
    for number in [0, 4, 6] {
        let mut p = Pair::xrc();
        let pd = p.ends[1].pd;
        let (own, foreign) = (p.srq(1, DOMAIN, 5, pd), p.srq(1, XrcdId(10), 6, pd));
        own.queue.post(&RecvWr::new(1, &[])).unwrap();
        foreign.queue.post(&RecvWr::new(1, &[])).unwrap();
        p.post_to(number, 1, SendOp::Send, &[]);
        p.exchange();
        assert_eq!(p.ends[0].statuses(), [(1, WcStatus::RemInvReqErr)]);
        assert_eq!(p.ends[1].state(), QpState::Err);
        assert_eq!(p.ends[1].nic.poll_event(), Some(Event::QpRequestError(p.ends[1].qpn)));
        assert_eq!((own.queue.len(), foreign.queue.len()), (1, 1));
    }
}

#[test]
fn a_message_cannot_change_its_queue() {
    let mut p = Pair::xrc();
    let pd = p.ends[1].pd;
    let (first, second) = (p.srq(1, DOMAIN, 1, pd), p.srq(1, DOMAIN, 2, pd));
    for srq in [&first, &second] {
        srq.queue.post(&RecvWr::new(7, &[p.ends[1].sge(0, 4096)])).unwrap();
    }
    let sge = p.ends[0].sge(0, 3000);
    p.post_to(1, 1, SendOp::Send, &[sge]);
    let frames = p.take(0);
    p.deliver(&frames[0]);
    p.deliver(&forge(&frames[1], |bytes| bytes[15] = 2));
    p.exchange();
    assert_eq!(p.ends[0].statuses(), [(1, WcStatus::RemInvReqErr)]);
    assert!(p.completions_at(&second).is_empty());
    assert_eq!(second.queue.len(), 1);
}

#[test]
fn a_queue_that_goes_away_takes_its_receive_along() {
    let mut p = Pair::xrc();
    let srq = p.srq(1, DOMAIN, 1, p.ends[1].pd);
    srq.queue.post(&RecvWr::new(7, &[p.ends[1].sge(0, 4096)])).unwrap();
    let sge = p.ends[0].sge(0, 3000);
    p.post_to(1, 1, SendOp::Send, &[sge]);
    let frames = p.take(0);
    p.deliver(&frames[0]);
    let nic = &mut p.ends[1].nic;
    assert!(nic.destroy_cq(srq.cq).is_err(), "the queue completes there");
    nic.destroy_srq(srq.id).unwrap();
    nic.destroy_cq(srq.cq).unwrap();
    // The next owner of the completion queue's number is unaffected.
    let next = nic.create_cq(4).unwrap();
    assert_eq!(next, srq.cq);
    p.deliver_all(&frames[1..]);
    p.exchange();
    assert_eq!(p.ends[0].statuses(), [(1, WcStatus::RemInvReqErr)]);
    assert!(p.completions_at(&srq).is_empty());
    assert!(p.ends[1].completions().is_empty());
}

#[test]
fn a_flushed_message_is_reported_where_it_would_have_completed() {
    let mut p = Pair::xrc();
    let srq = p.srq(1, DOMAIN, 1, p.ends[1].pd);
    srq.queue.post(&RecvWr::new(7, &[p.ends[1].sge(0, 4096)])).unwrap();
    let sge = p.ends[0].sge(0, 3000);
    p.post_to(1, 1, SendOp::Send, &[sge]);
    let frames = p.take(0);
    p.deliver(&frames[0]);
    let attr = QpAttr { state: Some(QpState::Err), ..QpAttr::default() };
    let (now, end) = (p.now, &mut p.ends[1]);
    end.nic.modify_qp(now, end.qpn, &attr).unwrap();
    let got = p.completions_at(&srq);
    assert_eq!((got[0].wr_id, got[0].status), (7, WcStatus::WrFlushErr));
}

#[test]
fn answers_read_the_memory_of_the_queue_that_was_asked() {
    let mut p = Pair::xrc();
    let end = &mut p.ends[1];
    let other = end.nic.alloc_pd().unwrap();
    let buffer = Buffer::new(8192);
    buffer.write_at(0, &[0x77; 8192]);
    let key = end.nic.register(other, Region::owned(buffer), 0, ALL).unwrap();
    let pd = end.pd;
    let (here, there) = (p.srq(1, DOMAIN, 1, pd), p.srq(1, DOMAIN, 2, other));
    assert_ne!(here.pd, there.pd);
    p.ends[1].buffer.write_at(0, &[0x55; 4096]);
    // Back to back: the second comes while the response to the first is still due.
    let sges = [p.ends[0].sge(0, 4096), p.ends[0].sge(4096, 4096)];
    p.post_to(1, 1, SendOp::Read(p.ends[1].remote(0)), &sges[..1]);
    p.post_to(2, 2, SendOp::Read(Remote { addr: 0, rkey: key.0 }), &sges[1..]);
    p.run_out();
    assert_eq!(p.ends[0].statuses(), [(1, OK), (2, OK)]);
    assert_eq!(p.ends[0].buffer.to_vec(0, 4096), [0x55; 4096]);
    assert_eq!(p.ends[0].buffer.to_vec(4096, 4096), [0x77; 4096]);
}

#[test]
fn numbers_name_one_queue_each() {
    let mut p = Pair::xrc();
    let (pd, cq) = (p.ends[1].pd, p.ends[1].cq);
    let nic = &mut p.ends[1].nic;
    let shared = SharedSrq::new(4, 1);
    let mut adopt = |number| nic.adopt_xrc_srq(pd, &shared, XrcSrq { domain: DOMAIN, number, cq });
    assert!(matches!(adopt(0), Err(ControlError::Invalid { .. })));
    assert!(matches!(adopt(1 << 24), Err(ControlError::Invalid { .. })));
    let first = adopt(3).unwrap();
    assert!(matches!(adopt(3), Err(ControlError::Busy { .. })));
    nic.destroy_srq(first).unwrap();
    let again = nic.adopt_xrc_srq(pd, &shared, XrcSrq { domain: DOMAIN, number: 3, cq });
    let init = QpInit { srq: again.ok(), ..QpInit::new(QpType::Xrc, pd, cq) };
    assert!(nic.create_qp(&init).is_err(), "an XRC QP takes from none of its own");
}

#[test]
fn an_end_that_only_receives_has_no_send_queue() {
    let mut p = Pair::xrc();
    let end = &mut p.ends[1];
    let init = QpInit {
        max_send_wr: 0,
        max_recv_wr: 0,
        xrcd: Some(DOMAIN),
        ..QpInit::new(QpType::Xrc, end.pd, end.cq)
    };
    let qpn = end.nic.create_qp(&init).unwrap();
    end.nic.connect(p.now, qpn, &connect_to(addr(0), Qpn::new(77))).unwrap();
    let refused = end.nic.post_send(p.now, qpn, &SendWr::new(1, SendOp::Send, &[]));
    assert_eq!(refused, Err(PostError::Full));
    end.nic.destroy_qp(qpn).unwrap();
    let init = QpInit { xrcd: None, ..init };
    assert!(p.ends[1].nic.create_qp(&init).is_err());
}
