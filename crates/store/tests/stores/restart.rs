//! A store's server that dies, stalls and restarts.

use std::ffi::OsString;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bowline_store::{Store, StoreError, open};

use crate::checks::key;

const TTL: Duration = Duration::from_secs(60);
const PATIENCE: Duration = Duration::from_secs(20);

/// A server on ports of its own, killed when dropped.
pub(crate) struct Server {
    url: String,
    command: Vec<OsString>,
    dir: PathBuf,
    child: Option<Child>,
}

impl Server {
    pub(crate) fn redis() -> Server {
        let (port, dir) = (free_port(), fresh_dir("redis"));
        let port_text = port.to_string();
        let args = ["--bind", "127.0.0.1", "--port", &port_text, "--save", ""];
        Server::new(format!("redis://127.0.0.1:{port}"), "redis-server", &args, "--dir", dir)
    }

    pub(crate) fn etcd() -> Server {
        let (port, dir) = (free_port(), fresh_dir("etcd"));
        let clients = format!("http://127.0.0.1:{port}");
        let peers = format!("http://127.0.0.1:{}", free_port());
        let cluster = format!("lab={peers}");
        let args = [
            ["--name", "lab"],
            ["--listen-client-urls", &clients],
            ["--advertise-client-urls", &clients],
            ["--listen-peer-urls", &peers],
            ["--initial-advertise-peer-urls", &peers],
            ["--initial-cluster", &cluster],
        ];
        let url = format!("etcd://127.0.0.1:{port}");
        Server::new(url, "etcd", args.as_flattened(), "--data-dir", dir)
    }

    fn new(url: String, program: &str, args: &[&str], dir_option: &str, dir: PathBuf) -> Server {
        let mut command: Vec<OsString> = vec![program.into()];
        command.extend(args.iter().map(OsString::from));
        command.extend([dir_option.into(), dir.clone().into_os_string()]);
        let mut server = Server { url, command, dir, child: None };
        server.start();
        server
    }

    fn start(&mut self) {
        let child = Command::new(&self.command[0])
            .args(&self.command[1..])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        self.child = Some(child.unwrap_or_else(|e| panic!("{:?}: {e}", self.command[0])));
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Stops it, and returns when each of its threads stands still. `kill` returns before: a
    /// thread that runs on another core may still answer a request.
    fn stop(&self) {
        self.signal("-STOP");
        let start = Instant::now();
        while !self.is_stopped() {
            assert!(start.elapsed() < PATIENCE, "{:?} does not stop", self.command[0]);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn resume(&self) {
        self.signal("-CONT");
    }

    fn is_stopped(&self) -> bool {
        let pid = self.child.as_ref().unwrap().id();
        std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().all(|task| {
            let stat = std::fs::read_to_string(task.unwrap().path().join("stat"));
            // The state follows the name, which is in parentheses and may hold any character. A
            // thread that has just ended has no state.
            stat.is_ok_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, at)| at.starts_with('T')))
        })
    }

    fn signal(&self, signal: &str) {
        let pid = self.child.as_ref().unwrap().id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn fresh_dir(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("bowline-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

/// Puts until that succeeds, with the same store.
fn put_when_up(store: &mut dyn Store, value: &[u8]) {
    let start = Instant::now();
    while let Err(error) = store.put(&key("a"), value, TTL) {
        assert!(error.is_transient() && start.elapsed() < PATIENCE, "{error}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Everything fails soon, and the error names the store and what to do.
fn is_down(store: &mut dyn Store, url: &str) {
    let start = Instant::now();
    let outcomes = [
        store.put(&key("a"), b"lost", TTL),
        store.get(&key("a")).map(drop),
        store.remove(&key("a")),
    ];
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    for outcome in outcomes {
        let error = outcome.unwrap_err();
        assert!(matches!(error, StoreError::Unavailable { .. }), "{error}");
        assert!(error.to_string().contains(url) && error.to_string().contains("start"), "{error}");
    }
}

pub(crate) fn is_survived(mut server: Server) {
    let url = server.url.clone();
    let mut store = open(&url, "restart").unwrap();
    put_when_up(&mut *store, b"one");
    assert_eq!(store.get(&key("a")).unwrap().unwrap(), b"one");

    server.kill();
    is_down(&mut *store, &url);
    server.start();
    put_when_up(&mut *store, b"two");
    assert_eq!(store.get(&key("a")).unwrap().unwrap(), b"two");

    server.stop();
    is_down(&mut *store, &url);
    server.resume();
    put_when_up(&mut *store, b"three");
    assert_eq!(store.get(&key("a")).unwrap().unwrap(), b"three");

    // Between two calls, so that the first of them finds its connection dead.
    server.kill();
    server.start();
    put_when_up(&mut *store, b"four");
    assert_eq!(store.get(&key("a")).unwrap().unwrap(), b"four");
}
