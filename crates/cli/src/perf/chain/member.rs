//! A server of a chain. It forwards messages, and returns acknowledgements.

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bowline::Channel;

use super::super::account::{self, End as Side, Ledger};
use super::super::args::PerfArgs;
use super::super::report::Report;
use super::super::session;
use super::{Broken, End, Eye, Side as Neighbour};
use crate::interrupt;

/// A next server that acknowledges nothing for this long while messages are outstanding is
/// considered broken. The sender waits longer, so that it learns which server it is.
const STALL: Duration = Duration::from_secs(10);

/// Serves until the sender has reported its result for every size.
pub(crate) fn server(
    args: &PerfArgs,
    mut end: End,
    mut channel: Channel,
) -> Result<Report, Box<dyn Error>> {
    let mut report = Report::new(&end.spec, &end.device, !args.json);
    report.print_header();
    for bytes in end.spec.sizes() {
        let mut ledger = Ledger::open(&end.device)?;
        let before = end.received();
        // The listener thread owns the channel while messages flow.
        let mut telling = channel.try_clone()?;
        channel.barrier()?;
        let device = end.device.clone();
        let mut row = session::serve_until_told(&mut channel, &device, |done| {
            let outcome = end.pass_on(bytes, done);
            if let Err(broken) = &outcome {
                // If this fails, the sender still notices that acknowledgements are missing.
                let _ = telling.send(&broken.to_message()?);
            }
            Ok(outcome?)
        })?;
        ledger.stop();
        let ours = ledger.close(&end.device)?;
        let theirs = account::exchange(&mut channel, Some(&ours))?;
        row.add_accounts(&end.spec, Side::Server, &ours, theirs.as_ref());
        let is_interrupted = row.is_interrupted();
        report.add(row);
        if is_interrupted {
            return Ok(report);
        }
        channel.send(&end.memory.digest(before..end.received(), bytes))?;
    }
    channel.barrier()?;
    report.add_counters(&end.device);
    Ok(report)
}

impl End {
    pub(super) fn received(&self) -> u64 {
        self.up.as_ref().map_or(0, |up| up.received)
    }

    /// Forwards messages until the sender has reported its result.
    pub(super) fn pass_on(&mut self, bytes: u32, done: &AtomicBool) -> Result<(), Broken> {
        let mut eye = Eye::new();
        while !done.load(Ordering::Acquire) && interrupt::asked().is_none() {
            self.turn(&mut eye, bytes)?;
            let waits = self.down.as_ref().is_some_and(|down| down.is_waiting());
            if waits && eye.idle() > STALL {
                let secs = STALL.as_secs();
                return Err(Broken::new(
                    Neighbour::Next,
                    format!("it has acknowledged nothing for {secs} s"),
                ));
            }
        }
        Ok(())
    }

    /// Handles everything that is pending.
    fn turn(&mut self, eye: &mut Eye, bytes: u32) -> Result<(), Broken> {
        let End { spec, cq, memory, up: Some(up), down, .. } = self else { return Ok(()) };
        let mut arrived = 0;
        for completion in eye.look(cq).map_err(|e| Broken::new(Neighbour::Previous, e))? {
            match down {
                Some(down) if down.is_of(completion.qpn) => down.on_completion(completion)?,
                _ if up.is_of(completion.qpn) => {
                    arrived += u64::from(up.on_completion(completion, bytes)?);
                }
                _ => {}
            }
        }
        let done = match down {
            Some(down) => {
                for _ in 0..arrived {
                    down.send(memory, spec.test, bytes)?;
                }
                down.done()
            }
            None => up.received,
        };
        up.acknowledge(memory, done)
    }
}
