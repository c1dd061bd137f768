//! `bowline run --hardware`: an unmodified program on the system's own verbs devices, with a second
//! one as the backup.

use bowline_ibverbs::{ListedDevice, ListedPort};

/// The device that the program uses and its backup, in the library's syntax.
///
/// `asked` is the option's value: two names, or nothing, which means the first two usable devices.
pub(super) fn pair(asked: &str) -> Result<String, String> {
    let listed = bowline_ibverbs::list().map_err(|error| format!("--hardware: {error}"))?;
    choose(asked, &listed)
}

fn choose(asked: &str, listed: &[ListedDevice]) -> Result<String, String> {
    let usable: Vec<&str> =
        listed.iter().filter(|device| is_usable(device)).map(|device| &*device.name).collect();
    let there = match usable[..] {
        [] => "the system has none".to_owned(),
        _ => format!("the system has {}", usable.join(", ")),
    };
    let (first, second) = match (asked.split_once(','), &usable[..]) {
        (Some(names), _) => names,
        (None, [first, second, ..]) if asked.is_empty() => (*first, *second),
        (None, _) if asked.is_empty() => {
            return Err(format!(
                "--hardware needs two RoCE devices with addresses, and {there} (`bowline devinfo` \
                 lists all)"
            ));
        }
        (None, _) => {
            return Err(format!(
                "--hardware={asked}: name the device and its backup, e.g. --hardware=mlx5_0,mlx5_1"
            ));
        }
    };
    for name in [first, second] {
        if !usable.contains(&name) {
            return Err(format!(
                "--hardware: {name:?} is not a RoCE device with an address on an active port; \
                 {there}"
            ));
        }
    }
    if first == second {
        return Err(format!("--hardware={asked}: a device cannot be its own backup"));
    }
    Ok(format!("{first},{second}"))
}

fn is_usable(device: &ListedDevice) -> bool {
    let carries =
        |port: &ListedPort| port.is_ethernet && port.is_active && !port.addresses.is_empty();
    device.ports.as_ref().is_ok_and(|ports| ports.iter().any(carries))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(name: &str, is_active: bool) -> ListedDevice {
        let addresses = vec![(1, "192.0.2.1".parse().unwrap())];
        let port = ListedPort { number: 1, is_active, is_ethernet: true, mtu: None, addresses };
        ListedDevice { name: name.to_owned(), ports: Ok(vec![port]) }
    }

    #[test]
    fn two_devices_are_named_or_found() {
        let listed = [device("rxe9", false), device("rxe0", true), device("rxe1", true)];
        assert_eq!(choose("", &listed).unwrap(), "rxe0,rxe1");
        assert_eq!(choose("rxe1,rxe0", &listed).unwrap(), "rxe1,rxe0");
    }

    #[test]
    fn what_cannot_work_is_said_before_the_program_starts() {
        let listed = [device("rxe0", true), device("rxe1", false)];
        for (asked, part) in [
            ("", "needs two RoCE devices"),
            ("rxe0", "e.g. --hardware=mlx5_0,mlx5_1"),
            ("rxe0,rxe1", "\"rxe1\" is not a RoCE device with an address on an active port"),
            ("rxe0,rxe0", "its own backup"),
        ] {
            let error = choose(asked, &listed).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
        let error = choose("", &[]).unwrap_err();
        assert!(error.contains("the system has none"), "{error}");
    }
}
