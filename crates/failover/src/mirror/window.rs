//! Memory windows: the same window under the same keys on every lane, so that a queue pair of any
//! lane can bind it.

use std::cell::Cell;

use bowline_nic::{ControlError, MrKey};

use super::{Engines, MirrorError, Pd, end_everywhere, everywhere, pd};

/// How often to draw another key when an engine already uses it.
const MAX_KEYS_TRIED: usize = 8;

/// Allocates a memory window on every engine or on none. Devices with a backup do not support
/// windows, because a window's binding cannot move with its queue pair.
pub fn alloc_window<E: Engines>(engines: &E, pd: &Pd) -> Result<MrKey, MirrorError<E::Error>> {
    if engines.layout().backed {
        let why = "a device with a backup has none: what they are bound to cannot move";
        return Err(ControlError::Invalid { what: "memory window", why }.into());
    }
    pd.users.hold(pd::WHAT)?;
    let mut result = Err(ControlError::Busy { what: "every key drawn" }.into());
    for _ in 0..MAX_KEYS_TRIED {
        result = alloc_once(engines, pd);
        if !matches!(result, Err(MirrorError::Control(ControlError::Busy { .. }))) {
            break;
        }
    }
    if result.is_err() {
        pd.users.release();
    }
    result
}

fn alloc_once<E: Engines>(engines: &E, pd: &Pd) -> Result<MrKey, MirrorError<E::Error>> {
    let drawn = Cell::new(None);
    let make = |nic: &mut bowline_nic::Nic, index| match drawn.get() {
        None => {
            let key = nic.alloc_window(pd.id_at(index))?;
            drawn.set(Some(key));
            Ok(key)
        }
        Some(key) => nic.alloc_window_as(key, pd.id_at(index)).map(|()| key),
    };
    let keys = everywhere(engines, make, |nic, key| _ = nic.dealloc_window(*key))?;
    Ok(keys[0])
}

/// Frees a memory window, bound or not.
pub fn dealloc_window<E: Engines>(
    engines: &E,
    pd: &Pd,
    key: MrKey,
) -> Result<(), MirrorError<E::Error>> {
    let keys = vec![key; engines.layout().places().count()];
    end_everywhere(engines, &keys, |nic, key| nic.dealloc_window(key))?;
    pd.users.release();
    Ok(())
}
