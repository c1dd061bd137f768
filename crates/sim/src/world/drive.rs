//! The loop: next event, then everything the engines and the application make of it.

use bowline_nic::Time;

use super::host::NicId;
use super::{App, World};
use crate::event::Event;
use crate::trace::Record;

/// Rounds of polling and posting after one event. An engine that never becomes idle would hang the
/// world; this bound turns that into a violation.
const MAX_ROUNDS: usize = 10_000;
/// Timeouts of one engine at one instant, for the same reason.
const MAX_TIMEOUTS_PER_INSTANT: u32 = 1_000;
/// Packets from one engine at one instant, for the same reason: many times the largest window.
const MAX_PACKETS_PER_INSTANT: usize = 1_000_000;

impl World {
    /// Handles events until `deadline`, or until the application is finished or a rule is broken.
    pub fn run_until(&mut self, app: &mut impl App, deadline: Time) {
        self.settle_all(app);
        while self.fabric.violations.is_empty() && !app.is_finished(self) {
            let Some((at, event)) = self.fabric.queue.pop_until(deadline) else { break };
            debug_assert!(at >= self.fabric.now, "time is monotonic");
            self.fabric.now = at;
            self.fabric.stats.events += 1;
            self.handle(event, app);
        }
        // Virtual time passes even when nothing happens.
        if self.fabric.violations.is_empty() && !app.is_finished(self) {
            self.fabric.now = self.fabric.now.max(deadline);
        }
    }

    /// Handles events until `deadline`, whether the application is finished or not.
    pub fn run_idle(&mut self, app: &mut impl App, deadline: Time) {
        while self.fabric.violations.is_empty() {
            let Some((at, event)) = self.fabric.queue.pop_until(deadline) else { break };
            self.fabric.now = at;
            self.fabric.stats.events += 1;
            self.handle(event, app);
        }
        self.fabric.now = self.fabric.now.max(deadline);
    }

    fn handle(&mut self, event: Event, app: &mut impl App) {
        match event {
            Event::Arrive { link, packet } => {
                if let Some(nic) = self.arrive(link, packet) {
                    self.settle(nic, app);
                }
            }
            Event::Depart { link } => self.fabric.depart(link),
            Event::Pause { link, class, is_on } => self.fabric.pause_link(link, class, is_on),
            Event::SwitchTimeout { node } => self.fabric.switch_timeout(node),
            Event::Timeout { nic } => self.timeout(nic, app),
            Event::Resume { host } => {
                self.resume(host);
                for index in 0..self.hosts[host.0].nics.len() {
                    let nic = self.hosts[host.0].nics[index];
                    self.timeout(nic, app);
                    self.settle(nic, app);
                }
            }
            Event::Gather { host } => {
                // A paused host's packets wait until it resumes.
                if !self.is_paused(host) {
                    self.empty_ring(host);
                    self.settle_touched(app);
                }
            }
            Event::Wake { token } => {
                self.fabric.record(Record::Wake, token, 0, || format!("token {token}"));
                app.on_timer(self, token);
                self.settle_all(app);
            }
        }
    }

    fn timeout(&mut self, nic: NicId, app: &mut impl App) {
        let engine = &mut self.engines[nic.0];
        engine.armed = Time::NEVER;
        if self.hosts[engine.host.0].paused_until > self.fabric.now {
            return; // `Resume` comes back to it.
        }
        let due = engine.nic.poll_timeout().is_some_and(|at| at <= self.fabric.now);
        if due {
            engine.nic.handle_timeout(self.fabric.now);
            self.touch(nic);
            self.fabric.stats.timeouts += 1;
            self.fabric.record(Record::Timeout, nic.0 as u64, 0, || format!("nic{}", nic.0));
            self.check_spin(nic);
            self.settle(nic, app);
        } else {
            self.arm(nic);
        }
    }

    /// A timeout that is still due after it was handled would stop the world's clock.
    fn check_spin(&mut self, nic: NicId) {
        let engine = &mut self.engines[nic.0];
        if engine.last_timeout != self.fabric.now {
            (engine.last_timeout, engine.timeouts_now) = (self.fabric.now, 0);
        }
        engine.timeouts_now += 1;
        if engine.timeouts_now > MAX_TIMEOUTS_PER_INSTANT {
            self.fabric.violate(format!("nic{}: handle_timeout leaves its timeout due", nic.0));
        }
    }

    /// Polls an engine and calls the application, until both are idle; then does the same for
    /// engines that the application touched meanwhile.
    fn settle(&mut self, nic: NicId, app: &mut impl App) {
        self.settle_one(nic, app);
        self.settle_touched(app);
    }

    fn settle_one(&mut self, nic: NicId, app: &mut impl App) {
        for _ in 0..MAX_ROUNDS {
            self.pump(nic);
            if !app.on_activity(self, nic) && !self.engines[nic.0].touched {
                return;
            }
        }
        self.fabric.violate(format!("nic{} and its application never become idle", nic.0));
    }

    fn settle_touched(&mut self, app: &mut impl App) {
        for _ in 0..MAX_ROUNDS + self.engines.len() {
            let Some(nic) = self.touched.pop() else { return };
            let engine = &self.engines[nic.0];
            // Engines of paused hosts are polled when these resume.
            if engine.touched && !self.is_paused(engine.host) {
                self.settle_one(nic, app);
            }
        }
        self.fabric.violate("engines and their applications never become idle".to_owned());
    }

    fn settle_all(&mut self, app: &mut impl App) {
        for index in 0..self.engines.len() {
            if !self.is_paused(self.engines[index].host) {
                self.settle(NicId(index), app);
            }
        }
    }

    /// Takes all packets that an engine has to send now, and notes its next timeout.
    fn pump(&mut self, nic: NicId) {
        if !std::mem::take(&mut self.engines[nic.0].touched) {
            return;
        }
        let host = self.engines[nic.0].host.0;
        let index = self.hosts[host].batch;
        // Taken out for the duration of the loop, in which the world sends its contents.
        let mut batch = self.batches[index].batch.take().expect("a batch is put back");
        let mut sent = 0;
        loop {
            batch.clear();
            self.engines[nic.0].nic.poll_transmit(self.fabric.now, &mut batch);
            if batch.is_empty() && !self.engines[nic.0].nic.is_ready() {
                break;
            }
            sent += batch.len();
            self.transmit(nic, &batch);
            if sent > MAX_PACKETS_PER_INSTANT {
                self.fabric.violate(format!("nic{} never stops sending", nic.0));
                break;
            }
        }
        batch.clear();
        self.batches[index].batch = Some(batch);
        self.arm(nic);
    }

    /// Queues a wake-up for the engine's next timeout, unless an earlier one is queued already.
    fn arm(&mut self, nic: NicId) {
        let engine = &mut self.engines[nic.0];
        if let Some(at) = engine.nic.poll_timeout() {
            let at = at.max(self.fabric.now);
            if at < engine.armed {
                engine.armed = at;
                self.fabric.queue.push(at, Event::Timeout { nic });
            }
        }
    }
}
