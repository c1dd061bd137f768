//! User settings of an AF_XDP port.

use std::fmt;
use std::str::FromStr;

use crate::via::ParseViaError;

/// How an [`XdpPort`](crate::XdpPort) gets frames from and to the NIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XdpMode {
    /// The best that its driver supports.
    #[default]
    Auto,
    /// The kernel copies them: every driver supports this.
    Copy,
    /// The NIC reads and writes the port's memory itself.
    ZeroCopy,
}

/// Settings of an [`XdpPort`](crate::XdpPort); written as `mode=copy,queue=2`.
///
/// ```
/// use bowline_io::{XdpMode, XdpOptions};
///
/// let options: XdpOptions = "mode=zerocopy,queue=2".parse()?;
/// assert_eq!(options, XdpOptions { mode: XdpMode::ZeroCopy, queue: Some(2) });
/// assert_eq!(options.to_string(), "mode=zerocopy,queue=2");
/// # Ok::<(), bowline_io::ParseViaError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XdpOptions {
    /// How frames get between the NIC and the port.
    pub mode: XdpMode,
    /// The NIC's queue to use. Only frames received on that queue arrive, so a NIC with several
    /// must be configured to steer RoCEv2 there; without a number the NIC must have a single queue.
    pub queue: Option<u32>,
}

impl XdpMode {
    fn name(self) -> &'static str {
        match self {
            XdpMode::Auto => "auto",
            XdpMode::Copy => "copy",
            XdpMode::ZeroCopy => "zerocopy",
        }
    }
}

impl FromStr for XdpOptions {
    type Err = ParseViaError;

    fn from_str(text: &str) -> Result<XdpOptions, ParseViaError> {
        let wrong = || ParseViaError(text.to_owned());
        let mut options = XdpOptions::default();
        for item in text.split(',') {
            match item.split_once('=').ok_or_else(wrong)? {
                ("mode", mode) => {
                    let modes = [XdpMode::Auto, XdpMode::Copy, XdpMode::ZeroCopy];
                    let named = modes.into_iter().find(|m| m.name() == mode);
                    options.mode = named.ok_or_else(wrong)?;
                }
                ("queue", queue) => options.queue = Some(queue.parse().map_err(|_| wrong())?),
                _ => return Err(wrong()),
            }
        }
        Ok(options)
    }
}

impl fmt::Display for XdpOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "mode={}", self.mode.name())?;
        self.queue.map_or(Ok(()), |queue| write!(f, ",queue={queue}"))
    }
}
