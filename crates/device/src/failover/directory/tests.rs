//! Tests orders against a store that fails on demand.

use std::io;
use std::sync::{Arc, Mutex};

use bowline_wire::Qpn;

use super::*;

#[derive(Default)]
struct State {
    entries: HashMap<String, Vec<u8>>,
    is_down: bool,
    /// Keys that another process has taken.
    taken: Vec<String>,
    calls: usize,
}

#[derive(Clone, Default)]
struct FakeStore(Arc<Mutex<State>>);

impl FakeStore {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// Counts a call, and fails it while the store is down.
    fn call(&self) -> Result<std::sync::MutexGuard<'_, State>, StoreError> {
        let mut state = self.state();
        state.calls += 1;
        if state.is_down {
            return Err(StoreError::Unavailable {
                store: "fake://".into(),
                doing: "asking",
                source: io::ErrorKind::ConnectionRefused.into(),
                hint: "start it",
            });
        }
        Ok(state)
    }
}

impl Store for FakeStore {
    fn put(&mut self, key: &Key, value: &[u8], _ttl: Duration) -> Result<(), StoreError> {
        let mut state = self.call()?;
        if state.taken.contains(&key.to_string()) {
            let why = "it is taken".into();
            return Err(StoreError::Refused { store: "fake://".into(), why });
        }
        state.entries.insert(key.to_string(), value.to_vec());
        Ok(())
    }

    fn get(&mut self, key: &Key) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.call()?.entries.get(key.as_str()).cloned())
    }

    fn remove(&mut self, key: &Key) -> Result<(), StoreError> {
        self.call()?.entries.remove(key.as_str());
        Ok(())
    }
}

struct Desk {
    store: FakeStore,
    directory: Directory,
    inbox: Arc<EventChannel<u64>>,
    said: Arc<Mutex<Vec<String>>>,
}

fn desk() -> Desk {
    let store = FakeStore::default();
    let inbox = Arc::new(EventChannel::new(64).unwrap());
    let said: Arc<Mutex<Vec<String>>> = Arc::default();
    let sink = Arc::clone(&said);
    let log = Log::new(move |_, message| sink.lock().unwrap().push(message.to_owned()));
    let directory = Directory::start(Box::new(store.clone()), Arc::clone(&inbox), log).unwrap();
    Desk { store, directory, inbox, said }
}

fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

const WHO: Life = Life { qpn: Qpn::new(7), life: 1 };

impl Desk {
    /// The next entries found.
    fn next(&self) -> Vec<(Life, Vec<u8>)> {
        let token = self.inbox.wait(Some(Duration::from_secs(10))).unwrap();
        assert_eq!(token, Some(Directory::FOUND), "something is found");
        self.directory.found()
    }

    fn until(&self, what: &str, done: impl Fn(&State) -> bool) {
        let start = Instant::now();
        while !done(&self.store.state()) {
            assert!(start.elapsed() < Duration::from_secs(10), "{what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn what_is_not_there_yet_is_asked_for_again() {
    let desk = desk();
    desk.directory.want(WHO, key("peer"));
    desk.until("it is asked for more than once", |state| state.calls > 3);
    desk.store.state().entries.insert("peer".into(), b"theirs".to_vec());
    assert_eq!(desk.next(), [(WHO, b"theirs".to_vec())]);
    // An entry of an earlier process with the same number is replaced by the right one.
    desk.store.state().entries.insert("peer".into(), b"newer".to_vec());
    assert_eq!(desk.next(), [(WHO, b"newer".to_vec())]);
}

/// For example, the key of memory that the peer has registered again.
#[test]
fn what_is_watched_may_change_long_after_it_was_found() {
    let desk = desk();
    let once = Life { qpn: Qpn::new(8), life: 2 };
    desk.store.state().entries.insert("peer".into(), b"theirs".to_vec());
    desk.directory.want(once, key("peer"));
    assert_eq!(desk.next(), [(once, b"theirs".to_vec())]);
    desk.directory.watch(WHO, key("peer"));
    assert_eq!(desk.next(), [(WHO, b"theirs".to_vec())]);
    std::thread::sleep(LOOK_AGAIN.iter().sum::<Duration>() + WATCH / 2);
    desk.store.state().entries.remove("peer");
    std::thread::sleep(WATCH);
    desk.store.state().entries.insert("peer".into(), b"newer".to_vec());
    assert_eq!(desk.next(), [(WHO, b"newer".to_vec())], "and who has looked enough is not told");
    desk.directory.forget(WHO);
    desk.directory.sync();
    let calls = desk.store.state().calls;
    std::thread::sleep(WATCH * 2);
    assert_eq!(desk.store.state().calls, calls, "nobody wants anything");
}

#[test]
fn a_store_that_is_down_delays_and_says_so_once() {
    let desk = desk();
    desk.store.state().is_down = true;
    desk.directory.put(WHO, key("ours"), b"entry".to_vec());
    desk.directory.want(WHO, key("peer"));
    desk.until("it is tried again", |state| state.calls > 2);
    {
        let mut state = desk.store.state();
        state.is_down = false;
        state.entries.insert("peer".into(), b"theirs".to_vec());
    }
    assert_eq!(desk.next(), [(WHO, b"theirs".to_vec())]);
    desk.until("our entry is there", |state| state.entries.contains_key("ours"));
    desk.directory.sync();
    let said = desk.said.lock().unwrap().clone();
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(said[0].contains("start it") && said[1].contains("answers again"), "{said:?}");
}

#[test]
fn a_key_that_cannot_be_put_does_not_hold_up_the_others() {
    let desk = desk();
    desk.store.state().taken.push("taken".into());
    desk.store.state().entries.insert("peer".into(), b"theirs".to_vec());
    let other = Life { qpn: Qpn::new(8), life: 2 };
    desk.directory.put(WHO, key("taken"), b"entry".to_vec());
    desk.directory.put(other, key("free"), b"entry".to_vec());
    desk.directory.want(WHO, key("peer"));
    desk.directory.want(other, key("peer"));
    desk.until("the other entry is there", |state| state.entries.contains_key("free"));
    // A queue pair whose entry is not in the store cannot be found by its peer, and must not find
    // the peer of the job that took its name.
    assert_eq!(desk.next(), [(other, b"theirs".to_vec())]);
    desk.directory.sync();
    let said = desk.said.lock().unwrap().clone();
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].contains("taken") && said[0].contains("QP 0x7 has no backup"), "{said:?}");
}

#[test]
fn a_store_that_was_emptied_is_told_again() {
    let desk = desk();
    desk.directory.put(WHO, key("a"), b"one".to_vec());
    desk.directory.put(WHO, key("b"), b"two".to_vec());
    desk.directory.sync();
    desk.store.state().entries.clear();
    desk.until("both are there again", |state| state.entries.len() == 2);
    desk.directory.sync();
    let said = desk.said.lock().unwrap().clone();
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].contains("lost"), "{said:?}");
}

#[test]
fn a_store_that_was_down_gets_everything_anew() {
    let desk = desk();
    desk.directory.put(WHO, key("a"), b"one".to_vec());
    desk.directory.sync();
    let calls = {
        let mut state = desk.store.state();
        state.is_down = true;
        state.entries.clear();
        state.calls
    };
    desk.until("it is missed", |state| state.calls > calls);
    desk.store.state().is_down = false;
    desk.until("the entry is there again", |state| state.entries.len() == 1);
    desk.directory.sync();
    let said = desk.said.lock().unwrap().clone();
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(said[0].contains("start it") && said[1].contains("answers again"), "{said:?}");
}

#[test]
fn at_the_end_nothing_is_left() {
    let desk = desk();
    desk.directory.put(WHO, key("a"), b"entry".to_vec());
    desk.directory.put(WHO, key("b"), b"entry".to_vec());
    desk.directory.remove(key("a"));
    desk.directory.sync();
    assert_eq!(desk.store.state().entries.len(), 1);
    desk.directory.shutdown();
    assert_eq!(desk.store.state().entries.len(), 0);
    // Nobody is left to carry it out, and the call does not wait long for it.
    desk.directory.put(WHO, key("c"), b"entry".to_vec());
    desk.directory.sync();
}
