//! Misbehaving servers, for the tests of several modules.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use crate::{Key, Store, StoreError, open};

pub(crate) const TTL: Duration = Duration::from_secs(60);

/// What a server does with a connection once it has received something.
#[derive(Clone, Debug)]
pub(crate) enum Behaviour {
    /// Sends this as the answer to each request, and continues.
    Says(Vec<u8>),
    /// Sends this and closes.
    SaysLast(Vec<u8>),
    /// Sends this and then nothing for ever.
    Stalls(Vec<u8>),
}

/// Starts a server that treats successive connections like this, all further ones like the last;
/// returns its port and what it receives. It ends with the test.
pub(crate) fn server(behaviours: Vec<Behaviour>) -> (u16, Receiver<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (heard, hears) = channel();
    std::thread::spawn(move || {
        let mut held = Vec::new();
        for (i, connection) in listener.incoming().map_while(Result::ok).enumerate() {
            let behaviour = &behaviours[i.min(behaviours.len() - 1)];
            if let Some(stream) = serve(connection, behaviour, &heard) {
                held.push(stream);
            }
        }
    });
    (port, hears)
}

fn serve(
    mut stream: TcpStream,
    behaviour: &Behaviour,
    heard: &std::sync::mpsc::Sender<Vec<u8>>,
) -> Option<TcpStream> {
    let mut buffer = vec![0; 1 << 16];
    loop {
        let len = stream.read(&mut buffer).unwrap_or(0);
        if len == 0 {
            return None;
        }
        let _ = heard.send(buffer[..len].to_vec());
        match behaviour {
            Behaviour::Says(bytes) => stream.write_all(bytes).ok()?,
            Behaviour::SaysLast(bytes) => {
                let _ = stream.write_all(bytes);
                return None;
            }
            Behaviour::Stalls(bytes) => {
                let _ = stream.write_all(bytes);
                return Some(stream);
            }
        }
    }
}

pub(crate) fn key(text: &str) -> Key {
    Key::new(text).unwrap()
}

/// A store on a server that behaves like this.
pub(crate) fn store_at(scheme: &str, behaviours: Vec<Behaviour>) -> Box<dyn Store> {
    let (port, _) = server(behaviours);
    open(&format!("{scheme}://127.0.0.1:{port}"), "job").unwrap()
}

/// Tries every operation on a store, and returns the errors: none takes long or panics.
pub(crate) fn errors_of(mut store: Box<dyn Store>) -> Vec<StoreError> {
    let start = Instant::now();
    let outcomes = [
        store.get(&key("a")).map(drop),
        store.put(&key("a"), b"value", TTL),
        store.remove(&key("a")),
    ];
    // A second per request: a put makes two.
    assert!(start.elapsed() < Duration::from_secs(6), "{:?}", start.elapsed());
    outcomes.into_iter().filter_map(Result::err).collect()
}

/// Requests an entry while the server sends corrupted forms of `answer`, by seed: whatever comes
/// back, the call returns soon.
pub(crate) fn survives_mutilations(scheme: &str, answer: &[u8]) {
    let answers = (1..=300).map(|seed| Behaviour::SaysLast(mutilate(answer, seed)));
    let (port, _) = server(answers.collect());
    for seed in 1..=300 {
        let start = Instant::now();
        let mut store = open(&format!("{scheme}://127.0.0.1:{port}"), "job").unwrap();
        let _ = store.get(&key("a"));
        assert!(start.elapsed() < Duration::from_secs(2), "seed {seed}: {:?}", start.elapsed());
    }
}

fn mutilate(answer: &[u8], seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut draw = |bound: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % bound as u64) as usize
    };
    let mut bytes = answer.to_vec();
    for _ in 0..=draw(3) {
        let at = draw(bytes.len());
        match draw(3) {
            0 => bytes[at] = draw(256) as u8,
            1 => bytes.insert(at, draw(256) as u8),
            _ => drop(bytes.drain(at..(at + draw(8)).min(bytes.len() - 1).max(at))),
        }
    }
    bytes
}

/// Checks, concurrently, that servers with these behaviours are unavailable.
pub(crate) fn are_unavailable(scheme: &str, behaviours: Vec<Behaviour>) {
    std::thread::scope(|scope| {
        for behaviour in behaviours {
            scope.spawn(move || {
                let errors = errors_of(store_at(scheme, vec![behaviour.clone()]));
                assert_eq!(errors.len(), 3);
                assert!(errors.iter().all(StoreError::is_transient), "{behaviour:?}: {errors:?}");
            });
        }
    });
}
