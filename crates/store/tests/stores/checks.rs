//! The checks that every kind of store has to pass.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bowline_store::{Key, MAX_VALUE_BYTES, Store, StoreError, open};

use crate::process::Other;

const TTL: Duration = Duration::from_secs(60);
/// Longer than any store takes to notice that a second has passed: etcd's leases last two at least.
const PATIENCE: Duration = Duration::from_secs(15);

/// A store, with its own job.
pub(crate) struct Place {
    pub(crate) url: String,
    pub(crate) job: String,
    dir: Option<PathBuf>,
}

impl Place {
    /// A directory store.
    pub(crate) fn dir() -> Place {
        let job = fresh_job();
        let dir = std::env::temp_dir().join(format!("bowline-stores-{job}"));
        Place { url: format!("file://{}", dir.display()), job, dir: Some(dir) }
    }

    /// The server that the environment names.
    pub(crate) fn server(variable: &str) -> Place {
        let url = std::env::var(variable)
            .unwrap_or_else(|_| panic!("{variable} names no server: use lab/store/run"));
        Place { url, job: fresh_job(), dir: None }
    }

    pub(crate) fn open(&self) -> Box<dyn Store> {
        open(&self.url, &self.job).unwrap()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(dir) = &self.dir {
            let _ = std::fs::remove_dir_all(dir);
        }
    }
}

/// A name that no other test uses, and no earlier run on the same server did.
fn fresh_job() -> String {
    use std::hash::{BuildHasher, RandomState};
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("test-{}-{count}-{:x}", std::process::id(), RandomState::new().hash_one(0) as u32)
}

pub(crate) fn key(text: &str) -> Key {
    Key::new(text).unwrap()
}

pub(crate) fn what_is_put_can_be_got_replaced_and_removed(place: &Place) {
    let (mut store, mut reader) = (place.open(), place.open());
    let key = key("qp/fe80::1/000123");
    assert_eq!(store.get(&key).unwrap(), None);
    store.remove(&key).unwrap();
    let every_byte: Vec<u8> = (0..=255).collect();
    let large = every_byte.repeat(MAX_VALUE_BYTES / 256);
    for value in [&b"one"[..], b"", b"\r\n$-1\r\n", &every_byte, &large, b"last"] {
        store.put(&key, value, TTL).unwrap();
        assert_eq!(reader.get(&key).unwrap().unwrap(), value);
        store.put(&key, value, TTL).unwrap();
    }
    let too_large = vec![0; MAX_VALUE_BYTES + 1];
    assert!(matches!(store.put(&key, &too_large, TTL), Err(StoreError::Invalid { .. })));
    assert_eq!(reader.get(&key).unwrap().unwrap(), b"last");
    store.remove(&key).unwrap();
    assert_eq!(reader.get(&key).unwrap(), None);
}

pub(crate) fn jobs_do_not_see_each_other(place: &Place) {
    let mut store = place.open();
    let mut other = open(&place.url, &format!("{}-other", place.job)).unwrap();
    store.put(&key("a"), b"one", TTL).unwrap();
    assert_eq!(other.get(&key("a")).unwrap(), None);
    other.put(&key("a"), b"two", TTL).unwrap();
    other.remove(&key("a")).unwrap();
    assert_eq!(store.get(&key("a")).unwrap().unwrap(), b"one");
}

pub(crate) fn entries_expire_unless_refreshed(place: &Place) {
    let mut store = place.open();
    let second = Duration::from_secs(1);
    store.put(&key("left"), b"1", second).unwrap();
    store.put(&key("kept"), b"1", second).unwrap();
    store.put(&key("long"), b"1", Duration::MAX).unwrap();
    assert!(store.get(&key("left")).unwrap().is_some());
    let start = Instant::now();
    while store.get(&key("left")).unwrap().is_some() {
        assert!(start.elapsed() < PATIENCE, "it does not expire");
        store.put(&key("kept"), b"1", second).unwrap();
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(start.elapsed() > second / 2, "it expired after {:?}", start.elapsed());
    assert!(store.get(&key("kept")).unwrap().is_some(), "it was refreshed");
    assert!(store.get(&key("long")).unwrap().is_some());
}

pub(crate) fn another_process_sees_what_is_put(place: &Place) {
    let mut store = place.open();
    let mut other = Other::start(place);
    store.put(&key("mine"), b"one", TTL).unwrap();
    assert_eq!(other.ask("get mine"), "value one");
    assert_eq!(other.ask("put theirs two"), "ok");
    assert_eq!(store.get(&key("theirs")).unwrap().unwrap(), b"two");
    assert_eq!(other.ask("remove mine"), "ok");
    assert_eq!(store.get(&key("mine")).unwrap().unwrap(), b"one", "not theirs to remove");
    assert_eq!(other.ask("get none"), "none");
}

pub(crate) fn a_key_of_another_live_process_is_taken_until_it_ends(place: &Place) {
    let mut store = place.open();
    let mut other = Other::start(place);
    assert_eq!(other.ask("put qp/1 theirs"), "ok");
    let error = store.put(&key("qp/1"), b"mine", TTL).unwrap_err();
    let StoreError::Taken { holder, job, .. } = &error else { panic!("{error}") };
    assert_eq!((holder.pid, job), (other.pid(), &place.job));
    assert!(error.to_string().contains("two jobs seem to have this name"), "{error}");
    assert_eq!(store.get(&key("qp/1")).unwrap().unwrap(), b"theirs");
    store.put(&key("qp/1"), b"theirs", TTL).expect("the same does no harm");
    assert_eq!(other.ask("put qp/2 theirs"), "ok");
    drop(other);
    store.put(&key("qp/2"), b"mine", TTL).expect("nobody holds it any more");
    assert_eq!(store.get(&key("qp/2")).unwrap().unwrap(), b"mine");
}

pub(crate) fn a_race_for_a_key_has_one_winner(place: &Place) {
    let mut others: Vec<Other> = (0..4).map(|_| Other::start(place)).collect();
    for round in 0..20 {
        for (n, other) in others.iter_mut().enumerate() {
            other.send(&format!("put race/{round} from-{n}"));
        }
        let answers: Vec<String> = others.iter_mut().map(Other::receive).collect();
        let winners = answers.iter().filter(|answer| *answer == "ok").count();
        let losers = answers.iter().filter(|answer| *answer == "taken").count();
        assert_eq!((winners, losers), (1, 3), "{answers:?}");
        let winner = answers.iter().position(|answer| answer == "ok").unwrap();
        let held = place.open().get(&key(&format!("race/{round}"))).unwrap().unwrap();
        assert_eq!(held, format!("from-{winner}").into_bytes());
    }
}
