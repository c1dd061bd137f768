//! After healing the world becomes quiescent: nothing in flight, no timer with work to do.

use bowline_nic::Time;

use crate::world::{App, NicId, World};

/// How far ahead a timer may lie at quiescence. Engines may keep slow housekeeping timers.
pub const IDLE_TIMER_NS: u64 = 1_000_000;

/// The world's state when all work was done, for later comparison.
#[derive(Clone, Copy, Debug)]
pub struct Rest {
    time: Time,
    sent: u64,
    timeouts: u64,
}

impl Rest {
    /// Waits `rest_ns` for packets in flight to arrive, then watches for as long whether anything
    /// still moves.
    ///
    /// # Errors
    /// What is not quiescent.
    pub fn watch(world: &mut World, app: &mut impl App, rest_ns: u64) -> Result<(), String> {
        let calm = world.now().plus_nanos(rest_ns);
        world.run_idle(app, calm);
        let at_rest = Rest::of(world);
        let end = world.now().plus_nanos(rest_ns);
        world.run_idle(app, end);
        at_rest.check(world)
    }

    /// The world's current state.
    pub fn of(world: &World) -> Rest {
        Rest { time: world.now(), sent: world.stats().sent, timeouts: world.stats().timeouts }
    }

    /// Whether nothing was sent since, and no engine kept itself busy.
    ///
    /// # Errors
    /// What is not quiescent.
    pub fn check(&self, world: &World) -> Result<(), String> {
        let sent = world.stats().sent - self.sent;
        if sent > 0 {
            return Err(format!("{sent} packets were sent after all work was done"));
        }
        if world.in_flight() > 0 {
            return Err(format!("{} packets are still in flight", world.in_flight()));
        }
        let idle_ns = world.now().nanos_since(self.time).max(1);
        let timeouts = world.stats().timeouts - self.timeouts;
        if timeouts.saturating_mul(IDLE_TIMER_NS) > idle_ns.saturating_mul(world.nic_count() as u64)
        {
            return Err(format!("{timeouts} timeouts in {idle_ns} ns at rest"));
        }
        for nic in (0..world.nic_count()).map(NicId) {
            if world.nic(nic).poll_timeout().is_some_and(|at| at <= world.now()) {
                return Err(format!("nic{} has a timeout that is due and never handled", nic.0));
            }
        }
        Ok(())
    }
}
