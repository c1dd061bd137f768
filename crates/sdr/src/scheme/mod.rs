//! Reliability schemes: what to do about chunks that are missing.
//!
//! A scheme is two state machines for each message, one at each end, which see the bitmap, a
//! control channel that may lose what it carries, and a timer, and which decide what to send and
//! when the message is complete. [`SelectiveRepeat`] and [`ErasureCoding`] are written against
//! nothing but this module's public face, and so can others be.

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
    /// What users call it. Both ends of a connection must have the same schemes.
    fn name(&self) -> String;

    /// Whether it sends parity chunks, so that memory for them is needed at the sender.
    fn uses_parity(&self) -> bool {
        false
    }

    /// What to expect of it for such a message over such a round trip, in the planner's terms;
    /// `None` keeps it out of what [`Auto`] chooses from.
    fn model(&self, shape: &Shape, rtt_ns: u64) -> Option<Model> {
        let _ = (shape, rtt_ns);
        None
    }

    /// For a scheme that only decides which of the connection's others a message takes: what
    /// decides for one connection.
    fn chooser(&self) -> Option<Box<dyn Chooser>> {
        None
    }

    /// The sending end of one message.
    fn sender(&self, shape: &Shape) -> Box<dyn SchemeSender>;

    /// The receiving end of one message.
    fn receiver(&self, shape: &Shape) -> Box<dyn SchemeReceiver>;
}

/// A chunk of a message, of data or of parity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Part {
    /// A data chunk, counted through the message.
    Data(u32),
    /// A parity chunk of a group.
    Parity {
        /// The group.
        group: u32,
        /// Which of its parity chunks.
        index: u32,
    },
}

/// The sending end of a message. It need not know when the message is over: the receiving end says
/// so, and then this one is dropped.
pub trait SchemeSender: Send {
    /// The peer's buffer is there: send.
    fn start(&mut self, cx: &mut SendCx<'_>);

    /// A chunk has left the host.
    fn injected(&mut self, cx: &mut SendCx<'_>, part: Part) {
        let _ = (cx, part);
    }

    /// The receiving end has said something with [`RecvCx::tell`].
    fn control(&mut self, cx: &mut SendCx<'_>, message: &[u8]);

    /// The time of [`SendCx::set_timer`] has come.
    fn timeout(&mut self, cx: &mut SendCx<'_>);
}

/// The receiving end of a message, from when the message is known to have begun until it calls
/// [`RecvCx::complete`].
pub trait SchemeReceiver: Send {
    /// The message has begun; some of it may be there already.
    fn start(&mut self, cx: &mut RecvCx<'_>) {
        self.progress(cx);
    }

    /// Chunks have arrived.
    fn progress(&mut self, cx: &mut RecvCx<'_>);

    /// The sending end has said something with [`SendCx::tell`].
    fn control(&mut self, cx: &mut RecvCx<'_>, message: &[u8]) {
        let _ = (cx, message);
    }

    /// The sending end has heard nothing for a while and wants to know where things stand.
    fn probe(&mut self, cx: &mut RecvCx<'_>);

    /// The time of [`RecvCx::set_timer`] has come.
    fn timeout(&mut self, cx: &mut RecvCx<'_>);
}

/// The schemes that come with the crate, by the names that users know: `sr-rto`, `sr-nack`,
/// `ec-xor`, `ec-mds`, and `auto`, which takes one of them for each message.
pub fn standard() -> Vec<Arc<dyn Scheme>> {
    vec![
        Arc::new(SelectiveRepeat::with_nack()),
        Arc::new(SelectiveRepeat::with_timeouts()),
        Arc::new(ErasureCoding::mds()),
        Arc::new(ErasureCoding::xor()),
        Arc::new(Auto),
    ]
}
