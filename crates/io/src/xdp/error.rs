//! Why an AF_XDP port cannot be opened, and what to do about it.

use std::io;

use crate::port::PortError;

/// Adds what was being done on an interface and, for the usual causes, what helps.
pub(super) fn at<'a>(
    interface: &'a str,
    what: &'static str,
) -> impl Fn(io::Error) -> PortError + 'a {
    move |source| {
        let hint = hint(interface, &source);
        PortError::Xdp { interface: interface.to_owned(), what, source, hint }
    }
}

/// A property of the interface itself that rules it out.
pub(super) fn unfit(interface: &str, what: &'static str, hint: String) -> PortError {
    let source = io::ErrorKind::Unsupported.into();
    PortError::Xdp { interface: interface.to_owned(), what, source, hint }
}

fn hint(interface: &str, error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            "run it as root, or give it CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF".to_owned()
        }
        Some(libc::EAFNOSUPPORT) => {
            "this kernel has no AF_XDP sockets (CONFIG_XDP_SOCKETS): use udp".to_owned()
        }
        Some(libc::EBUSY | libc::EEXIST) => format!(
            "another program has the queue, or a program is attached already: see `ip link show dev \
             {interface}` and `bpftool net`; `ip link set dev {interface} xdp off` takes one away"
        ),
        Some(libc::EOPNOTSUPP) => "its driver cannot do that: use mode=copy, or udp".to_owned(),
        Some(libc::EINVAL | libc::ERANGE) => {
            "it has no such queue, or its MTU is too large for XDP: see `ethtool -l` and dmesg"
                .to_owned()
        }
        Some(libc::ENOBUFS | libc::ENOMEM) => {
            "too little memory may be locked: raise `ulimit -l`, or give it CAP_IPC_LOCK".to_owned()
        }
        _ => String::new(),
    }
}
