//! Failover options of `bowline run`. They are checked here, so that the user sees mistakes at
//! once.

use std::net::{IpAddr, UdpSocket};
use std::process::Command;

use bowline_device::Mode;
use clap::Args;

use super::{hardware, parse_device};

#[derive(Args)]
pub(super) struct FailoverArgs {
    /// Keep connections alive over a backup NIC: exact (the default mode), or shift, which hardware
    /// NICs can do too
    #[arg(long, value_name = "MODE", num_args = 0..=1, require_equals = true, default_missing_value = "exact")]
    failover: Option<Mode>,
    /// Use the system's own verbs devices: the program runs on the first, and its connections move
    /// to the second when the first fails [default: the first two RoCE devices]
    #[arg(long, value_name = "DEVICE,BACKUP", num_args = 0..=1, require_equals = true, default_missing_value = "", requires = "failover")]
    pub(super) hardware: Option<String>,
    /// Backup address of a device, hidden from the program; may be repeated [default: the next
    /// device]
    #[arg(long = "backup", value_name = "NAME=ADDRESS", value_parser = parse_device, requires = "failover")]
    backups: Vec<(String, IpAddr)>,
    /// Where the job's processes find each other's backups: file:///DIR (the default, enough on one
    /// host), or another store described in `docs/failover.md`
    #[arg(long, value_name = "URL", requires = "failover")]
    store: Option<String>,
    /// Job name; only processes with the same name find each other
    #[arg(long, value_name = "NAME", requires = "failover")]
    job: Option<String>,
}

impl FailoverArgs {
    /// Passes the options to the library in the program, once all of them have been checked.
    pub(super) fn pass_to(
        &self,
        command: &mut Command,
        devices: &[(String, IpAddr)],
    ) -> Result<(), String> {
        let Some(mode) = self.failover else { return Ok(()) };
        if let Some(asked) = &self.hardware {
            if mode != Mode::Shift {
                return Err(
                    "--hardware needs --failover=shift: a NIC's own transport state cannot \
                            be moved, which exact failover does"
                        .to_owned(),
                );
            }
            if !self.backups.is_empty() {
                return Err("--backup is for Bowline's soft NIC: with --hardware, name both \
                            devices, e.g. --hardware=mlx5_0,mlx5_1"
                    .to_owned());
            }
            command.env("BOWLINE_HARDWARE", hardware::pair(asked)?);
        } else {
            self.check_backups(devices)?;
        }
        let job = self.job.as_deref().unwrap_or("default");
        let url = self.store.clone().unwrap_or_else(bowline_store::default_url);
        bowline_store::open(&url, job).map_err(|error| error.to_string())?;
        command.env("BOWLINE_FAILOVER", mode.to_string());
        command.env("BOWLINE_STORE", url);
        command.env("BOWLINE_JOB", job);
        if !self.backups.is_empty() {
            let backups: Vec<String> =
                self.backups.iter().map(|(name, addr)| format!("{name}={addr}")).collect();
            command.env("BOWLINE_BACKUP", backups.join(","));
        }
        Ok(())
    }

    fn check_backups(&self, devices: &[(String, IpAddr)]) -> Result<(), String> {
        for (name, addr) in &self.backups {
            if !devices.is_empty() && !devices.iter().any(|(device, _)| device == name) {
                return Err(format!("--backup {name}={addr}: there is no --device {name}"));
            }
            if devices.iter().any(|device| device == &(name.clone(), *addr)) {
                return Err(format!("--backup {name}={addr}: that is the device's own address"));
            }
            check_local(*addr).map_err(|why| format!("--backup {name}={addr}: {why}"))?;
        }
        let has_backup = |name: &str| self.backups.iter().any(|(backed, _)| backed == name);
        match devices {
            [(name, _)] if !has_backup(name) => Err(format!(
                "--failover needs a second NIC: give --backup {name}=ADDRESS, or a second --device"
            )),
            _ => Ok(()),
        }
    }
}

/// Checks that this host has an address.
fn check_local(addr: IpAddr) -> Result<(), String> {
    match UdpSocket::bind((addr, 0)) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::AddrNotAvailable => {
            Err("this host does not have this address (`ip address` lists its addresses)"
                .to_owned())
        }
        Err(error) => Err(format!("it cannot be used: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(backups: &[&str], devices: &[&str], store: Option<&str>) -> Result<(), String> {
        let parse = |all: &[&str]| all.iter().map(|d| parse_device(d).unwrap()).collect::<Vec<_>>();
        let args = FailoverArgs {
            failover: Some(Mode::Exact),
            hardware: None,
            backups: parse(backups),
            store: store.map(str::to_owned),
            job: None,
        };
        args.pass_to(&mut Command::new("true"), &parse(devices))
    }

    #[test]
    fn a_backup_is_given_or_the_next_device() {
        assert!(passed(&["bl0=127.0.0.2"], &["bl0=127.0.0.1"], None).is_ok());
        assert!(passed(&[], &["bl0=127.0.0.1", "bl1=127.0.0.2"], None).is_ok());
        let error = passed(&[], &["bl0=127.0.0.1"], None).unwrap_err();
        assert!(error.contains("--backup bl0="), "{error}");
    }

    #[test]
    fn what_cannot_work_is_said_before_the_program_starts() {
        let error = passed(&["bl0=192.0.2.1"], &["bl0=127.0.0.1"], None).unwrap_err();
        assert!(error.contains("this host does not have this address"), "{error}");
        let error = passed(&["bl7=127.0.0.2"], &["bl0=127.0.0.1"], None).unwrap_err();
        assert!(error.contains("no --device bl7"), "{error}");
        let error = passed(&["bl0=127.0.0.1"], &["bl0=127.0.0.1"], None).unwrap_err();
        assert!(error.contains("own address"), "{error}");
        let store = Some("ftp://host");
        let error = passed(&["bl0=127.0.0.2"], &["bl0=127.0.0.1"], store).unwrap_err();
        assert!(error.contains("ftp") && error.contains("file:///"), "{error}");
    }
}
