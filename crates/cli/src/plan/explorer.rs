//! The planner's web page: written to a file, or served on loopback.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use bowline_planner::page;

use crate::http::{self, Response};
use crate::{interrupt, made, output};

/// The page may load and send nothing: it contains everything that it needs.
const HEADERS: &str = "Content-Type: text/html; charset=utf-8\r\n\
    Cache-Control: no-cache\r\nReferrer-Policy: no-referrer\r\n";
/// How often the server checks whether it should exit.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The page, with its initial state.
pub(super) fn html(state: &str) -> String {
    page::html(&made::command(), &made::today(), state)
}

/// Serves the page until Ctrl-C.
pub(super) fn serve(addr: SocketAddr, state: &str) -> Result<(), String> {
    interrupt::watch();
    let body: Arc<[u8]> = html(state).into_bytes().into();
    let handler = move |path: &str| {
        let page = Response { status: "200 OK", headers: HEADERS, body: body.clone() };
        (path == "/").then_some(page)
    };
    let at = http::start(addr, "the explorer", Arc::new(handler))?;
    output::say(&format!("explorer at http://{at}/ (Ctrl-C ends it)"));
    while interrupt::asked().is_none() {
        thread::sleep(LOOK_EVERY);
    }
    Ok(())
}
