//! What servers of a store answer.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use bowline_store::{Key, open};

/// A server that answers everything with the input.
struct Server {
    port: u16,
    answer: &'static Mutex<Vec<u8>>,
}

fn server() -> &'static Server {
    static ANSWER: Mutex<Vec<u8>> = Mutex::new(Vec::new());
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(|| {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback can be bound");
        let port = listener.local_addr().expect("it is bound").port();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let bytes = ANSWER.lock().unwrap_or_else(PoisonError::into_inner).clone();
                serve(stream, &bytes);
            }
        });
        Server { port, answer: &ANSWER }
    })
}

/// Hears a request, answers and hangs up: nobody waits for more.
fn serve(mut stream: TcpStream, answer: &[u8]) {
    let _ = stream.set_read_timeout(Some(Duration::from_secs(1)));
    let _ = stream.read(&mut [0; 4096]);
    let _ = stream.write_all(answer);
}

/// Asks stores whose server answers with the input.
pub(crate) fn run(input: &[u8]) {
    let Some((kind, answer)) = input.split_first() else { return };
    // Inputs are played one after the other, also by tests that run side by side.
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let server = server();
    *server.answer.lock().unwrap_or_else(PoisonError::into_inner) = answer.to_vec();
    let scheme = if kind & 1 == 0 { "redis" } else { "etcd" };
    let url = format!("{scheme}://127.0.0.1:{}", server.port);
    let mut store = open(&url, "job").expect("the URL is right");
    let key = Key::new("qp/1").expect("it is a key");
    match kind >> 1 & 3 {
        0 => drop(store.put(&key, b"value", Duration::from_secs(60))),
        1 => drop(store.remove(&key)),
        _ => {
            if let Ok(Some(value)) = store.get(&key) {
                assert!(value.len() <= bowline_store::MAX_VALUE_BYTES);
            }
        }
    }
}
