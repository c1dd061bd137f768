//! The operations, by name.

use bowline_collective::{Operation, Rank, ReduceOp, Request};

use super::{Communicator, Tensor, Work};
use crate::Error;

/// In place the tensor holds the input and gets the output; where both have blocks, this rank's is
/// at its position among the others. The `…_into` variants leave their input unchanged.
impl Communicator {
    /// Reduces the tensors of all ranks, for all ranks, in place.
    pub fn allreduce(&self, data: &Tensor, op: ReduceOp) -> Result<Work, Error> {
        self.in_place(Operation::Allreduce { count: data.count() }, op, data)
    }

    /// Reduces the inputs of all ranks, for all ranks.
    pub fn allreduce_into(
        &self,
        input: &Tensor,
        output: &Tensor,
        op: ReduceOp,
    ) -> Result<Work, Error> {
        self.apart(Operation::Allreduce { count: input.count() }, op, Some(input), Some(output))
    }

    /// Reduces the tensors of all ranks; rank r gets the r-th block, in place.
    pub fn reduce_scatter(&self, data: &Tensor, op: ReduceOp) -> Result<Work, Error> {
        self.in_place(Operation::ReduceScatter { count: self.block(data)? }, op, data)
    }

    /// Reduces the inputs of all ranks; rank r gets the r-th block.
    pub fn reduce_scatter_into(
        &self,
        input: &Tensor,
        output: &Tensor,
        op: ReduceOp,
    ) -> Result<Work, Error> {
        let operation = Operation::ReduceScatter { count: self.block(input)? };
        self.apart(operation, op, Some(input), Some(output))
    }

    /// Gives all ranks the blocks of all ranks, in place.
    pub fn allgather(&self, data: &Tensor) -> Result<Work, Error> {
        self.in_place(Operation::Allgather { count: self.block(data)? }, ReduceOp::Sum, data)
    }

    /// Gives all ranks the inputs of all ranks.
    pub fn allgather_into(&self, input: &Tensor, output: &Tensor) -> Result<Work, Error> {
        let operation = Operation::Allgather { count: input.count() };
        self.apart(operation, ReduceOp::Sum, Some(input), Some(output))
    }

    /// Gives rank r the r-th block of all ranks.
    pub fn all_to_all_into(&self, input: &Tensor, output: &Tensor) -> Result<Work, Error> {
        let operation = Operation::AllToAll { count: self.block(input)? };
        self.apart(operation, ReduceOp::Sum, Some(input), Some(output))
    }

    /// Gives rank r the r-th block of all ranks, where blocks differ in length: how many elements
    /// this rank sends to each, and receives from each.
    pub fn all_to_all_counts(
        &self,
        input: (&Tensor, &[usize]),
        output: (&Tensor, &[usize]),
    ) -> Result<Work, Error> {
        let (send, recv) = (input.1.to_vec(), output.1.to_vec());
        let operation = Operation::AllToAllV { send, recv };
        self.apart(operation, ReduceOp::Sum, Some(input.0), Some(output.0))
    }

    /// Gives all ranks the tensor of the root, in place.
    pub fn broadcast(&self, data: &Tensor, root: Rank) -> Result<Work, Error> {
        self.in_place(Operation::Broadcast { count: data.count(), root }, ReduceOp::Sum, data)
    }

    /// Gives the root the reduction of all ranks' tensors, in place. The others' stay unchanged.
    pub fn reduce(&self, data: &Tensor, op: ReduceOp, root: Rank) -> Result<Work, Error> {
        self.in_place(Operation::Reduce { count: data.count(), root }, op, data)
    }

    /// Gives the root the inputs of all ranks. Only the root needs an output.
    pub fn gather_into(
        &self,
        input: &Tensor,
        output: Option<&Tensor>,
        root: Rank,
    ) -> Result<Work, Error> {
        let operation = Operation::Gather { count: input.count(), root };
        self.apart(operation, ReduceOp::Sum, Some(input), output)
    }

    /// Gives rank r the r-th block of the root. Only the root needs an input.
    pub fn scatter_into(
        &self,
        input: Option<&Tensor>,
        output: &Tensor,
        root: Rank,
    ) -> Result<Work, Error> {
        let operation = Operation::Scatter { count: output.count(), root };
        self.apart(operation, ReduceOp::Sum, input, Some(output))
    }

    /// Completes when all ranks have called it.
    pub fn barrier(&self) -> Result<Work, Error> {
        self.apart(Operation::Barrier, ReduceOp::Sum, None, None)
    }

    /// Sends a tensor to a rank, which must receive one of the same length and type.
    pub fn send(&self, data: &Tensor, to: Rank) -> Result<Work, Error> {
        let operation = Operation::Send { count: data.count(), to };
        self.apart(operation, ReduceOp::Sum, Some(data), None)
    }

    /// Receives a tensor from a rank. Sends and receives run concurrently, those between two ranks
    /// in order.
    pub fn recv(&self, data: &Tensor, from: Rank) -> Result<Work, Error> {
        let operation = Operation::Recv { count: data.count(), from };
        self.apart(operation, ReduceOp::Sum, None, Some(data))
    }

    fn in_place(&self, operation: Operation, op: ReduceOp, data: &Tensor) -> Result<Work, Error> {
        let dtype = data.data_type();
        let request = Request { dtype, op, in_place: true, ..Request::new(operation) };
        self.start(&request, None, Some(data))
    }

    fn apart(
        &self,
        operation: Operation,
        op: ReduceOp,
        input: Option<&Tensor>,
        output: Option<&Tensor>,
    ) -> Result<Work, Error> {
        let mut request = Request { op, ..Request::new(operation) };
        if let Some(tensor) = input.or(output) {
            request.dtype = tensor.data_type();
        }
        self.start(&request, input, output)
    }

    /// Elements per block, with one block per rank.
    fn block(&self, tensor: &Tensor) -> Result<usize, Error> {
        let (count, ranks) = (tensor.count(), self.size() as usize);
        if count.is_multiple_of(ranks) {
            return Ok(count / ranks);
        }
        let why = format!("{count} elements cannot be cut into equal blocks for {ranks} ranks");
        Err(Error::Invalid { what: "tensor", why })
    }
}
