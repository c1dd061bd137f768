//! Memory regions: the same memory under the same key on every engine.

use bowline_nic::{Access, ControlError, MrKey, Region};

use super::{Engines, MirrorError, Pd, Place, pd};

/// How often to draw another key when an engine already uses it. Keys are random 32-bit numbers, so
/// a collision is very rare.
const MAX_KEYS_TRIED: usize = 8;

/// Registers memory on every engine or on none. `region` returns the memory once for each engine;
/// `None` if such memory cannot exist.
pub fn register<E: Engines>(
    engines: &E,
    pd: &Pd,
    region: impl Fn() -> Option<Region>,
    iova: u64,
    access: Access,
) -> Result<MrKey, MirrorError<E::Error>> {
    pd.users.hold(pd::WHAT)?;
    let key = (0..MAX_KEYS_TRIED)
        .find_map(|_| register_once(engines, pd, &region, iova, access).transpose())
        .unwrap_or(Err(ControlError::Busy { what: "every key drawn" }.into()));
    if key.is_err() {
        pd.users.release();
    }
    key
}

/// `None` if some engine already uses the key that the first one drew.
fn register_once<E: Engines>(
    engines: &E,
    pd: &Pd,
    region: &impl Fn() -> Option<Region>,
    iova: u64,
    access: Access,
) -> Result<Option<MrKey>, MirrorError<E::Error>> {
    let region = || {
        let why = "it reaches beyond the address space";
        region().ok_or(ControlError::Invalid { what: "memory", why })
    };
    let mut shared = None;
    let mut done = Vec::new();
    for at in engines.layout().places() {
        let memory = region()?;
        let pd = pd.id(at);
        let one = engines.with(at, |nic, _| match &shared {
            None => {
                let key = nic.register(pd, memory, iova, access)?;
                nic.share_key(key).map(Some)
            }
            Some(key) => nic.register_as(key, pd, memory, iova, access).map(|()| None),
        });
        let refusal = match one {
            Ok(Ok(first)) => {
                shared = shared.or(first);
                done.push(at);
                continue;
            }
            // It already uses the key.
            Ok(Err(ControlError::Busy { .. })) => None,
            Ok(Err(error)) => Some(MirrorError::Control(error)),
            Err(error) => Some(MirrorError::Engine(error)),
        };
        if let Some(key) = &shared {
            undo(engines, key.key(), &done);
        }
        return refusal.map_or(Ok(None), Err);
    }
    Ok(shared.map(|key| key.key()))
}

fn undo<E: Engines>(engines: &E, key: MrKey, places: &[Place]) {
    for at in places {
        // An engine that has ended has nothing to undo.
        let _ = engines.with(*at, |nic, _| nic.deregister(key));
    }
}

/// Changes the access rights of registered memory on every engine. The key stays.
pub fn set_access<E: Engines>(
    engines: &E,
    key: MrKey,
    access: Access,
) -> Result<(), MirrorError<E::Error>> {
    for at in engines.layout().places() {
        engines.with(at, |nic, _| nic.set_access(key, access)).map_err(MirrorError::Engine)??;
    }
    Ok(())
}

/// Deregisters memory on every engine. Tries all of them, and returns the first error.
pub fn deregister<E: Engines>(
    engines: &E,
    pd: &Pd,
    key: MrKey,
) -> Result<(), MirrorError<E::Error>> {
    let mut result = Ok(());
    for at in engines.layout().places() {
        let one = match engines.with(at, |nic, _| nic.deregister(key)) {
            Ok(done) => done.map_err(MirrorError::Control),
            Err(error) => Err(MirrorError::Engine(error)),
        };
        result = result.and(one);
    }
    if result.is_ok() {
        pd.users.release();
    }
    result
}
