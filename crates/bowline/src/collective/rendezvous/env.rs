//! Environment variables of launchers.

use std::net::{SocketAddr, ToSocketAddrs};

use bowline_collective::Rank;

use super::{Meeting, at_address, in_store};
use crate::Error;

/// Launchers' variables for rank and size. The first that is set counts: torchrun may run under the
/// others.
const LAUNCHERS: [(&str, &str); 4] = [
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
];

/// Meets as the environment says.
pub fn from_env() -> Result<Meeting, Error> {
    meeting(|name| std::env::var(name).ok())
}

/// The rank and size that a launcher has assigned to this process, if one has.
pub fn rank_from_env() -> Result<Option<(Rank, u32)>, Error> {
    rank(&|name| std::env::var(name).ok())
}

fn rank(get: &dyn Fn(&str) -> Option<String>) -> Result<Option<(Rank, u32)>, Error> {
    for (rank, size) in LAUNCHERS {
        if let (Some(_), Some(_)) = (get(rank), get(size)) {
            return Ok(Some((number(get, rank)?, number(get, size)?)));
        }
    }
    Ok(None)
}

fn number<N: std::str::FromStr>(
    get: &dyn Fn(&str) -> Option<String>,
    name: &str,
) -> Result<N, Error> {
    let text = get(name).unwrap_or_default();
    text.parse().map_err(|_| Error::Invalid {
        what: "environment",
        why: format!("{name}={text:?} is not a number in range"),
    })
}

fn meeting(get: impl Fn(&str) -> Option<String>) -> Result<Meeting, Error> {
    let get: &dyn Fn(&str) -> Option<String> = &get;
    let Some((rank, ranks)) = rank(get)? else {
        let why = "no launcher has set rank and size: start the program by torchrun, mpirun or srun, \
                   or set RANK and WORLD_SIZE";
        return Err(Error::Invalid { what: "environment", why: why.to_owned() });
    };
    if let Some(url) = get("BOWLINE_STORE") {
        let job = get("BOWLINE_JOB").unwrap_or_else(|| "bowline".to_owned());
        return in_store(&url, &job, rank, ranks);
    }
    if let Some(host) = get("MASTER_ADDR") {
        return at_address(master(get, &host)?, rank, ranks);
    }
    let why = "ranks have no place to meet: set BOWLINE_STORE, e.g. file:///shared/dir, \
               or MASTER_ADDR and MASTER_PORT";
    Err(Error::Invalid { what: "environment", why: why.to_owned() })
}

/// Where rank 0 listens: the launcher itself may use the port it names.
fn master(get: &dyn Fn(&str) -> Option<String>, host: &str) -> Result<SocketAddr, Error> {
    let port: u16 = match get("BOWLINE_PORT") {
        Some(_) => number(get, "BOWLINE_PORT")?,
        None => {
            let port: u16 = number(get, "MASTER_PORT")?;
            port.checked_add(1).ok_or_else(|| Error::Invalid {
                what: "environment",
                why: format!("MASTER_PORT={port} leaves no port behind it: set BOWLINE_PORT"),
            })?
        }
    };
    let found = (host, port).to_socket_addrs();
    let found = found.map_err(|e| Error::system(format!("resolve MASTER_ADDR={host}"), e))?;
    found.into_iter().next().ok_or_else(|| Error::Invalid {
        what: "environment",
        why: format!("MASTER_ADDR={host} stands for no address"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(vars: &[(&str, &str)]) -> Result<Meeting, Error> {
        let vars: Vec<_> = vars.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        meeting(move |name| vars.iter().find(|(k, _)| k == name).map(|(_, v)| v.clone()))
    }

    #[test]
    fn all_launchers_are_understood() {
        for (rank, size) in LAUNCHERS {
            let place = ("BOWLINE_STORE", "file:///tmp/x");
            let meeting = with(&[(rank, "3"), (size, "8"), place]).unwrap();
            assert_eq!((meeting.rank, meeting.ranks), (3, 8));
            assert!(with(&[(rank, "8"), (size, "8"), place]).is_err(), "ranks count from 0");
            assert!(with(&[(rank, "x"), (size, "8"), place]).is_err());
        }
        let both =
            [("RANK", "1"), ("WORLD_SIZE", "2"), ("SLURM_PROCID", "0"), ("SLURM_NTASKS", "1")];
        let meeting = with(&[&both[..], &[("BOWLINE_STORE", "file:///tmp/x")]].concat()).unwrap();
        assert_eq!((meeting.rank, meeting.ranks), (1, 2), "torchrun under Slurm");
    }

    #[test]
    fn errors_say_what_to_set() {
        let text = |vars: &[(&str, &str)]| with(vars).unwrap_err().to_string();
        assert!(text(&[]).contains("RANK and WORLD_SIZE"));
        let ranks = [("RANK", "0"), ("WORLD_SIZE", "2")];
        assert!(text(&ranks).contains("BOWLINE_STORE"));
        let full = [&ranks[..], &[("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "65535")]].concat();
        assert!(text(&full).contains("BOWLINE_PORT"));
    }
}
