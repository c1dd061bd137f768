//! The set of faults, and their combined effect at a given time. Reads no clock.

use std::time::{Duration, Instant};

use bowline_link::Loss;

use super::action::{Direction, FaultAction, FaultRequest};

/// At most one fault of each kind: a later one replaces an earlier one.
#[derive(Debug, Default)]
pub(super) struct Plan {
    orders: Vec<Order>,
    /// Counts requests, so that a new loss request draws afresh.
    count: u64,
}

#[derive(Clone, Copy, Debug)]
struct Order {
    action: FaultAction,
    since: Instant,
    until: Option<Instant>,
    number: u64,
}

/// What to do to packets.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Effects {
    /// The link is down.
    pub(super) down: bool,
    /// Nothing comes in.
    pub(super) drop_in: bool,
    /// Nothing goes out.
    pub(super) drop_out: bool,
    /// Random loss: the request's number, the model and the seed.
    pub(super) loss: Option<(u64, Loss, u64)>,
    /// When the effects may change.
    pub(super) until: Option<Instant>,
}

/// Requests of one kind replace each other.
#[derive(PartialEq, Eq)]
enum Kind {
    Link,
    Loss,
    In,
    Out,
}

fn kind_of(action: FaultAction) -> Option<Kind> {
    match action {
        FaultAction::Down | FaultAction::Up | FaultAction::Flap(_) => Some(Kind::Link),
        FaultAction::Loss { .. } => Some(Kind::Loss),
        FaultAction::Blackhole(Direction::In) => Some(Kind::In),
        FaultAction::Blackhole(Direction::Out) => Some(Kind::Out),
        FaultAction::Clear => None,
    }
}

impl Plan {
    pub(super) fn apply(&mut self, request: &FaultRequest, now: Instant) {
        let FaultRequest { action, lasts } = *request;
        self.expire(now);
        let kind = kind_of(action);
        self.orders.retain(|order| kind.is_some() && kind_of(order.action) != kind);
        let ends = matches!(
            action,
            FaultAction::Up | FaultAction::Clear | FaultAction::Loss { loss: Loss::None, .. }
        );
        if !ends {
            self.count += 1;
            // An end beyond the clock's range means never.
            let until = lasts.and_then(|lasts| now.checked_add(lasts));
            self.orders.push(Order { action, since: now, until, number: self.count });
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.orders.is_empty()
    }

    /// Removes faults that have ended by themselves.
    pub(super) fn expire(&mut self, now: Instant) {
        self.orders.retain(|order| order.until.is_none_or(|until| until > now));
    }

    pub(super) fn effects(&self, now: Instant) -> Effects {
        let mut effects = Effects::default();
        for order in self.orders.iter().filter(|o| o.until.is_none_or(|until| until > now)) {
            let mut until = order.until;
            match order.action {
                FaultAction::Down => effects.down = true,
                FaultAction::Flap(period) => {
                    let (down, next) = flap(order.since, period, now);
                    effects.down = down;
                    until = earlier(until, next);
                }
                FaultAction::Loss { loss, seed } => {
                    effects.loss = Some((order.number, loss, seed));
                }
                FaultAction::Blackhole(Direction::In) => effects.drop_in = true,
                FaultAction::Blackhole(Direction::Out) => effects.drop_out = true,
                FaultAction::Up | FaultAction::Clear => {}
            }
            effects.until = earlier(effects.until, until);
        }
        effects.drop_in |= effects.down;
        effects.drop_out |= effects.down;
        effects
    }

    pub(super) fn list(&self, now: Instant) -> Vec<(FaultAction, Option<Duration>)> {
        self.orders
            .iter()
            .filter(|order| order.until.is_none_or(|until| until > now))
            .map(|order| (order.action, order.until.map(|u| u.saturating_duration_since(now))))
            .collect()
    }
}

/// Whether a flapping link is down, and when it changes next.
fn flap(since: Instant, period: Duration, now: Instant) -> (bool, Option<Instant>) {
    let period_ns = period.as_nanos().max(1);
    let elapsed_ns = now.saturating_duration_since(since).as_nanos();
    let turn = elapsed_ns / period_ns;
    let left_ns = (turn + 1) * period_ns - elapsed_ns;
    let left = Duration::from_nanos(u64::try_from(left_ns).unwrap_or(u64::MAX));
    (turn.is_multiple_of(2), now.checked_add(left))
}

fn earlier(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    a.into_iter().chain(b).min()
}
