//! Memory stays bounded: queues never exceed their capacity.

use crate::world::World;

/// Packets that may be in flight at once in any scenario: windows and queues are a few MiB, so
/// anything near this is a flood.
pub const MAX_IN_FLIGHT_PACKETS: usize = 200_000;

/// Checks queues and the number of packets that were in flight.
///
/// # Errors
/// The bound that was exceeded.
pub fn check(world: &World) -> Result<(), String> {
    check_queues(world)?;
    let peak = world.stats().in_flight_peak;
    if peak > MAX_IN_FLIGHT_PACKETS {
        return Err(format!("{peak} packets in flight"));
    }
    Ok(())
}

/// Checks queues alone.
///
/// # Errors
/// The queue that held more than it may.
pub fn check_queues(world: &World) -> Result<(), String> {
    for (id, link) in world.network().links() {
        let (peak, limit) = (link.stats().queue_peak_bytes, link.config().queue_bytes);
        if peak > limit {
            return Err(format!("link {} held {peak} bytes in a queue of {limit}", id.0));
        }
    }
    Ok(())
}
