//! Communicators.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bowline::rendezvous::{self, Meeting};
use bowline::{
    Bounds, CommOptions, CommTransport, Deadline, Device, Error, Pd, Rank, Recovery, TimeoutRule,
};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyType};

use crate::error::Trouble;
use crate::interrupt;

/// A group of programs that do collective operations together.
#[pyclass(frozen, module = "bowline")]
pub(crate) struct Communicator {
    open: Mutex<Option<Arc<Open>>>,
    rank: Rank,
    pub(crate) size: u32,
}

pub(crate) struct Open {
    pub(crate) pd: Pd,
    pub(crate) comm: bowline::Communicator,
}

/// How to make one.
struct Options {
    device: Option<IpAddr>,
    comm: CommOptions,
}

impl Options {
    /// By the keywords that `bowline.Communicator` has for it.
    fn new(keywords: Option<&Bound<'_, PyDict>>) -> PyResult<Options> {
        let mut options = Options { device: None, comm: CommOptions::default() };
        let (mut limit, mut max_loss, mut recovery) = (Deadline::Never, 0.0, Recovery::Auto);
        for (name, value) in keywords.into_iter().flatten() {
            let (name, comm) = (name.extract::<String>()?, &mut options.comm);
            if value.is_none() {
                continue;
            }
            match &*name {
                "device" => options.device = Some(address(&value.extract::<String>()?)?),
                "timeout" => comm.timeout = seconds(&name, &value)?,
                "setup_timeout" => comm.setup_timeout = seconds(&name, &value)?,
                "chunk_bytes" => comm.chunk_bytes = value.extract()?,
                "window_bytes" => comm.window_bytes = Some(value.extract()?),
                "transport" => {
                    let parsed = value.extract::<String>()?.parse::<CommTransport>();
                    comm.transport = parsed.map_err(|e| Trouble::invalid(e.to_string()))?;
                }
                "deadline" => limit = deadline(&value)?,
                "max_loss" => max_loss = value.extract()?,
                "recovery" => {
                    let always = value.extract::<bool>()?;
                    recovery = if always { Recovery::Always } else { Recovery::Never };
                }
                "multicast" => comm.multicast = value.extract()?,
                _ => return Err(Trouble::invalid(format!("there is no option {name}")).into()),
            }
        }
        let bounds = Bounds::new(limit, max_loss).map(|bounds| Bounds { recovery, ..bounds });
        options.comm.bounds = bounds
            .ok_or_else(|| Trouble::invalid(format!("max_loss {max_loss}: a share, e.g. 0.01")))?;
        Ok(options)
    }

    /// Opens the NIC that reaches `peer`, and meets the others.
    fn meet(&self, meeting: Meeting, peer: Option<&str>) -> Result<Open, Trouble> {
        let addr = match self.device {
            Some(addr) => addr,
            None => rendezvous::device_addr(peer, meeting.rank)?,
        };
        let pd = Device::shared(addr)?.alloc_pd()?;
        let comm = bowline::Communicator::meet(&pd, meeting, self.comm)?;
        Ok(Open { pd, comm })
    }
}

impl Communicator {
    fn new(open: Open) -> Communicator {
        let (rank, size) = (open.comm.rank(), open.comm.size());
        Communicator { open: Mutex::new(Some(Arc::new(open))), rank, size }
    }

    pub(crate) fn open(&self) -> Result<Arc<Open>, Trouble> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.clone().ok_or_else(|| Trouble::invalid("this communicator has been closed"))
    }

    fn take(&self) -> Option<Arc<Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

#[pymethods]
impl Communicator {
    /// Meets the other ranks where the environment says.
    #[classmethod]
    #[pyo3(signature = (**options))]
    fn from_env(
        _class: &Bound<'_, PyType>,
        py: Python<'_>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Communicator> {
        let options = Options::new(options)?;
        let made = interrupt::run(py, move || options.meet(rendezvous::from_env()?, None))?;
        Ok(Communicator::new(made))
    }

    /// Meets the other ranks of a job in a store, by its URL.
    #[classmethod]
    #[pyo3(signature = (url, rank, size, *, job = "bowline", **options))]
    fn in_store(
        _class: &Bound<'_, PyType>,
        py: Python<'_>,
        url: String,
        rank: Rank,
        size: u32,
        job: &str,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Communicator> {
        let options = Options::new(options)?;
        let job = job.to_owned();
        let made = interrupt::run(py, move || {
            options.meet(rendezvous::in_store(&url, &job, rank, size)?, None)
        })?;
        Ok(Communicator::new(made))
    }

    /// Meets the other ranks at rank 0, which listens at `host:port`.
    #[classmethod]
    #[pyo3(signature = (address, rank, size, **options))]
    fn at_address(
        _class: &Bound<'_, PyType>,
        py: Python<'_>,
        address: String,
        rank: Rank,
        size: u32,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Communicator> {
        let options = Options::new(options)?;
        let made = interrupt::run(py, move || {
            let address = resolve(&address)?;
            let meeting = rendezvous::at_address(address, rank, size)?;
            options.meet(meeting, Some(&address.ip().to_string()))
        })?;
        Ok(Communicator::new(made))
    }

    /// Meets the other ranks by an all-gather: `gather(mine, timeout)` returns the bytes of all
    /// ranks in a row.
    #[classmethod]
    #[pyo3(signature = (gather, rank, size, **options))]
    fn by_gather(
        _class: &Bound<'_, PyType>,
        py: Python<'_>,
        gather: Py<PyAny>,
        rank: Rank,
        size: u32,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Communicator> {
        let options = Options::new(options)?;
        let all = move |mine: &[u8], timeout: Duration| {
            Python::attach(|py| {
                let mine = PyBytes::new(py, mine);
                gather.call1(py, (mine, timeout.as_secs_f64()))?.extract::<Vec<u8>>(py)
            })
            .map_err(|error: PyErr| Error::Invalid { what: "rendezvous", why: error.to_string() })
        };
        let made = interrupt::run(py, move || {
            options.meet(rendezvous::by_gather(rank, size, all)?, None)
        })?;
        Ok(Communicator::new(made))
    }

    /// The number of this rank.
    #[getter]
    fn rank(&self) -> Rank {
        self.rank
    }

    /// How many ranks there are.
    #[getter]
    fn size(&self) -> u32 {
        self.size
    }

    /// A communicator of the ranks that give the same color, ordered by their keys. None without a
    /// color.
    #[pyo3(signature = (color, key = 0))]
    fn split(
        &self,
        py: Python<'_>,
        color: Option<u32>,
        key: u32,
    ) -> PyResult<Option<Communicator>> {
        let open = self.open()?;
        let made = interrupt::run(py, move || {
            let pd = open.pd.clone();
            Ok(open.comm.split(color, key)?.map(|comm| Open { pd, comm }))
        })?;
        Ok(made.map(Communicator::new))
    }

    /// A communicator of the same ranks, whose operations go on beside those of this one.
    fn duplicate(&self, py: Python<'_>) -> PyResult<Communicator> {
        let open = self.open()?;
        let made = interrupt::run(py, move || {
            let pd = open.pd.clone();
            Ok(Open { pd, comm: open.comm.duplicate()? })
        })?;
        Ok(Communicator::new(made))
    }

    /// Leaves the group. Operations that are going on end first.
    fn close(&self, py: Python<'_>) {
        let open = self.take();
        py.detach(|| drop(open));
    }

    fn __enter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _class: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) {
        self.close(py);
    }

    fn __repr__(&self) -> String {
        format!("<bowline.Communicator rank {} of {}>", self.rank, self.size)
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        // Leaving takes a round trip, in which others may need the GIL.
        if let Some(open) = self.take() {
            Python::attach(|py| py.detach(|| drop(open)));
        }
    }
}

/// The address for this rank's NIC that reaches a host: see `bowline::rendezvous::device_addr`.
#[pyfunction]
#[pyo3(signature = (peer, rank))]
pub(crate) fn device_addr(peer: Option<&str>, rank: Rank) -> PyResult<String> {
    let addr = rendezvous::device_addr(peer, rank).map_err(Trouble::from)?;
    Ok(addr.to_string())
}

fn seconds(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Duration> {
    let given = value.extract::<f64>()?;
    let invalid = |_| Trouble::invalid(format!("{name} {given}: seconds, e.g. 30"));
    Ok(Duration::try_from_secs_f64(given).map_err(invalid)?)
}

fn address(text: &str) -> Result<IpAddr, Trouble> {
    let invalid = |_| Trouble::invalid(format!("device {text:?}: an IP address, e.g. 10.0.0.7"));
    text.parse().map_err(invalid)
}

/// Seconds, or the name of a rule.
fn deadline(value: &Bound<'_, PyAny>) -> PyResult<Deadline> {
    match value.extract::<String>().as_deref() {
        Ok("adaptive") => Ok(Deadline::Adaptive(TimeoutRule::Margin)),
        Ok("paper") => Ok(Deadline::Adaptive(TimeoutRule::Paper)),
        Ok(other) => {
            let text = format!("deadline {other:?}: seconds, e.g. 0.02, or adaptive or paper");
            Err(Trouble::invalid(text).into())
        }
        Err(_) => Ok(Deadline::After(seconds("deadline", value)?)),
    }
}

fn resolve(address: &str) -> Result<SocketAddr, Trouble> {
    let found = address.to_socket_addrs().ok().and_then(|mut found| found.next());
    found.ok_or_else(|| {
        Trouble::invalid(format!("{address:?} stands for no address: write e.g. 10.0.0.7:29500"))
    })
}
