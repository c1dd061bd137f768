//! Reliability schemes, which handle missing chunks.
//!
//! A scheme is a pair of state machines for each message, one at each end. They see the bitmap, a
//! lossy control channel and a timer, and decide what to send and when the message is complete.
//! [`SelectiveRepeat`] and [`ErasureCoding`] use only this module's public interface, so users can
//! write others.

mod auto;
mod choice;
mod erasure;
mod repeat;

use std::fmt;
use std::sync::Arc;

use crate::reliable::Shape;
pub use crate::reliable::{RecvCx, SendCx};
pub use auto::Auto;
pub use bowline_plan::Scheme as Model;
pub(crate) use choice::DecisionLog;
pub use choice::{Choice, ChoiceCx, Chooser, Decision, KnownPath, Why};
pub use erasure::ErasureCoding;
pub use repeat::SelectiveRepeat;

/// A way to make messages reliable.
pub trait Scheme: Send + Sync + fmt::Debug {
    /// Its name for users. Both ends of a connection must have the same schemes.
    fn name(&self) -> String;

    /// Whether it sends parity chunks, so that memory for them is needed at the sender.
    fn uses_parity(&self) -> bool {
        false
    }

    /// Its model for such a message and round trip, in the planner's terms; `None` excludes it from
    /// the choices of [`Auto`].
    fn model(&self, shape: &Shape, rtt_ns: u64) -> Option<Model> {
        let _ = (shape, rtt_ns);
        None
    }

    /// For a scheme that only chooses among the connection's others: the chooser of one connection.
    fn chooser(&self) -> Option<Box<dyn Chooser>> {
        None
    }

    /// The sending end of one message.
    fn sender(&self, shape: &Shape) -> Box<dyn SchemeSender>;

    /// The receiving end of one message.
    fn receiver(&self, shape: &Shape) -> Box<dyn SchemeReceiver>;
}

/// A data or parity chunk of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Part {
    /// A data chunk, numbered within the message.
    Data(u32),
    /// A parity chunk of a group.
    Parity {
        /// The group.
        group: u32,
        /// Which of its parity chunks.
        index: u32,
    },
}

/// The sending end of a message. It need not know when the message is over: it is dropped when the
/// receiving end reports that.
pub trait SchemeSender: Send {
    /// The peer's buffer is posted: send.
    fn start(&mut self, cx: &mut SendCx<'_>);

    /// A chunk has left the host.
    fn injected(&mut self, cx: &mut SendCx<'_>, part: Part) {
        let _ = (cx, part);
    }

    /// A message from the receiving end ([`RecvCx::tell`]).
    fn control(&mut self, cx: &mut SendCx<'_>, message: &[u8]);

    /// The timer of [`SendCx::set_timer`] has expired.
    fn timeout(&mut self, cx: &mut SendCx<'_>);
}

/// The receiving end of a message, from when the message is known to have begun until it calls
/// [`RecvCx::complete`].
pub trait SchemeReceiver: Send {
    /// The message has begun; some of it may have arrived already.
    fn start(&mut self, cx: &mut RecvCx<'_>) {
        self.progress(cx);
    }

    /// Chunks have arrived.
    fn progress(&mut self, cx: &mut RecvCx<'_>);

    /// A message from the sending end ([`SendCx::tell`]).
    fn control(&mut self, cx: &mut RecvCx<'_>, message: &[u8]) {
        let _ = (cx, message);
    }

    /// The sending end has heard nothing for a while and asks for the state.
    fn probe(&mut self, cx: &mut RecvCx<'_>);

    /// The timer of [`RecvCx::set_timer`] has expired.
    fn timeout(&mut self, cx: &mut RecvCx<'_>);
}

/// The schemes of this crate, by their names for users: `sr-rto`, `sr-nack`, `ec-xor`, `ec-mds`,
/// and `auto`, which chooses one of them for each message.
pub fn standard() -> Vec<Arc<dyn Scheme>> {
    vec![
        Arc::new(SelectiveRepeat::with_nack()),
        Arc::new(SelectiveRepeat::with_timeouts()),
        Arc::new(ErasureCoding::mds()),
        Arc::new(ErasureCoding::xor()),
        Arc::new(Auto),
    ]
}
