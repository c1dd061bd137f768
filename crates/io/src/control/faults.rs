//! Reports a device's faults and applies requested ones.

use std::sync::Arc;

use super::account::quote;
use crate::fault::{FaultRequest, LinkState};
use crate::{Faults, Lane};

/// A device's link and faults, as one line of JSON.
pub(super) fn state(device: &str, lanes: &[Arc<Lane>]) -> String {
    let Some(lane) = lanes.first() else { return String::new() };
    // Faults are applied to every lane.
    let orders = lane.faults().map(Faults::list).unwrap_or_default();
    let orders: Vec<String> = orders
        .iter()
        .map(|(action, left)| {
            let left = left.map_or("null".to_owned(), |left| left.as_millis().to_string());
            format!("{{\"fault\":{},\"left_ms\":{left}}}", quote(&action.to_string()))
        })
        .collect();
    let up = lanes.iter().any(|lane| lane.link() == LinkState::Up);
    let link = if up { "up" } else { "down" };
    format!(
        "{{\"pid\":{},\"program\":{},\"device\":{},\"addr\":\"{}\",\"link\":\"{link}\",\"faults\":[{}]}}",
        std::process::id(),
        quote(&std::env::args().next().unwrap_or_default()),
        quote(device),
        lane.port_caps().addr,
        orders.join(",")
    )
}

/// Applies a fault request and returns the resulting state, or an error as JSON.
pub(super) fn order(device: &str, lanes: &[Arc<Lane>], request: &str) -> String {
    let error = |why: &str| format!("{{\"error\":{}}}", quote(why));
    if lanes.iter().all(|lane| lane.faults().is_none()) {
        return error("this device cannot be made to fail");
    }
    match request.parse::<FaultRequest>() {
        Ok(request) => {
            lanes.iter().filter_map(|lane| lane.faults()).for_each(|faults| faults.apply(&request));
            state(device, lanes)
        }
        Err(why) => error(&why.to_string()),
    }
}
