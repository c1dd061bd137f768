//! What somebody says who wants to be let in, and what users' files of trusted keys say.

use std::sync::OnceLock;

use bowline_peers::{Code, Handshake, Identity, Progress, parse_lines};

fn identity() -> &'static Identity {
    static IDENTITY: OnceLock<Identity> = OnceLock::new();
    IDENTITY.get_or_init(|| Identity::generate().expect("the system gives random numbers"))
}

/// Plays messages against both ends of a handshake, lines of trust files, discovery, patterns.
/// Nobody is let in: whoever made the input holds no key.
pub(crate) fn run(input: &[u8]) {
    let Some((kind, rest)) = input.split_first() else { return };
    match kind {
        0 => accept(rest, None),
        1 => accept(rest, Some(&"acorn-comet-tulip".parse().expect("it is a code"))),
        2 => connect(rest),
        3 => parse_lines(&String::from_utf8_lossy(rest)),
        4 => bowline_cli::fuzzing::discovery(rest),
        5 => bowline_cli::fuzzing::pattern(rest),
        _ => {
            let _ = String::from_utf8_lossy(rest).parse::<Code>();
        }
    }
}

fn accept(input: &[u8], code: Option<&Code>) {
    let (first, rest) = input.split_at(input.len().min(34));
    let Ok((mut handshake, reply)) = Handshake::accept(identity(), code, first) else { return };
    assert!(reply.len() <= bowline_peers::MAX_MESSAGE);
    for message in rest.chunks(64) {
        match handshake.handle(message) {
            Ok(Progress::Reply(reply)) => assert!(reply.len() <= bowline_peers::MAX_MESSAGE),
            Ok(Progress::Check(_)) => panic!("somebody without a key has proven one"),
            Err(_) => return,
        }
    }
}

fn connect(input: &[u8]) {
    let Ok((mut handshake, _)) = Handshake::connect(identity(), None) else { return };
    for message in input.chunks(96) {
        match handshake.handle(message) {
            Ok(Progress::Reply(_)) => {}
            Ok(Progress::Check(_)) => panic!("somebody without a key has proven one"),
            Err(_) => return,
        }
    }
}
