//! What the measurements come to.

use std::collections::BTreeMap;
use std::fmt::Write;

use bowline_bench_common::bars::{self, Bar};
use bowline_bench_common::samples::median;
use serde_json::{Map, json};

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Variant {
    One,
    TwoCqs,
    OneCq,
    Apart,
    UdpOne,
    UdpFour,
}

impl Variant {
    fn name(self) -> &'static str {
        match self {
            Variant::One => "one lane",
            Variant::TwoCqs => "two lanes, a CQ each",
            Variant::OneCq => "two lanes, one CQ",
            Variant::Apart => "two devices (bound)",
            Variant::UdpOne => "one lane over UDP",
            Variant::UdpFour => "four lanes over UDP",
        }
    }

    /// What its ratio is called, what it is taken to, and its bar.
    fn bar(self) -> Option<(&'static str, Variant, f64)> {
        match self {
            Variant::TwoCqs => Some(("two_lanes", Variant::One, 1.85)),
            Variant::OneCq => Some(("two_lanes_one_cq", Variant::One, 1.7)),
            Variant::UdpFour => Some(("four_lanes_udp", Variant::UdpOne, 3.2)),
            _ => None,
        }
    }
}

/// Samples by message size and variant, one a round.
pub(crate) struct Report {
    samples: BTreeMap<(u32, Variant), Vec<f64>>,
    with_udp: bool,
}

impl Report {
    pub(crate) fn new(with_udp: bool) -> Report {
        Report { samples: BTreeMap::new(), with_udp }
    }

    pub(crate) fn add(&mut self, bytes: u32, variant: Variant, per_second: f64) {
        self.samples.entry((bytes, variant)).or_default().push(per_second);
    }

    /// The median over rounds of the ratio to one lane in the same round.
    fn ratio(&self, bytes: u32, variant: Variant) -> f64 {
        let base = variant.bar().map_or(Variant::One, |(_, base, _)| base);
        let (Some(mine), Some(base)) =
            (self.samples.get(&(bytes, variant)), self.samples.get(&(bytes, base)))
        else {
            return f64::NAN;
        };
        let ratios: Vec<f64> = mine.iter().zip(base).map(|(mine, base)| mine / base).collect();
        median(&ratios)
    }

    pub(crate) fn bars(&self) -> Vec<Bar> {
        let bar = |&(bytes, variant): &(u32, Variant)| {
            let (name, _, least) = variant.bar()?;
            Some(Bar::at_least(format!("{name}_{bytes}"), self.ratio(bytes, variant), least))
        };
        self.samples.keys().filter_map(bar).collect()
    }

    pub(crate) fn table(&self) -> String {
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "{:>8}  {:<22} {:>10}  {:>8}  {:>6}",
            "bytes", "", "Mpackets/s", "to one", "bar"
        );
        for (&(bytes, variant), samples) in &self.samples {
            let bar = match variant.bar() {
                Some((_, _, bar)) => {
                    let holds = self.ratio(bytes, variant) >= bar;
                    format!("{bar:>6.2}  {}", bars::verdict(holds))
                }
                None => String::new(),
            };
            let rate = median(samples) / 1e6;
            let ratio = self.ratio(bytes, variant);
            let _ = writeln!(
                out,
                "{bytes:>8}  {:<22} {rate:>10.3}  {ratio:>8.2}  {bar}",
                variant.name()
            );
        }
        if !self.with_udp {
            out.push_str("four lanes over UDP: not measured, since it takes eight cores\n");
        }
        out
    }

    /// One object on one line.
    pub(crate) fn json(&self) -> String {
        let mut object = Map::new();
        for (&(bytes, variant), samples) in &self.samples {
            let name = format!("packets_per_s, {}, {bytes} B", variant.name());
            object.insert(name, json!(median(samples).round()));
        }
        for bytes in [4096, 64] {
            object.insert(format!("bound_{bytes}"), json!(self.ratio(bytes, Variant::Apart)));
        }
        object.insert("udp_measured".into(), json!(self.with_udp));
        bars::json(&self.bars(), object)
    }
}
