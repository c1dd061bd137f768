//! The channel beside the connection: the driver tells the server when it measures, and learns what
//! the server saw meanwhile.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bowline_bench_common::process_cpu_s;
use serde::{Deserialize, Serialize};

use crate::Result;

/// How long a driver waits for its server.
const PATIENCE: Duration = Duration::from_secs(20);

/// What one end did while the driver measured.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Window {
    /// Bytes of payload received, where this end knows.
    pub(crate) bytes: u64,
    pub(crate) seconds: f64,
    /// CPU time of the whole process, in user space and in the kernel.
    pub(crate) cpu_s: f64,
}

/// Where a window began.
pub(crate) struct Mark {
    at: Instant,
    bytes: u64,
    cpu_s: f64,
}

impl Mark {
    pub(crate) fn new(bytes: u64) -> Mark {
        Mark { at: Instant::now(), bytes, cpu_s: process_cpu_s() }
    }

    pub(crate) fn until(&self, bytes: u64) -> Window {
        Window {
            bytes: bytes - self.bytes,
            seconds: self.at.elapsed().as_secs_f64(),
            cpu_s: process_cpu_s() - self.cpu_s,
        }
    }
}

/// The server's end.
pub(crate) struct Server {
    stream: TcpStream,
    received: AtomicU64,
}

impl Server {
    /// Says that it is there, and waits for the driver.
    pub(crate) fn accept(at: SocketAddr) -> Result<Server> {
        let listener = TcpListener::bind(at)?;
        println!("ready");
        Ok(Server { stream: listener.accept()?.0, received: AtomicU64::new(0) })
    }

    /// Tells the driver that it may connect.
    pub(crate) fn listening(&self) -> Result<()> {
        Ok((&self.stream).write_all(b"listening\n")?)
    }

    /// Counts payload that has arrived.
    pub(crate) fn add(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Answers the driver until it is gone.
    pub(crate) fn attend(&self) -> Result<()> {
        let mut mark = Mark::new(0);
        for line in BufReader::new(&self.stream).lines() {
            let received = self.received.load(Ordering::Relaxed);
            match line?.as_str() {
                "begin" => mark = Mark::new(received),
                "end" => {
                    let window = serde_json::to_string(&mark.until(received))?;
                    (&self.stream).write_all(format!("{window}\n").as_bytes())?;
                }
                other => return Err(format!("the driver says {other:?}").into()),
            }
        }
        Ok(())
    }
}

/// The driver's end.
pub(crate) struct Driver {
    stream: BufReader<TcpStream>,
}

impl Driver {
    /// Waits until the server is there and listens for data.
    pub(crate) fn connect(at: SocketAddr) -> Result<Driver> {
        let start = Instant::now();
        let stream = loop {
            match TcpStream::connect(at) {
                Ok(stream) => break stream,
                Err(e) if start.elapsed() > PATIENCE => return Err(e.into()),
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        stream.set_nodelay(true)?;
        let mut driver = Driver { stream: BufReader::new(stream) };
        if driver.line()? != "listening" {
            return Err("the server does not listen: its message is above".into());
        }
        Ok(driver)
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }

    /// The server's window begins.
    pub(crate) fn begin(&mut self) -> Result<()> {
        Ok(self.stream.get_mut().write_all(b"begin\n")?)
    }

    /// It is over: what the server saw.
    pub(crate) fn end(&mut self) -> Result<Window> {
        self.stream.get_mut().write_all(b"end\n")?;
        let line = self.line()?;
        serde_json::from_str(&line).map_err(|_| "the server has ended early".into())
    }
}
