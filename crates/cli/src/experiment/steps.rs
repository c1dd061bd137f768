//! `bowline sim run auto`: a connection that chooses its scheme, on links whose loss rate changes
//! in steps.

use std::sync::atomic::{AtomicUsize, Ordering};

use bowline::Mtu;
use bowline_chart::{Page, text};
use bowline_sim::experiment::{SCHEMES, StepsConfig, StepsRun, hindsight_s, steps};
use serde::Deserialize;
use serde_json::{Value, json};

/// The experiment, as in its TOML file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct StepsPlan {
    pub(super) title: String,
    pub(super) about: String,
    /// Packet loss probabilities, phase by phase.
    losses: Vec<f64>,
    /// Number of seeds for each link.
    seeds: u64,
    quick_seeds: u64,
    /// The maximum time relative to the best choice in hindsight, as a factor.
    bound: f64,
    link: Vec<LinkPlan>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct LinkPlan {
    name: String,
    bandwidth_mbps: f64,
    rtt_ms: f64,
    mtu: u32,
    packets_per_chunk: u32,
    size_kib: u64,
    messages: u32,
    quick_messages: u32,
}

/// One link with one seed: every scheme alone, and the connection that chooses.
pub(super) struct Outcome {
    link: String,
    seed: u64,
    fixed: Vec<StepsRun>,
    auto: StepsRun,
}

impl Outcome {
    fn ratio(&self) -> f64 {
        self.auto.phases_s.iter().sum::<f64>() / hindsight_s(&self.fixed)
    }
}

impl StepsPlan {
    fn configs(&self, quick: bool) -> Result<Vec<(String, StepsConfig)>, String> {
        let mut configs = Vec::new();
        let seeds = if quick { self.quick_seeds } else { self.seeds };
        for link in &self.link {
            let mtu = Mtu::from_bytes(link.mtu).ok_or(format!("{} is no MTU", link.mtu))?;
            for seed in 0..seeds {
                let config = StepsConfig {
                    seed,
                    bandwidth_bps: (link.bandwidth_mbps * 1e6) as u64,
                    rtt_ns: (link.rtt_ms * 1e6) as u64,
                    mtu,
                    packets_per_chunk: link.packets_per_chunk,
                    bytes: link.size_kib << 10,
                    packet_losses: self.losses.clone(),
                    messages: if quick { link.quick_messages } else { link.messages },
                };
                configs.push((link.name.clone(), config));
            }
        }
        Ok(configs)
    }

    /// The number of connections to run.
    pub(super) fn runs(&self, quick: bool) -> Result<usize, String> {
        Ok(self.configs(quick)?.len() * (SCHEMES.len() + 1))
    }

    /// Runs all links on `jobs` threads; calls `progress` after each connection.
    pub(super) fn run(
        &self,
        quick: bool,
        jobs: usize,
        progress: impl Fn() + Sync,
    ) -> Result<Vec<Outcome>, String> {
        let configs = self.configs(quick)?;
        let schemes: Vec<&str> = SCHEMES.into_iter().chain(["auto"]).collect();
        let next = AtomicUsize::new(0);
        let work = || {
            let mut runs = Vec::new();
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some((_, config)) = configs.get(index / schemes.len()) else { return runs };
                runs.push((index, steps(config, schemes[index % schemes.len()])));
                progress();
            }
        };
        let mut runs: Vec<(usize, Option<StepsRun>)> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..jobs.max(1)).map(|_| scope.spawn(work)).collect();
            workers.into_iter().flat_map(|w| w.join().expect("a worker does not panic")).collect()
        });
        runs.sort_by_key(|(index, _)| *index);
        let runs: Option<Vec<StepsRun>> = runs.into_iter().map(|(_, run)| run).collect();
        let runs = runs.ok_or("a message failed")?;
        let each = configs.into_iter().zip(runs.chunks(schemes.len()));
        Ok(each
            .filter_map(|((link, config), runs)| {
                let (auto, fixed) = runs.split_last()?;
                let (fixed, auto) = (fixed.to_vec(), auto.clone());
                Some(Outcome { link, seed: config.seed, fixed, auto })
            })
            .collect())
    }

    pub(super) fn broken(&self, outcomes: &[Outcome]) -> Vec<String> {
        let over = outcomes.iter().filter(|outcome| outcome.ratio() > self.bound);
        over.map(|o| {
            format!("{}, seed {}: {:.3} is more than {}", o.link, o.seed, o.ratio(), self.bound)
        })
        .collect()
    }

    /// The outcomes as text.
    pub(super) fn table(&self, outcomes: &[Outcome]) -> String {
        let mut out = format!("{}\n{:<44} {:>4} {:<8}", self.title, "link", "seed", "scheme");
        self.losses.iter().for_each(|loss| out += &format!(" {:>9}", text::loss(*loss)));
        out += &format!(" {:>9} {:>9}\n", "all", "hindsight");
        for outcome in outcomes {
            for run in outcome.fixed.iter().chain([&outcome.auto]) {
                out += &format!("{:<44} {:>4} {:<8}", outcome.link, outcome.seed, run.scheme);
                run.phases_s.iter().for_each(|s| out += &format!(" {:>9}", text::time(*s)));
                let all: f64 = run.phases_s.iter().sum();
                let ratio = all / hindsight_s(&outcome.fixed);
                out += &format!(" {:>9} {ratio:>8.3}x\n", text::time(all));
            }
        }
        for broken in self.broken(outcomes) {
            out += &format!("DOES NOT HOLD: {broken}\n");
        }
        out
    }

    /// The outcomes as an HTML page.
    pub(super) fn page(&self, name: &str, outcomes: &[Outcome]) -> String {
        let mut page = Page::new(&self.title, &format!("bowline sim run {name}"));
        page.paragraph(&self.about);
        let losses: Vec<String> = self.losses.iter().map(|loss| text::loss(*loss)).collect();
        let head = ["link", "seed", "scheme"].into_iter().chain(losses.iter().map(String::as_str));
        let head: Vec<&str> = head.chain(["all", "over hindsight"]).collect();
        let mut rows = Vec::new();
        for outcome in outcomes {
            for run in outcome.fixed.iter().chain([&outcome.auto]) {
                let all: f64 = run.phases_s.iter().sum();
                let ratio = text::factor(all / hindsight_s(&outcome.fixed));
                let mut row =
                    vec![outcome.link.clone(), outcome.seed.to_string(), run.scheme.clone()];
                row.extend(run.phases_s.iter().map(|s| text::time(*s)));
                row.extend([text::time(all), ratio]);
                rows.push(row);
            }
        }
        page.table(&head, &rows, None);
        let broken = self.broken(outcomes);
        if !broken.is_empty() {
            page.heading("What does not hold").list(&broken);
        }
        page.footer(&crate::made::source());
        page.html()
    }

    /// The outcomes as JSON.
    pub(super) fn json(&self, outcomes: &[Outcome]) -> Value {
        let run = |run: &StepsRun| {
            let changes: Vec<Value> = run
                .decisions
                .iter()
                .map(|decision| {
                    json!({
                        "message": decision.id.0,
                        "messages": decision.messages,
                        "scheme": decision.choice.scheme,
                        "why": decision.choice.why.to_string(),
                        "packet_loss": decision.path.packet_loss,
                        "expected_s": decision.choice.expected_s,
                    })
                })
                .collect();
            json!({ "scheme": run.scheme, "phases_s": run.phases_s, "decisions": changes })
        };
        let rows: Vec<Value> = outcomes
            .iter()
            .map(|o| {
                let fixed: Vec<Value> = o.fixed.iter().map(run).collect();
                json!({
                    "link": o.link,
                    "seed": o.seed,
                    "fixed": fixed,
                    "auto": run(&o.auto),
                    "hindsight_s": hindsight_s(&o.fixed),
                    "ratio": o.ratio(),
                })
            })
            .collect();
        let broken = self.broken(outcomes);
        json!({ "losses": self.losses, "rows": rows, "broken": broken, "ok": broken.is_empty() })
    }
}
