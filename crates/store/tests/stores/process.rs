//! Another process that uses the same store, controlled line by line: this program again.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use bowline_store::{Store, StoreError, open};

use crate::checks::{Place, key};

const VARIABLE: &str = "BOWLINE_STORE_TEST_OTHER";
/// Prefix of answers: the test harness writes to the same stream.
const PROMPT: &str = "answer: ";

/// Another process, killed when dropped.
pub(crate) struct Other {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Other {
    pub(crate) fn start(place: &Place) -> Other {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["other_process", "--exact", "--nocapture"])
            .env(VARIABLE, format!("{} {}", place.job, place.url))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let orders = child.stdin.take().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        Other { child, orders, answers }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn ask(&mut self, order: &str) -> String {
        self.send(order);
        self.receive()
    }

    pub(crate) fn send(&mut self, order: &str) {
        writeln!(self.orders, "{order}").unwrap();
    }

    pub(crate) fn receive(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.answers.read_line(&mut line).unwrap(), 0, "it has ended");
            // The harness does not end its own line before a test's first output.
            if let Some((_, answer)) = line.trim_end().split_once(PROMPT) {
                return answer.to_owned();
            }
        }
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The other process' side: executes commands until there are no more.
pub(crate) fn obey_if_asked() {
    let Ok(place) = std::env::var(VARIABLE) else {
        return;
    };
    let (job, url) = place.split_once(' ').unwrap();
    let mut store = open(url, job).unwrap();
    for order in std::io::stdin().lines().map_while(Result::ok) {
        println!("{PROMPT}{}", obey(&mut *store, &order));
    }
}

fn obey(store: &mut dyn Store, order: &str) -> String {
    let mut words = order.splitn(3, ' ');
    let (verb, name) = (words.next().unwrap(), key(words.next().unwrap()));
    let value = words.next().unwrap_or_default();
    let outcome = match verb {
        "put" => store.put(&name, value.as_bytes(), Duration::from_secs(60)),
        "remove" => store.remove(&name),
        _ => match store.get(&name) {
            Ok(Some(value)) => return format!("value {}", String::from_utf8(value).unwrap()),
            Ok(None) => return "none".to_owned(),
            Err(error) => Err(error),
        },
    };
    match outcome {
        Ok(()) => "ok".to_owned(),
        Err(StoreError::Taken { .. }) => "taken".to_owned(),
        Err(error) => format!("error {error}"),
    }
}
