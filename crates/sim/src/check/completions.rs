//! Every signaled request completes exactly once and in order, failed ones too; unsignaled ones
//! that succeed never complete; after a failure everything is flushed.

use std::collections::{BTreeSet, VecDeque};

use bowline_nic::WcStatus;

/// What a completion implies for the requests posted before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retired {
    /// Unsignaled requests that must have succeeded, in order.
    pub silent: Vec<u64>,
    /// The completed request.
    pub wr_id: u64,
    /// Its outcome.
    pub status: WcStatus,
}

/// Model of one QP's send queue.
#[derive(Debug, Default)]
pub struct SendOrder {
    outstanding: VecDeque<(u64, bool)>,
    failed: bool,
}

impl SendOrder {
    /// A request was posted.
    pub fn post(&mut self, wr_id: u64, signaled: bool) {
        self.outstanding.push_back((wr_id, signaled));
    }

    /// Requests that the application has to consider outstanding.
    pub fn len(&self) -> usize {
        self.outstanding.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.outstanding.is_empty()
    }

    /// Whether a request failed.
    pub fn has_failed(&self) -> bool {
        self.failed
    }

    /// The oldest requests, for messages about a hang.
    pub fn oldest(&self) -> Option<u64> {
        self.outstanding.front().map(|(wr_id, _)| *wr_id)
    }

    /// Whether no outstanding request has to complete, now that the QP is in error and every
    /// completion was polled.
    pub fn is_drained(&self) -> bool {
        self.outstanding.iter().all(|(_, signaled)| !signaled && !self.failed)
    }

    /// Resets the model, for a QP that was drained and reset. Returns unsignaled requests that were
    /// not flushed: they must have succeeded.
    pub fn reset(&mut self) -> Vec<u64> {
        self.failed = false;
        self.outstanding.drain(..).map(|(wr_id, _)| wr_id).collect()
    }

    /// A completion came.
    ///
    /// # Errors
    /// The rule it breaks.
    pub fn complete(&mut self, wr_id: u64, status: WcStatus) -> Result<Retired, String> {
        let mut silent = Vec::new();
        let signaled = loop {
            match self.outstanding.pop_front() {
                None => {
                    return Err(format!(
                        "request {wr_id:#x} completed ({status}) but is not outstanding: \
                         twice, or never posted"
                    ));
                }
                Some((front, signaled)) if front == wr_id => break signaled,
                Some((front, true)) => {
                    return Err(format!(
                        "request {wr_id:#x} ({status}) overtook signaled request {front:#x}"
                    ));
                }
                Some((front, false)) if self.failed => {
                    return Err(format!("request {front:#x} behind a failed one was not flushed"));
                }
                Some((front, false)) => silent.push(front),
            }
        };
        let success = status == WcStatus::Success;
        if success && !signaled {
            return Err(format!("unsignaled request {wr_id:#x} succeeded with a completion"));
        }
        if self.failed && status != WcStatus::WrFlushErr {
            return Err(format!("request {wr_id:#x} behind a failed one completed with {status}"));
        }
        self.failed |= !success;
        Ok(Retired { silent, wr_id, status })
    }
}

/// Model of a receive queue: completions come in the order of posting, except from a shared one.
#[derive(Debug)]
pub enum RecvOrder {
    /// A queue of one QP.
    Own(VecDeque<u64>),
    /// Shared: any outstanding one.
    Shared(BTreeSet<u64>),
}

impl RecvOrder {
    /// A receive was posted.
    pub fn post(&mut self, wr_id: u64) {
        match self {
            RecvOrder::Own(queue) => queue.push_back(wr_id),
            RecvOrder::Shared(set) => {
                set.insert(wr_id);
            }
        }
    }

    /// Receives outstanding.
    pub fn len(&self) -> usize {
        match self {
            RecvOrder::Own(queue) => queue.len(),
            RecvOrder::Shared(set) => set.len(),
        }
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A receive completed, successfully or not.
    ///
    /// # Errors
    /// The rule it breaks.
    pub fn complete(&mut self, wr_id: u64) -> Result<(), String> {
        match self {
            RecvOrder::Own(queue) => match queue.pop_front() {
                Some(front) if front == wr_id => Ok(()),
                Some(front) => {
                    Err(format!("receive {wr_id:#x} completed before receive {front:#x}"))
                }
                None => Err(format!("receive {wr_id:#x} completed, but none is outstanding")),
            },
            RecvOrder::Shared(set) => {
                let known = set.remove(&wr_id);
                known.then_some(()).ok_or_else(|| {
                    format!("shared receive {wr_id:#x} completed, but is not outstanding")
                })
            }
        }
    }
}
