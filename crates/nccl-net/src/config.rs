//! Settings from the environment, because NCCL offers no other way to configure a plug-in.

use std::fmt::Display;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::OnceLock;
use std::time::Duration;

use bowline::{CommTransport, DeviceBuilder, FecMode, LaneCount, LinkProfile, RateControl, Via};

use crate::log;
use crate::status::Trouble;

/// Default time limit for setting up a connection.
const SETUP_SECONDS: u64 = 60;

/// Settings for all connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    /// The transport for the data of connections that are accepted here.
    pub(crate) transport: CommTransport,
    /// Whether their packets are sealed.
    pub(crate) seal: bool,
    /// Time limit for setting up a connection.
    pub(crate) setup_timeout: Duration,
}

impl Config {
    /// The settings, read from the environment once.
    pub(crate) fn get() -> Result<Config, Trouble> {
        static CONFIG: OnceLock<Result<Config, String>> = OnceLock::new();
        let config = CONFIG.get_or_init(|| Config::read(&|name| std::env::var(name).ok()));
        config.clone().map_err(Trouble::usage)
    }

    fn read(get: &dyn Fn(&str) -> Option<String>) -> Result<Config, String> {
        let seconds = value::<u64>(get, "BOWLINE_NCCL_TIMEOUT_S")?.unwrap_or(SETUP_SECONDS);
        if !(1..=86_400).contains(&seconds) {
            return Err(format!("BOWLINE_NCCL_TIMEOUT_S={seconds}: take 1 to 86400 seconds"));
        }
        let seal = match value::<String>(get, "BOWLINE_NCCL_SEAL")?.as_deref() {
            None | Some("off") => false,
            Some("on") => true,
            Some(other) => return Err(format!("BOWLINE_NCCL_SEAL={other}: take on or off")),
        };
        Ok(Config {
            transport: value(get, "BOWLINE_NCCL_TRANSPORT")?.unwrap_or_default(),
            seal,
            setup_timeout: Duration::from_secs(seconds),
        })
    }
}

/// Device settings, from the same variables as for `bowline run`.
pub(crate) fn device_builder(addr: IpAddr) -> Result<DeviceBuilder, Trouble> {
    let get: &dyn Fn(&str) -> Option<String> = &|name| std::env::var(name).ok();
    let read = || -> Result<DeviceBuilder, String> {
        let mut builder = bowline::Device::builder(addr).notice(log::warn).detail(log::info);
        builder = builder.via(value(get, "BOWLINE_VIA")?.unwrap_or(Via::Auto));
        if let Some(lanes) = value::<LaneCount>(get, "BOWLINE_LANES")? {
            builder = builder.lanes(lanes);
        }
        if let Some(link) = value::<LinkProfile>(get, "BOWLINE_LINK")? {
            builder = builder.link(link);
        }
        if let Some(fec) = value::<FecMode>(get, "BOWLINE_FEC")? {
            builder = builder.fec(fec);
        }
        if let Some(control) = value::<RateControl>(get, "BOWLINE_CC")? {
            builder = builder.congestion_control(control);
        }
        Ok(builder)
    };
    read().map_err(Trouble::usage)
}

/// The value of a variable; `None` if it is not set or empty.
fn value<T: FromStr<Err: Display>>(
    get: &dyn Fn(&str) -> Option<String>,
    name: &str,
) -> Result<Option<T>, String> {
    match get(name).filter(|text| !text.is_empty()) {
        None => Ok(None),
        Some(text) => text.parse().map(Some).map_err(|e| format!("{name}={text}: {e}")),
    }
}

#[cfg(test)]
mod tests {
    use bowline::SdrScheme;

    use super::*;

    fn with(vars: &[(&str, &str)]) -> Result<Config, String> {
        let get = |name: &str| {
            vars.iter().find(|(known, _)| *known == name).map(|(_, text)| (*text).to_owned())
        };
        Config::read(&get)
    }

    #[test]
    fn the_defaults_are_rc_without_sealing() {
        let config = with(&[("BOWLINE_NCCL_TRANSPORT", "")]).unwrap();
        assert_eq!(config.transport, CommTransport::Rc);
        assert_eq!((config.seal, config.setup_timeout), (false, Duration::from_secs(60)));
    }

    #[test]
    fn variables_are_read_and_errors_name_them() {
        let config = with(&[("BOWLINE_NCCL_TRANSPORT", "ec-mds"), ("BOWLINE_NCCL_SEAL", "on")]);
        let config = config.unwrap();
        assert_eq!(config.transport, CommTransport::Sdr(SdrScheme::EcMds));
        assert!(config.seal);
        let bad = [
            ("BOWLINE_NCCL_TRANSPORT", "tcp"),
            ("BOWLINE_NCCL_SEAL", "yes"),
            ("BOWLINE_NCCL_TIMEOUT_S", "0"),
            ("BOWLINE_NCCL_TIMEOUT_S", "5s"),
        ];
        for (name, text) in bad {
            let error = with(&[(name, text)]).unwrap_err();
            assert!(error.contains(name) && error.contains(text), "{error}");
        }
    }
}
