use super::*;

struct Scratch(PathBuf);

impl Scratch {
    fn new() -> (Scratch, TrustFiles) {
        use std::hash::{BuildHasher, RandomState};
        let name = format!("bowline-peers-{:x}", RandomState::new().hash_one(0));
        let path = std::env::temp_dir().join(name);
        let files = TrustFiles::at(path.join("config/bowline"));
        (Scratch(path), files)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn key() -> PublicKey {
    Identity::generate().unwrap().public()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn the_key_is_made_once_and_for_the_user_alone() {
    let (_scratch, files) = Scratch::new();
    let identity = files.identity().unwrap();
    assert_eq!(mode(&files.key_path()), 0o600);
    assert_eq!(mode(files.key_path().parent().unwrap()), 0o700);
    assert_eq!(files.identity().unwrap().public(), identity.public());
    assert!(matches!(files.new_identity(false), Err(PeerError::KeyExists { .. })));
    assert_ne!(files.new_identity(true).unwrap().public(), identity.public());
}

#[test]
fn a_key_that_others_can_read_is_refused() {
    let (_scratch, files) = Scratch::new();
    files.identity().unwrap();
    fs::set_permissions(files.key_path(), fs::Permissions::from_mode(0o640)).unwrap();
    let error = files.identity().unwrap_err().to_string();
    assert!(error.contains("mode 640") && error.contains("chmod 600"), "{error}");
    fs::set_permissions(files.key_path(), fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(files.key_path(), "nonsense").unwrap();
    assert!(files.identity().unwrap_err().to_string().contains("no key of Bowline's"));
}

#[test]
fn hosts_are_known_unknown_or_changed() {
    let (_scratch, files) = Scratch::new();
    let (first, second) = (key(), key());
    assert_eq!(files.check_host("a:1", &first).unwrap(), Verdict::Unknown);
    assert!(files.trust_host("a:1", first).unwrap());
    assert!(!files.trust_host("a:1", first).unwrap());
    assert_eq!(files.check_host("a:1", &first).unwrap(), Verdict::Known);
    assert_eq!(files.check_host("a:1", &second).unwrap(), Verdict::Changed(first));
    assert_eq!(files.check_host("a:2", &second).unwrap(), Verdict::Unknown);
    assert_eq!(mode(&files.known_path()), 0o600);
    assert_eq!(files.forget("a").unwrap(), 1);
    assert_eq!(files.check_host("a:1", &second).unwrap(), Verdict::Unknown);
}

#[test]
fn peers_come_and_go_and_comments_stay() {
    let (_scratch, files) = Scratch::new();
    let (ada, bob) = (key(), key());
    files.trust_peer(ada, "ada of accounting").unwrap();
    let path = files.authorized_path();
    let text = format!("# who may send\n\n{}{bob}", fs::read_to_string(&path).unwrap());
    fs::write(&path, text).unwrap();
    assert_eq!(files.check_peer(&ada).unwrap().unwrap().name, "ada of accounting");
    assert_eq!(files.check_peer(&bob).unwrap().unwrap().name, "");
    assert_eq!(files.check_peer(&key()).unwrap(), None);
    assert_eq!(files.forget(&ada.to_string()).unwrap(), 1);
    assert_eq!(files.check_peer(&ada).unwrap(), None);
    assert!(files.check_peer(&bob).unwrap().is_some());
    assert!(fs::read_to_string(&path).unwrap().starts_with("# who may send\n\n"));
    // The last line had no newline; the next one must not run into it.
    files.trust_peer(ada, "ada").unwrap();
    assert_eq!(files.authorized().unwrap().len(), 2);
}

#[test]
fn a_line_that_cannot_be_read_is_an_error_and_not_a_gap() {
    let (_scratch, files) = Scratch::new();
    files.trust_host("a:1", key()).unwrap();
    let mut text = fs::read_to_string(files.known_path()).unwrap();
    text.insert_str(0, "b:1 bowline1:AAAA\n");
    fs::write(files.known_path(), text).unwrap();
    let error = files.check_host("a:1", &key()).unwrap_err().to_string();
    assert!(error.contains("known_hosts, line 1"), "{error}");
}
