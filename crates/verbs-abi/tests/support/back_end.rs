//! Devices by `verbs:NAME` over the library that is linked in.

use std::ffi::CStr;
use std::sync::Once;

use bowline::Device;
use bowline_verbs_abi::verbs::bowline_verbs_table;

/// Makes the library that is linked in the one that `verbs:` devices are of.
pub fn provide() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        super::set_up();
        let names = include_str!("../../symbols.txt").lines().filter(|line| !line.starts_with('#'));
        let names: Vec<&str> = names.filter_map(|line| line.split_whitespace().next()).collect();
        let find = |name: &'static CStr| {
            let index = names.iter().position(|known| known.as_bytes() == name.to_bytes())?;
            Some(bowline_verbs_table[index].address())
        };
        // SAFETY: the table has the functions of this library, in the order of the list of their
        // names.
        unsafe { bowline_ibverbs::provide(find) }.expect("no other library is in use");
    });
}

pub fn open(name: &str) -> Device {
    provide();
    Device::open(name).expect("the device is one of this library's")
}

/// An address for a soft NIC of this process's own. There are two.
pub fn soft_address(number: u32) -> String {
    let pid = std::process::id();
    format!("127.73.{}.{}", pid / 120 % 250, pid % 120 * 2 + 1 + number)
}
