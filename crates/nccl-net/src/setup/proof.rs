//! Authentication: only peers that have the key of the handle may connect.
//!
//! The accepting end starts with a nonce. The other end answers with a nonce of its own and a keyed
//! hash of both, and gets such a hash back. So each end knows that the other has the key, which is
//! never sent, and an eavesdropper cannot reuse what it saw for another connection.
//!
//! ```text
//! challenge  "BLNC", nonce (32)
//! answer     traffic class (1), nonce (32), hash (32)
//! welcome    hash (32)
//! ```

use std::time::Duration;

use blake3::Hash;
use bowline::{Channel, SealRole};
use bowline_device::random_bytes;

use super::handle::{Handle, KEY_BYTES};
use crate::status::Trouble;

const MAGIC: &[u8; 4] = b"BLNC";
const NONCE: usize = 32;
const HASH: usize = blake3::OUT_LEN;
/// Time limit for a peer that has not proved that it has the key.
const STRANGER: Duration = Duration::from_secs(5);

/// A keyed hash over the data that one end proves.
fn prove(key: &[u8; KEY_BYTES], role: &[u8; 1], pieces: [&[u8]; 3]) -> Hash {
    let mut hasher = blake3::Hasher::new_keyed(key);
    hasher.update(role);
    // Each piece has a fixed length, so the concatenation is unambiguous.
    for piece in pieces {
        hasher.update(piece);
    }
    hasher.finalize()
}

/// The connecting end.
pub(super) fn connect(
    channel: &mut Channel,
    handle: &Handle,
    traffic_class: u8,
) -> Result<(), Trouble> {
    let challenge = channel.recv()?;
    let Some(theirs) = challenge.strip_prefix(MAGIC).filter(|nonce| nonce.len() == NONCE) else {
        return Err(Trouble::remote("what listens at the peer's address is not the plug-in"));
    };
    let ours: [u8; NONCE] = nonce()?;
    let class = [traffic_class];
    let hash = prove(&handle.key, b"c", [theirs, &ours, &class]);
    channel.send(&[&class[..], &ours, hash.as_bytes()].concat())?;
    let welcome = channel.recv()?;
    check(&welcome, prove(&handle.key, b"a", [&ours, theirs, &class]))?;
    seal(channel, handle, SealRole::Initiator)
}

/// The accepting end. Returns the traffic class that the other end asks for.
pub(super) fn accept(
    channel: &mut Channel,
    handle: &Handle,
    timeout: Duration,
) -> Result<u8, Trouble> {
    channel.set_timeout(STRANGER.min(timeout));
    let ours: [u8; NONCE] = nonce()?;
    channel.send(&[&MAGIC[..], &ours].concat())?;
    let answer = channel.recv()?;
    if answer.len() != 1 + NONCE + HASH {
        return Err(Trouble::remote("an unknown peer connected without a proof"));
    }
    let (class, rest) = answer.split_at(1);
    let (theirs, hash) = rest.split_at(NONCE);
    check(hash, prove(&handle.key, b"c", [&ours, theirs, class]))?;
    channel.set_timeout(timeout);
    channel.send(prove(&handle.key, b"a", [theirs, &ours, class]).as_bytes())?;
    seal(channel, handle, SealRole::Responder)?;
    Ok(class[0])
}

/// Compares in constant time.
fn check(hash: &[u8], due: Hash) -> Result<(), Trouble> {
    match <[u8; HASH]>::try_from(hash) {
        Ok(hash) if Hash::from_bytes(hash) == due => Ok(()),
        _ => Err(Trouble::remote("an unknown peer connected without the handle's key")),
    }
}

/// Seals all queue pairs that are connected from now on, if the handle asks for it.
fn seal(channel: &mut Channel, handle: &Handle, role: SealRole) -> Result<(), Trouble> {
    if !handle.seal {
        return Ok(());
    }
    let secret = blake3::derive_key("bowline nccl-net 1 sealing", &handle.key);
    Ok(channel.seal(&secret, role)?)
}

fn nonce() -> Result<[u8; NONCE], Trouble> {
    random_bytes().map_err(|e| Trouble::system(format!("cannot read randomness: {e}")))
}

#[cfg(test)]
mod tests {
    use std::thread;

    use bowline::{CommTransport, Connector, Listener};

    use super::*;

    /// The results at both ends, for their keys and settings.
    fn meet(keys: [u8; 2], seal: [bool; 2]) -> [Result<(), Trouble>; 2] {
        let listener = Listener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let handle = move |end: usize| Handle {
            addr,
            transport: CommTransport::Rc,
            seal: seal[end],
            key: [keys[end]; KEY_BYTES],
        };
        let timeout = Duration::from_secs(5);
        let other = thread::spawn(move || {
            let mut channel = listener.accept_timeout(timeout).unwrap();
            let class = accept(&mut channel, &handle(1), timeout)?;
            assert_eq!(class, 9);
            Ok(())
        });
        let mut channel = Connector::new().with_timeout(timeout).connect(addr).unwrap();
        let ours = connect(&mut channel, &handle(0), 9);
        drop(channel);
        [ours, other.join().unwrap()]
    }

    #[test]
    fn ends_with_the_same_key_let_each_other_in() {
        assert_eq!(meet([7, 7], [false, false]), [Ok(()), Ok(())]);
        assert_eq!(meet([7, 7], [true, true]), [Ok(()), Ok(())]);
    }

    #[test]
    fn ends_with_other_keys_do_not() {
        let [ours, theirs] = meet([7, 8], [false, false]);
        assert!(ours.is_err());
        assert!(theirs.unwrap_err().message.contains("unknown peer"));
    }

    #[test]
    fn an_end_that_echoes_is_not_let_in() {
        let listener = Listener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let key = [7; KEY_BYTES];
        let handle = Handle { addr, transport: CommTransport::Rc, seal: false, key };
        let echo = thread::spawn(move || {
            let mut channel = listener.accept_timeout(Duration::from_secs(5)).unwrap();
            channel.send(&[&MAGIC[..], &[1; NONCE]].concat()).unwrap();
            let answer = channel.recv().unwrap();
            channel.send(&answer[1 + NONCE..]).unwrap();
        });
        let mut channel = Connector::new().connect(addr).unwrap();
        assert!(connect(&mut channel, &handle, 0).is_err());
        echo.join().unwrap();
    }
}
