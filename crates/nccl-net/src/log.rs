//! NCCL's own log, where users look.

use std::ffi::{CString, c_int};
use std::sync::RwLock;

use crate::abi::Logger;

const WARN: c_int = 2;
const INFO: c_int = 3;
/// NCCL's subsystem for networks.
const NET: u64 = 0x10;

static LOGGER: RwLock<Option<Logger>> = RwLock::new(None);

/// Sends all further messages to NCCL's function.
pub(crate) fn set(logger: Option<Logger>) {
    if let (Some(_), Ok(mut place)) = (logger, LOGGER.write()) {
        *place = logger;
    }
}

/// Logs something that a user has to know.
pub(crate) fn warn(text: &str) {
    tell(WARN, text);
}

/// Logs something that helps to explain.
pub(crate) fn info(text: &str) {
    tell(INFO, text);
}

fn tell(level: c_int, text: &str) {
    let Ok(Some(logger)) = LOGGER.read().map(|logger| *logger) else { return };
    let text = format!("NET/Bowline : {}", text.replace('\0', "\\0"));
    let Ok(text) = CString::new(text) else { return };
    let file = c"bowline".as_ptr();
    // SAFETY: NCCL provided the function, which takes a format and its arguments. The format is
    // ours and takes one string; both strings outlive the call.
    unsafe { logger(level, NET, file, 0, c"%s".as_ptr(), text.as_ptr()) };
}
