//! NCCL's own log, where users look.

use std::ffi::{CString, c_int};
use std::sync::RwLock;

use crate::abi::Logger;

const WARN: c_int = 2;
const INFO: c_int = 3;
/// NCCL's subsystem of networks.
const NET: u64 = 0x10;

static LOGGER: RwLock<Option<Logger>> = RwLock::new(None);

/// From now on what there is to say goes to NCCL's function.
pub(crate) fn set(logger: Option<Logger>) {
    if let (Some(_), Ok(mut place)) = (logger, LOGGER.write()) {
        *place = logger;
    }
}

/// Something that a user has to know.
pub(crate) fn warn(text: &str) {
    tell(WARN, text);
}

/// Something that explains.
pub(crate) fn info(text: &str) {
    tell(INFO, text);
}

fn tell(level: c_int, text: &str) {
    let Ok(Some(logger)) = LOGGER.read().map(|logger| *logger) else { return };
    let text = format!("NET/Bowline : {}", text.replace('\0', "\\0"));
    let Ok(text) = CString::new(text) else { return };
    let file = c"bowline".as_ptr();
    // SAFETY: NCCL gave the function, which takes a format and its arguments. The format is ours
    // and wants one string; both strings last until it returns.
    unsafe { logger(level, NET, file, 0, c"%s".as_ptr(), text.as_ptr()) };
}
