//! Tests against misbehaving servers; `tests/stores/main.rs` has the real one.

use std::time::Duration;

use crate::testing::Behaviour::{self, Says, SaysLast, Stalls};
use crate::testing::{
    TTL, are_unavailable, errors_of, key, server, store_at, survives_mutilations,
};
use crate::{StoreError, open};

fn answer(status: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

fn says(status: &str, body: &str) -> Vec<Behaviour> {
    vec![Says(answer(status, body))]
}

#[test]
fn what_makes_no_sense_is_said_so() {
    let many_headers = format!("HTTP/1.1 200 OK\r\n{}\r\n", "A: b\r\n".repeat(100)).into_bytes();
    let long_header = format!("HTTP/1.1 200 OK\r\nA: {}\r\n\r\n", "b".repeat(10_000)).into_bytes();
    let deep = answer("200 OK", &"[".repeat(100_000));
    for garbage in [
        &b"+PONG\r\n"[..],
        b"HTTP/1.1\r\n",
        b"HTTP/1.1 1000 x\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nnonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffff\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{}}\r\n",
        &answer("200 OK", "nonsense"),
        &answer("200 OK", "{}"),
        &answer("200 OK", "[]"),
        &answer("200 OK", "7"),
        &answer("200 OK", r#"{"header":{},"kvs":[{"value":"!"}]}"#),
        &many_headers,
        &long_header,
        &deep,
    ] {
        let errors = errors_of(store_at("etcd", vec![Says(garbage.to_vec())]));
        assert_eq!(errors.len(), 3, "{}", garbage.escape_ascii());
        for error in errors {
            assert!(matches!(error, StoreError::Malformed { .. }), "{error}");
            assert!(error.to_string().contains("is it an etcd server"), "{error}");
        }
    }
}

#[test]
fn mutilated_answers_do_no_harm() {
    let body =
        r#"{"header":{"revision":"7"},"kvs":[{"key":"YQ==","value":"Ym93bGluZQ=="}],"count":"1"}"#;
    survives_mutilations("etcd", &answer("200 OK", body));
    let chunked = format!(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n",
        body.len()
    );
    survives_mutilations("etcd", chunked.as_bytes());
}

#[test]
fn a_server_that_stalls_or_hangs_up_is_unavailable() {
    let behaviours = vec![
        Stalls(vec![]),
        Stalls(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n{".to_vec()),
        SaysLast(vec![]),
        SaysLast(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n{".to_vec()),
        SaysLast(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{".to_vec()),
    ];
    are_unavailable("etcd", behaviours);
}

#[test]
fn what_the_server_refuses_is_told_in_its_words() {
    for (status, body, transient, hint) in [
        ("400 Bad Request", r#"{"message":"etcdserver: user name is empty"}"#, false, "user name"),
        ("503 Service Unavailable", r#"{"message":"etcdserver: no leader"}"#, true, "no leader"),
        ("404 Not Found", "404 page not found", false, "HTTP status 404"),
    ] {
        for error in errors_of(store_at("etcd", says(status, body))) {
            assert_eq!(error.is_transient(), transient, "{error}");
            assert!(error.to_string().contains(hint), "{error}");
        }
    }
}

#[test]
fn an_answer_in_chunks_is_put_together_and_a_closed_connection_made_again() {
    let body = r#"{"header":{},"count":"0"}"#;
    let (start, rest) = body.split_at(10);
    let chunked = format!(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n\
         {:x};x=y\r\n{start}\r\n{:X}\r\n{rest}\r\n0\r\n\r\n",
        start.len(),
        rest.len()
    )
    .into_bytes();
    let closing =
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 13\r\n\r\n{\"header\":{}}";
    let (port, hears) =
        server(vec![SaysLast(chunked), SaysLast(closing.to_vec()), Says(answer("200 OK", body))]);
    let mut store = open(&format!("etcd://127.0.0.1:{port}"), "job").unwrap();
    for _ in 0..4 {
        assert_eq!(store.get(&key("qp/1")).unwrap(), None);
    }
    let heard = String::from_utf8(hears.recv_timeout(Duration::from_secs(5)).unwrap()).unwrap();
    assert!(heard.starts_with("POST /v3/kv/range HTTP/1.1\r\n"), "{heard}");
    assert!(heard.contains(&format!("Host: 127.0.0.1:{port}\r\n")), "{heard}");
    assert!(heard.ends_with(r#"{"key":"Ym93bGluZS9qb2IvcXAvMQ=="}"#), "{heard}");
}

#[test]
fn a_lease_that_is_lost_is_asked_for_again_once() {
    let lost = r#"{"message":"etcdserver: requested lease not found"}"#;
    let granted = r#"{"header":{},"ID":"7"}"#;
    // Each on a connection of its own: what is there, a lease, a success; then what is there, a
    // failure, a lease, a failure.
    let behaviours = [
        ("200 OK", r#"{"header":{}}"#),
        ("200 OK", granted),
        ("200 OK", r#"{"header":{},"succeeded":true}"#),
        ("200 OK", r#"{"header":{}}"#),
        ("404 Not Found", lost),
        ("200 OK", granted),
        ("404 Not Found", lost),
    ];
    let behaviours = behaviours.map(|(status, body)| SaysLast(answer(status, body)));
    let mut store = store_at("etcd", behaviours.to_vec());
    store.put(&key("a"), b"1", TTL).unwrap();
    let error = store.put(&key("a"), b"1", TTL).unwrap_err();
    assert!(error.to_string().contains("lease not found"), "{error}");
}
