//! The collective operations.

use bowline::{Algorithm, DataType, Operation, Rank, Request};
use pyo3::prelude::*;

use crate::comm::{Communicator, Open};
use crate::error::Trouble;
use crate::memory::Array;
use crate::work::Work;

/// What an operation is done to.
struct Call {
    request: Request,
    input: Option<Array>,
    output: Option<Array>,
    /// Nothing may be missing, whatever the communicator allows.
    exact: bool,
}

impl Call {
    fn new(operation: Operation, dtype: DataType) -> Call {
        let request = Request { dtype, ..Request::new(operation) };
        Call { request, input: None, output: None, exact: false }
    }

    fn reducing(mut self, op: &str) -> Result<Call, Trouble> {
        self.request.op = op.parse().map_err(|error| Trouble::invalid(format!("{error}")))?;
        Ok(self)
    }

    fn by(mut self, algorithm: &str) -> Result<Call, Trouble> {
        let parsed = algorithm.parse::<Algorithm>();
        self.request.algorithm = parsed.map_err(|error| Trouble::invalid(error.to_string()))?;
        Ok(self)
    }

    fn on(mut self, input: Option<Array>, output: Option<Array>) -> Call {
        (self.input, self.output) = (input, output);
        self
    }

    fn in_place(mut self, data: Array) -> Call {
        self.request.in_place = true;
        self.output = Some(data);
        self
    }

    fn start(self, open: &Open) -> Result<Work, Trouble> {
        let register = |array: Option<Array>| match array {
            Some(array) => array.register(&open.pd),
            None => Ok(None),
        };
        let (input, output) = (register(self.input)?, register(self.output)?);
        let tensors = [&input, &output].map(|pair| pair.as_ref().map(|(_, tensor)| tensor));
        let work = match self.exact {
            true => open.comm.start_exact(&self.request, tensors[0], tensors[1])?,
            false => open.comm.start(&self.request, tensors[0], tensors[1])?,
        };
        let regions = [input, output].into_iter().flatten().map(|(mr, _)| mr).collect();
        Ok(Work::new(work, regions))
    }

    /// Starts it, and waits unless it is to go on by itself.
    fn run(self, py: Python<'_>, comm: &Communicator, async_op: bool) -> PyResult<Option<Work>> {
        let open = comm.open()?;
        let work = py.detach(move || self.start(&open))?;
        if async_op {
            return Ok(Some(work));
        }
        work.wait_long(py)?;
        Ok(None)
    }
}

type Object<'a, 'py> = &'a Bound<'py, PyAny>;

#[pymethods]
impl Communicator {
    #[pyo3(signature = (data, op = "sum", *, out = None, algorithm = "auto", async_op = false))]
    fn allreduce(
        &self,
        py: Python<'_>,
        data: Object<'_, '_>,
        op: &str,
        out: Option<Object<'_, '_>>,
        algorithm: &str,
        async_op: bool,
    ) -> PyResult<Option<Work>> {
        let data = if out.is_some() { Array::of(data)? } else { Array::writable(data)? };
        let call = Call::new(Operation::Allreduce { count: data.count() }, data.dtype);
        let call = call.reducing(op)?.by(algorithm)?;
        let call = match out {
            Some(out) => call.on(Some(data), Some(Array::writable(out)?)),
            None => call.in_place(data),
        };
        call.run(py, self, async_op)
    }

    #[pyo3(signature = (data, out, op = "sum", *, algorithm = "auto", async_op = false))]
    fn reduce_scatter(
        &self,
        py: Python<'_>,
        data: Object<'_, '_>,
        out: Object<'_, '_>,
        op: &str,
        algorithm: &str,
        async_op: bool,
    ) -> PyResult<Option<Work>> {
        let (input, output) = (Array::of(data)?, Array::writable(out)?);
        exactly(
            input.count(),
            output.count() * self.size as usize,
            "data",
            "a block for each rank",
        )?;
        let call = Call::new(Operation::ReduceScatter { count: output.count() }, input.dtype);
        let call = call.reducing(op)?.by(algorithm)?;
        call.on(Some(input), Some(output)).run(py, self, async_op)
    }

    #[pyo3(signature = (data, out, *, algorithm = "auto", async_op = false))]
    fn allgather(
        &self,
        py: Python<'_>,
        data: Object<'_, '_>,
        out: Object<'_, '_>,
        algorithm: &str,
        async_op: bool,
    ) -> PyResult<Option<Work>> {
        let (input, output) = (Array::of(data)?, Array::writable(out)?);
        exactly(
            output.count(),
            input.count() * self.size as usize,
            "out",
            "a block for each rank",
        )?;
        let call = Call::new(Operation::Allgather { count: input.count() }, input.dtype);
        call.by(algorithm)?.on(Some(input), Some(output)).run(py, self, async_op)
    }

    #[pyo3(signature = (data, out, send_counts = None, recv_counts = None, *, async_op = false))]
    fn all_to_all(
        &self,
        py: Python<'_>,
        data: Object<'_, '_>,
        out: Object<'_, '_>,
        send_counts: Option<Vec<usize>>,
        recv_counts: Option<Vec<usize>>,
        async_op: bool,
    ) -> PyResult<Option<Work>> {
        let (input, output) = (Array::of(data)?, Array::writable(out)?);
        let operation = match (send_counts, recv_counts) {
            (None, None) => {
                let count = input.count() / self.size as usize;
                exactly(input.count(), count * self.size as usize, "data", "equal blocks")?;
                exactly(output.count(), input.count(), "out", "as many elements as data")?;
                Operation::AllToAll { count }
            }
            (Some(send), Some(recv)) => {
                exactly(input.count(), send.iter().sum(), "data", "the sum of send_counts")?;
                exactly(output.count(), recv.iter().sum(), "out", "the sum of recv_counts")?;
                Operation::AllToAllV { send, recv }
            }
            _ => return Err(Trouble::invalid("give both send_counts and recv_counts").into()),
        };
        Call::new(operation, input.dtype).on(Some(input), Some(output)).run(py, self, async_op)
    }

    #[pyo3(signature = (data, root = 0, *, async_op = false))]
    fn broadcast(
        &self,
        py: Python<'_>,
        data: Object<'_, '_>,
        root: Rank,
        async_op: bool,
    ) -> PyResult<Option<Work>> {
        let data = Array::writable(data)?;
        let call = Call::new(Operation::Broadcast { count: data.count(), root }, data.dtype);
        call.in_place(data).run(py, self, async_op)
    }

    #[pyo3(signature = (data, op = "sum", root = 0, *, async_op = false))]
    fn reduce(
        &self,
        py: Python<'_>,
        data: Object<'_, '_>,
        op: &str,
        root: Rank,
        async_op: bool,
    ) -> PyResult<Option<Work>> {
        let data = Array::writable(data)?;
        let call = Call::new(Operation::Reduce { count: data.count(), root }, data.dtype);
        call.reducing(op)?.in_place(data).run(py, self, async_op)
    }

    #[pyo3(signature = (data, out = None, root = 0, *, async_op = false))]
    fn gather(
        &self,
        py: Python<'_>,
        data: Object<'_, '_>,
        out: Option<Object<'_, '_>>,
        root: Rank,
        async_op: bool,
    ) -> PyResult<Option<Work>> {
        let (input, output) = (Array::of(data)?, out.map(Array::writable).transpose()?);
        let call = Call::new(Operation::Gather { count: input.count(), root }, input.dtype);
        call.on(Some(input), output).run(py, self, async_op)
    }

    #[pyo3(signature = (out, data = None, root = 0, *, async_op = false))]
    fn scatter(
        &self,
        py: Python<'_>,
        out: Object<'_, '_>,
        data: Option<Object<'_, '_>>,
        root: Rank,
        async_op: bool,
    ) -> PyResult<Option<Work>> {
        let (input, output) = (data.map(Array::of).transpose()?, Array::writable(out)?);
        let call = Call::new(Operation::Scatter { count: output.count(), root }, output.dtype);
        call.on(input, Some(output)).run(py, self, async_op)
    }

    #[pyo3(signature = (*, async_op = false))]
    fn barrier(&self, py: Python<'_>, async_op: bool) -> PyResult<Option<Work>> {
        Call::new(Operation::Barrier, DataType::F32).run(py, self, async_op)
    }

    #[pyo3(signature = (data, to, *, async_op = false))]
    fn send(
        &self,
        py: Python<'_>,
        data: Object<'_, '_>,
        to: Rank,
        async_op: bool,
    ) -> PyResult<Option<Work>> {
        let data = Array::of(data)?;
        let call = Call::new(Operation::Send { count: data.count(), to }, data.dtype);
        call.on(Some(data), None).run(py, self, async_op)
    }

    #[pyo3(signature = (out, source, *, async_op = false))]
    fn recv(
        &self,
        py: Python<'_>,
        out: Object<'_, '_>,
        source: Rank,
        async_op: bool,
    ) -> PyResult<Option<Work>> {
        let data = Array::writable(out)?;
        let call = Call::new(Operation::Recv { count: data.count(), from: source }, data.dtype);
        call.on(None, Some(data)).run(py, self, async_op)
    }

    /// Starts an operation on memory by its address: what `bowline.torch` calls. `input` and
    /// `output` are (address, bytes, owner), where the owner keeps the memory where it is as long
    /// as it lives.
    #[pyo3(signature = (operation, dtype, count, op = "sum", root = 0, input = None, output = None, counts = None, exact = false))]
    #[expect(clippy::too_many_arguments, reason = "one call for all operations")]
    fn _start(
        &self,
        py: Python<'_>,
        operation: &str,
        dtype: &str,
        count: usize,
        op: &str,
        root: Rank,
        input: Option<(usize, usize, Py<PyAny>)>,
        output: Option<(usize, usize, Py<PyAny>)>,
        counts: Option<(Vec<usize>, Vec<usize>)>,
        exact: bool,
    ) -> PyResult<Work> {
        let (operation, has_place) = match (operation, counts) {
            ("allreduce", _) => (Operation::Allreduce { count }, true),
            ("reduce_scatter", _) => (Operation::ReduceScatter { count }, true),
            ("allgather", _) => (Operation::Allgather { count }, true),
            ("all_to_all", None) => (Operation::AllToAll { count }, false),
            ("all_to_all", Some((send, recv))) => (Operation::AllToAllV { send, recv }, false),
            ("broadcast", _) => (Operation::Broadcast { count, root }, true),
            ("reduce", _) => (Operation::Reduce { count, root }, true),
            ("gather", _) => (Operation::Gather { count, root }, false),
            ("scatter", _) => (Operation::Scatter { count, root }, false),
            ("barrier", _) => (Operation::Barrier, false),
            ("send", _) => (Operation::Send { count, to: root }, false),
            ("recv", _) => (Operation::Recv { count, from: root }, false),
            (name, _) => return Err(Trouble::invalid(format!("no operation {name:?}")).into()),
        };
        let dtype = dtype.parse::<DataType>().map_err(|e| Trouble::invalid(e.to_string()))?;
        let array = |given: Option<(usize, usize, Py<PyAny>)>, is_writable| {
            given.map(|(addr, bytes, owner)| Array {
                addr,
                bytes,
                dtype,
                is_writable,
                owner: Box::new(owner),
            })
        };
        let mut call = Call::new(operation, dtype).reducing(op)?;
        call.request.in_place = has_place && input.is_none();
        call.exact = exact;
        let call = call.on(array(input, false), array(output, true));
        let open = self.open()?;
        Ok(py.detach(move || call.start(&open))?)
    }
}

fn exactly(count: usize, expected: usize, name: &str, what: &str) -> Result<(), Trouble> {
    if count == expected {
        return Ok(());
    }
    Err(Trouble::invalid(format!("{name} has {count} elements and needs {what}: {expected}")))
}
