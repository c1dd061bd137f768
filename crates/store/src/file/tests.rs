use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use super::*;
use crate::owned::Owned;
use crate::{Owner, Store, open};

const TTL: Duration = Duration::from_secs(60);

/// A directory of one test.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        let dir = std::env::temp_dir().join(format!("bowline-store-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        Dir(dir)
    }

    fn open(&self, job: &str) -> Box<dyn Store> {
        open(&format!("file://{}", self.0.display()), job).unwrap()
    }

    /// The store as another process sees it.
    fn open_as(&self, owner: Owner) -> impl Store + use<> {
        let job = Job::new("job").unwrap();
        Owned::new(FileBackend::new(self.0.clone(), &job), job, owner)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn key(text: &str) -> Key {
    Key::new(text).unwrap()
}

/// A process that does nothing, and the owner for its entries.
fn other_process() -> (Child, Owner) {
    let child = Command::new("sleep").arg("60").spawn().unwrap();
    let owner = Owner::of_process(child.id());
    (child, owner)
}

fn names(dir: &Path) -> Vec<String> {
    let mut all: Vec<String> = fs::read_dir(dir)
        .unwrap()
        .map(|f| f.unwrap().file_name().into_string().unwrap())
        .filter(|n| n != lock::LOCK_NAME)
        .collect();
    all.sort();
    all
}

#[test]
fn what_is_put_is_there_for_others_until_it_is_removed() {
    let dir = Dir::new("basic");
    let (mut a, mut b) = (dir.open("job"), dir.open("job"));
    assert_eq!(b.get(&key("qp/1")).unwrap(), None);
    a.put(&key("qp/1"), b"one", TTL).unwrap();
    a.put(&key("qp/2"), b"", TTL).unwrap();
    assert_eq!(b.get(&key("qp/1")).unwrap().unwrap(), b"one");
    assert_eq!(b.get(&key("qp/2")).unwrap().unwrap(), b"");
    a.put(&key("qp/1"), b"uno", TTL).unwrap();
    assert_eq!(b.get(&key("qp/1")).unwrap().unwrap(), b"uno");
    a.remove(&key("qp/1")).unwrap();
    a.remove(&key("qp/1")).unwrap();
    assert_eq!(b.get(&key("qp/1")).unwrap(), None);
    assert_eq!(dir.open("other").get(&key("qp/2")).unwrap(), None);
    assert_eq!(names(&dir.0.join("job")), ["qp+2"]);
}

#[test]
fn entries_expire_unless_refreshed_and_leave_nothing_behind() {
    let dir = Dir::new("expiry");
    let mut store = dir.open("job");
    let short = Duration::from_millis(200);
    store.put(&key("a"), b"1", short).unwrap();
    store.put(&key("b"), b"1", short).unwrap();
    std::thread::sleep(short / 2);
    store.put(&key("b"), b"1", Duration::from_secs(30)).unwrap();
    std::thread::sleep(short);
    assert_eq!(store.get(&key("a")).unwrap(), None);
    assert_eq!(store.get(&key("b")).unwrap().unwrap(), b"1");
    // Another job's first write sweeps; a job that is gone is removed entirely.
    dir.open("gone").put(&key("x"), b"1", Duration::ZERO).unwrap();
    fs::write(dir.0.join("job/stranger"), "0").unwrap();
    dir.open("next").put(&key("y"), b"1", TTL).unwrap();
    assert_eq!(names(&dir.0.join("job")), ["b", "stranger"]);
    assert!(!dir.0.join("gone").exists());
}

#[test]
fn everything_is_private_and_a_directory_that_is_not_is_refused() {
    let dir = Dir::new("private");
    let mut store = dir.open("job");
    store.put(&key("a"), b"1", TTL).unwrap();
    let mode = |p: &Path| fs::metadata(p).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&dir.0), 0o700);
    assert_eq!(mode(&dir.0.join("job")), 0o700);
    assert_eq!(mode(&dir.0.join("job/a")), 0o600);
    fs::set_permissions(dir.0.join("job"), fs::Permissions::from_mode(0o777)).unwrap();
    assert!(matches!(store.put(&key("a"), b"1", TTL), Err(StoreError::Refused { .. })));
    assert!(matches!(store.get(&key("a")), Err(StoreError::Refused { .. })));
    std::os::unix::fs::symlink("job", dir.0.join("link")).unwrap();
    assert!(matches!(dir.open("link").get(&key("a")), Err(StoreError::Refused { .. })));
}

#[test]
fn a_directory_that_is_removed_comes_back_with_the_next_entry() {
    let dir = Dir::new("removed");
    let mut store = dir.open("job");
    store.put(&key("a"), b"1", TTL).unwrap();
    fs::remove_dir_all(&dir.0).unwrap();
    assert_eq!(store.get(&key("a")).unwrap(), None);
    store.remove(&key("a")).unwrap();
    store.put(&key("a"), b"2", TTL).unwrap();
    assert_eq!(store.get(&key("a")).unwrap().unwrap(), b"2");
}

#[test]
fn a_key_of_another_live_process_is_taken() {
    let dir = Dir::new("taken");
    let (mut child, other) = other_process();
    let mut theirs = dir.open_as(other);
    let mut mine = dir.open("job");
    theirs.put(&key("qp/1"), b"theirs", TTL).unwrap();
    let error = mine.put(&key("qp/1"), b"mine", TTL).unwrap_err();
    assert!(matches!(error, StoreError::Taken { .. }), "{error}");
    let text = error.to_string();
    assert!(
        text.contains(&format!("process {}", child.id())) && text.contains("\"job\""),
        "{text}"
    );
    assert!(!error.is_transient());
    mine.remove(&key("qp/1")).unwrap();
    assert_eq!(mine.get(&key("qp/1")).unwrap().unwrap(), b"theirs", "not ours to remove");
    mine.put(&key("qp/1"), b"theirs", TTL).expect("the same value does no harm");

    theirs.put(&key("qp/2"), b"theirs", TTL).unwrap();
    theirs.put(&key("qp/3"), b"theirs", Duration::ZERO).unwrap();
    mine.put(&key("qp/3"), b"mine", TTL).expect("it has expired");
    child.kill().unwrap();
    child.wait().unwrap();
    mine.put(&key("qp/2"), b"mine", TTL).expect("its owner has ended");
    assert_eq!(mine.get(&key("qp/2")).unwrap().unwrap(), b"mine");
}

#[test]
fn what_is_no_entry_is_reported_and_can_be_replaced() {
    let dir = Dir::new("garbage");
    let mut store = dir.open("job");
    store.put(&key("a"), b"1", TTL).unwrap();
    let long = vec![b'7'; 1 << 20];
    for garbage in [&b""[..], b"x", b"99999999999999999999\nx", b"+0000000000000000001\n", &long] {
        fs::write(dir.0.join("job/a"), garbage).unwrap();
        assert!(matches!(store.get(&key("a")), Err(StoreError::Malformed { .. })));
    }
    store.put(&key("a"), b"2", TTL).unwrap();
    assert_eq!(store.get(&key("a")).unwrap().unwrap(), b"2");
    let large = vec![1; MAX_VALUE_BYTES];
    store.put(&key("a"), &large, TTL).unwrap();
    assert_eq!(store.get(&key("a")).unwrap().unwrap(), large);
    let error = store.put(&key("a"), &vec![1; MAX_VALUE_BYTES + 1], TTL).unwrap_err();
    assert!(matches!(error, StoreError::Invalid { .. }));
}

#[test]
fn a_place_that_cannot_be_written_to_says_so() {
    let error = open("file:///proc/nowhere", "job").unwrap().put(&key("a"), b"", TTL).unwrap_err();
    assert!(error.is_transient());
    let text = error.to_string();
    assert!(text.contains("file:///proc/nowhere") && text.contains("may write"), "{text}");
}

#[test]
fn a_lock_that_is_never_given_back_ends_in_an_error_within_bounds() {
    let dir = Dir::new("lock");
    let mut store = dir.open("job");
    store.put(&key("a"), b"1", TTL).unwrap();
    let _held = lock::acquire(&dir.0.join("job")).unwrap();
    let start = Instant::now();
    let error = store.put(&key("a"), b"2", TTL).unwrap_err();
    assert!(error.is_transient() && start.elapsed() < Duration::from_secs(3), "{error}");
    assert_eq!(store.get(&key("a")).unwrap().unwrap(), b"1", "reading needs no lock");
}

/// Threads with separate handles act like processes: the lock belongs to the open file. Two owners
/// race for each key, while a thread keeps removing the directory.
#[test]
fn many_writers_and_somebody_who_removes_the_directory() {
    let dir = Dir::new("race");
    let (mut child, other) = other_process();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..4_u8)
            .map(|n| {
                let mut store: Box<dyn Store> =
                    if n % 2 == 0 { dir.open("job") } else { Box::new(dir.open_as(other.clone())) };
                scope.spawn(move || {
                    let value = vec![n % 2; 3000];
                    for round in 0..200 {
                        let key = key(&format!("qp/{}", round % 10));
                        match store.put(&key, &value, TTL) {
                            Ok(()) | Err(StoreError::Taken { .. }) => {}
                            Err(error) => panic!("{error}"),
                        }
                        if let Some(found) = store.get(&key).unwrap() {
                            assert!(found == [0; 3000] || found == [1; 3000], "torn: {found:?}");
                        }
                        if round % 7 == 0 {
                            store.remove(&key).unwrap();
                        }
                    }
                })
            })
            .collect();
        let remover = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let _ = fs::remove_dir_all(dir.0.join("job"));
                std::thread::sleep(Duration::from_millis(3));
            }
        });
        let outcomes: Vec<_> = writers.into_iter().map(|w| w.join()).collect();
        stop.store(true, Ordering::Relaxed);
        remover.join().unwrap();
        for outcome in outcomes {
            outcome.unwrap();
        }
    });
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Exactly one of many contenders for a key gets it.
#[test]
fn a_race_for_a_key_has_one_winner() {
    let dir = Dir::new("winner");
    let mut others: Vec<(Child, Owner)> = (0..4).map(|_| other_process()).collect();
    for round in 0..20 {
        let key = key(&format!("qp/{round}"));
        let wins: Vec<bool> = std::thread::scope(|scope| {
            let runs: Vec<_> = others
                .iter()
                .map(|(child, owner)| {
                    let (mut store, value) = (dir.open_as(owner.clone()), child.id().to_string());
                    let key = &key;
                    scope.spawn(move || store.put(key, value.as_bytes(), TTL).is_ok())
                })
                .collect();
            runs.into_iter().map(|r| r.join().unwrap()).collect()
        });
        assert_eq!(wins.iter().filter(|won| **won).count(), 1, "{wins:?}");
    }
    for (child, _) in &mut others {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
