//! Requests that are carried out locally: binding memory windows and revoking their keys.

use crate::memory::AccessDenied;
use crate::qp::{Cx, QpCore};
use crate::types::SendOp;

/// Carries out such a request, whose turn it is.
#[cold]
pub(super) fn execute(core: &QpCore, cx: &mut Cx<'_>, op: &SendOp) -> Result<(), AccessDenied> {
    match op {
        SendOp::BindWindow(binding) => cx.memory.bind_window(core.peer(), binding),
        SendOp::LocalInvalidate(key) => cx.memory.invalidate_window(core.init.pd, *key),
        _ => Ok(()),
    }
}
