//! Serves metrics to Prometheus.

use std::net::SocketAddr;
use std::sync::Arc;

use super::metrics;
use super::sample::Sample;
use crate::http::{self, Response};

/// Starts the server and returns its address.
pub(super) fn start(addr: SocketAddr) -> Result<SocketAddr, String> {
    http::start(addr, "metrics", Arc::new(answer))
}

fn answer(path: &str) -> Option<Response> {
    if !matches!(path, "/metrics" | "/") {
        return Some(Response::text("404 Not Found", "metrics are at /metrics"));
    }
    Some(match Sample::take() {
        Ok(sample) => Response {
            status: "200 OK",
            headers: "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n",
            body: metrics::text(&sample).into_bytes().into(),
        },
        Err(error) => Response::text("500 Internal Server Error", &format!("cannot look: {error}")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_at_their_path_and_nothing_else_is() {
        for path in ["/metrics", "/"] {
            assert_eq!(answer(path).unwrap().status, "200 OK");
        }
        assert!(answer("/secret").unwrap().status.starts_with("404"));
    }
}
