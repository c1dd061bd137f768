//! The queues between applications and QPs.

mod cq;
mod recv;
mod send;
mod srq;

pub use cq::CqLevel;
pub(crate) use cq::CqTable;
pub(crate) use recv::{RecvQueue, RecvWqe};
pub(crate) use send::{MAX_MESSAGE, SendQueue, Wqe};
pub use srq::SharedSrq;
pub(crate) use srq::{Addressee, SrqTable};

/// Puts a value into the first free slot, growing up to `max`; returns its index.
fn insert<T>(slots: &mut Vec<Option<T>>, max: u32, value: T) -> Option<u32> {
    let at = match slots.iter().position(Option::is_none) {
        Some(at) => at,
        None if slots.len() < max as usize => {
            slots.push(None);
            slots.len() - 1
        }
        None => return None,
    };
    slots[at] = Some(value);
    Some(at as u32)
}
