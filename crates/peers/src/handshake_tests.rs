use super::*;

fn identities() -> (Identity, Identity) {
    (Identity::generate().unwrap(), Identity::generate().unwrap())
}

/// Runs a handshake; `meddle` may change each message in transit.
fn run(
    codes: Option<(&Code, &Code)>,
    mut meddle: impl FnMut(usize, &mut Vec<u8>),
) -> Result<(Session, Session), PeerError> {
    let (a, b) = identities();
    let (ours, theirs) = codes.unzip();
    let mut count = 0;
    let mut carry = |mut message: Vec<u8>| {
        meddle(count, &mut message);
        count += 1;
        assert!(message.len() <= MAX_MESSAGE);
        message
    };
    let (mut left, first) = Handshake::connect(&a, ours)?;
    let (mut right, reply) = Handshake::accept(&b, theirs, &carry(first))?;
    let mut message = carry(reply);
    loop {
        match left.handle(&message)? {
            Progress::Reply(reply) => match right.handle(&carry(reply))? {
                Progress::Reply(reply) => message = carry(reply),
                Progress::Check(_) => panic!("the accepting end shows its key first"),
            },
            Progress::Check(key) => {
                assert_eq!(key, b.public());
                let (last, left) = left.proceed()?;
                let Progress::Check(key) = right.handle(&carry(last.unwrap()))? else { panic!() };
                assert_eq!(key, a.public());
                let (none, right) = right.proceed()?;
                assert_eq!(none, None);
                return Ok((left, right));
            }
        }
    }
}

#[test]
fn both_ends_get_the_same_keys_and_know_each_other() {
    let code = Code::generate().unwrap();
    for codes in [None, Some((&code, &code))] {
        let (left, right) = run(codes, |_, _| {}).unwrap();
        assert_eq!(left.secret(), right.secret());
        assert!(left.is_initiator() && !right.is_initiator());
        let sealed = left.seal(0, b"hello").unwrap();
        assert_eq!(right.open(0, &sealed).unwrap(), b"hello");
        assert!(!sealed.windows(5).any(|w| w == b"hello"));
        let sealed = right.seal(7, b"").unwrap();
        assert_eq!(left.open(7, &sealed).unwrap(), b"");
    }
    let (one, other) = (run(None, |_, _| {}).unwrap(), run(None, |_, _| {}).unwrap());
    assert_ne!(one.0.secret(), other.0.secret());
}

#[test]
fn a_message_opens_once_in_its_place_and_direction() {
    let (left, right) = run(None, |_, _| {}).unwrap();
    let sealed = left.seal(3, b"payload").unwrap();
    assert!(right.open(3, &sealed).is_ok());
    // Replayed as the next, reflected, truncated, and with each bit flipped.
    assert!(right.open(4, &sealed).is_err());
    assert!(left.open(3, &sealed).is_err());
    for len in 0..sealed.len() {
        assert!(right.open(3, &sealed[..len]).is_err());
    }
    for bit in 0..sealed.len() * 8 {
        let mut changed = sealed.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        assert!(right.open(3, &changed).is_err(), "bit {bit}");
    }
}

#[test]
fn every_changed_bit_of_the_handshake_ends_it() {
    let code = Code::generate().unwrap();
    for (codes, messages) in [(None, 3), (Some((&code, &code)), 5)] {
        for target in 0..messages {
            let mut len = 0;
            run(codes, |index, message| {
                if index == target {
                    len = message.len();
                }
            })
            .unwrap();
            // Each bit of a short message and a sample of a long one: each try is a handshake.
            for bit in (0..len * 8).step_by(if target == 0 { 5 } else { 13 }) {
                let outcome = run(codes, |index, message| {
                    if index == target {
                        message[bit / 8] ^= 1 << (bit % 8);
                    }
                });
                // The ends of two runs that disagree on anything share no keys.
                if let Ok((left, right)) = outcome {
                    assert_ne!(left.secret(), right.secret(), "message {target}, bit {bit}");
                    let sealed = left.seal(0, b"x").unwrap();
                    assert!(right.open(0, &sealed).is_err());
                }
            }
        }
    }
}

#[test]
fn a_wrong_code_is_told_from_a_damaged_handshake() {
    let (one, other) = (Code::generate().unwrap(), Code::generate().unwrap());
    if one != other {
        let error = run(Some((&one, &other)), |_, _| {}).unwrap_err();
        assert!(matches!(error, PeerError::WrongCode), "{error}");
    }
}

#[test]
fn neither_mode_answers_for_the_other() {
    let (a, b) = identities();
    let code = Code::generate().unwrap();
    let (_, by_key) = Handshake::connect(&a, None).unwrap();
    assert!(Handshake::accept(&b, Some(&code), &by_key).is_err());
    let (_, by_code) = Handshake::connect(&a, Some(&code)).unwrap();
    assert!(Handshake::accept(&b, None, &by_code).is_err());
    for first in [&[][..], &[0], &[1], &[2], &[3; 50], &[1; 500]] {
        assert!(Handshake::accept(&b, None, first).is_err());
    }
}

#[test]
fn a_handshake_that_failed_stays_failed() {
    let (a, b) = identities();
    let (mut left, first) = Handshake::connect(&a, None).unwrap();
    let (_, reply) = Handshake::accept(&b, None, &first).unwrap();
    assert!(left.proceed().is_err());
    assert!(left.handle(&reply).is_err());
}
