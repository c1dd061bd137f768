//! Tests against misbehaving servers; `tests/stores/main.rs` has the real one.

use std::time::Duration;

use crate::testing::Behaviour::{Says, SaysLast, Stalls};
use crate::testing::{
    TTL, are_unavailable, errors_of, key, server, store_at, survives_mutilations,
};
use crate::{StoreError, open};

#[test]
fn what_makes_no_sense_is_said_so() {
    let long_line = [&b"+"[..], &[b'x'; 10_000], b"\r\n"].concat();
    for garbage in [
        &b"HTTP/1.1 400 Bad Request\r\n\r\n"[..],
        b"\r\n",
        b"\n",
        b"$abc\r\n",
        b"$99999999999\r\n",
        b"$3\r\nabcdef",
        b"*1\r\n$1\r\na\r\n",
        b":x\r\n",
        b"+\xff\xfe\r\n",
        b"\xc3\xa9\r\n",
        b"+PONG\r\n",
        &long_line,
    ] {
        let errors = errors_of(store_at("redis", vec![Says(garbage.to_vec())]));
        assert_eq!(errors.len(), 3, "{garbage:?}");
        for error in errors {
            assert!(matches!(error, StoreError::Malformed { .. }), "{garbage:?}: {error}");
            assert!(error.to_string().contains("is it a Redis server?"), "{error}");
        }
    }
}

#[test]
fn mutilated_answers_do_no_harm() {
    survives_mutilations("redis", b"$44\r\nbowline-store 1 boot,pid:[1] 7 8 host prog\nv\r\n");
}

#[test]
fn a_server_that_stalls_or_hangs_up_is_unavailable() {
    let behaviours = vec![
        Stalls(vec![]),
        Stalls(b"$10\r\nabc".to_vec()),
        SaysLast(vec![]),
        SaysLast(b"$10\r\nabc".to_vec()),
        SaysLast(b"$10".to_vec()),
    ];
    are_unavailable("redis", behaviours);
}

#[test]
fn nobody_there_is_said_at_once_with_what_to_do() {
    let (port, _) = server(vec![SaysLast(vec![])]);
    // A port that was free a moment ago, next to one that is taken, is most likely free.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    assert_ne!(port, free);
    let mut store = open(&format!("redis://:secret@127.0.0.1:{free}/2"), "job").unwrap();
    let text = store.get(&key("a")).unwrap_err().to_string();
    assert!(text.contains(&format!("redis://127.0.0.1:{free}/2")), "{text}");
    assert!(text.contains("start redis-server") && !text.contains("secret"), "{text}");
}

#[test]
fn what_the_server_refuses_is_told_in_its_words() {
    let says = |text: &str| vec![Says(text.as_bytes().to_vec())];
    for (text, transient, hint) in [
        ("-NOAUTH Authentication required.\r\n", false, "redis://:PASSWORD@HOST"),
        ("-READONLY You can't write.\r\n", false, "name the primary"),
        ("-LOADING Redis is loading the dataset in memory\r\n", true, "loading the dataset"),
        ("-ERR unknown command\r\n", false, "unknown command"),
    ] {
        for error in errors_of(store_at("redis", says(text))) {
            assert_eq!(error.is_transient(), transient, "{error}");
            assert!(error.to_string().contains(hint), "{error}");
        }
    }
}

#[test]
fn a_login_that_fails_is_refused() {
    let (port, hears) = server(vec![Says(b"-WRONGPASS invalid password\r\n".to_vec())]);
    let mut store = open(&format!("redis://me:secret@127.0.0.1:{port}"), "job").unwrap();
    let error = store.put(&key("a"), b"1", TTL).unwrap_err();
    assert!(matches!(&error, StoreError::Refused { why, .. } if why.contains("WRONGPASS")));
    let heard = hears.recv_timeout(Duration::from_secs(5)).unwrap();
    assert_eq!(heard, b"*3\r\n$4\r\nAUTH\r\n$2\r\nme\r\n$6\r\nsecret\r\n");
}

#[test]
fn a_connection_that_was_closed_meanwhile_is_made_again() {
    let none = b"$-1\r\n".to_vec();
    let (port, hears) = server(vec![SaysLast(none.clone()), SaysLast(none.clone()), Says(none)]);
    let mut store = open(&format!("redis://127.0.0.1:{port}"), "job").unwrap();
    for _ in 0..4 {
        assert_eq!(store.get(&key("qp/1")).unwrap(), None);
    }
    let heard = hears.recv_timeout(Duration::from_secs(5)).unwrap();
    assert_eq!(heard, b"*2\r\n$3\r\nGET\r\n$16\r\nbowline/job/qp/1\r\n");
}
