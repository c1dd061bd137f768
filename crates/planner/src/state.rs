//! The state of the planner's page: the values of its controls, as text.

use std::str::FromStr;

use bowline_plan::{Axis, Goal, Link, Message, PlanError, rtt_of_distance_s};

use crate::parse;
use crate::question::Question;

/// The values of the page's controls.
///
/// As text: lines of `key=value`, in any order. Missing keys have the value of [`State::DEFAULTS`];
/// values are written as on the command line.
#[derive(Clone, Debug)]
pub struct State {
    /// What is asked.
    pub question: Question,
    /// The x axis of the curves.
    pub axis: Axis,
    /// Mean number of packets that are lost together.
    pub burst: f64,
    /// The values as text, in the order of [`State::DEFAULTS`].
    texts: Vec<(&'static str, String)>,
}

/// An invalid value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateError {
    /// The key that it belongs to.
    pub key: &'static str,
    /// What is wrong, and what is right.
    pub message: String,
}

impl std::fmt::Display for StateError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.key, self.message)
    }
}

impl std::error::Error for StateError {}

/// Most receivers, as on the command line.
const MAX_RECEIVERS: u32 = 65_536;
/// Longer texts are rejected.
const MAX_TEXT: usize = 64;

impl State {
    /// The keys, and their default values. `rtt` takes precedence over `distance` if it is not
    /// empty.
    pub const DEFAULTS: [(&'static str, &'static str); 11] = [
        ("bandwidth", "400Gbps"),
        ("distance", "3750km"),
        ("rtt", ""),
        ("loss", "1e-5"),
        ("burst", "1"),
        ("size", "128MiB"),
        ("receivers", "1"),
        ("goal", "mean"),
        ("chunk", "64KiB"),
        ("mtu", "4096"),
        ("x", "loss"),
    ];

    /// The value of a key as text.
    pub fn text(&self, key: &str) -> &str {
        text_of(&self.texts, key)
    }

    /// The command that gives the same numbers.
    pub fn command(&self) -> String {
        let mut out = "bowline plan".to_owned();
        let length = if self.text("rtt").is_empty() { "distance" } else { "rtt" };
        for (key, value) in &self.texts {
            let left_out = match *key {
                "bandwidth" | "loss" | "size" => false,
                "distance" | "rtt" => *key != length,
                "x" => true,
                "burst" | "receivers" => value == "1",
                _ => State::DEFAULTS.contains(&(key, value.as_str())),
            };
            if !left_out {
                out += &format!(" --{key} {}", quoted(value));
            }
        }
        out
    }
}

/// A value, quoted for a shell.
fn quoted(value: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "+-.,%".contains(c);
    if value.chars().all(plain) { value.to_owned() } else { format!("'{value}'") }
}

fn text_of<'a>(texts: &'a [(&'static str, String)], key: &str) -> &'a str {
    texts.iter().find(|(name, _)| *name == key).map_or("", |(_, value)| value)
}

impl FromStr for State {
    type Err = StateError;

    fn from_str(text: &str) -> Result<State, StateError> {
        let mut texts = State::DEFAULTS.map(|(key, value)| (key, value.to_owned())).to_vec();
        for (key, value) in text.lines().filter_map(|line| line.split_once('=')) {
            // Ignore keys of a later version.
            let Some((key, place)) = texts.iter_mut().find(|(name, _)| *name == key.trim()) else {
                continue;
            };
            if value.len() > MAX_TEXT || value.contains('\'') {
                let message = "the value is too long, or has quotes".to_owned();
                return Err(StateError { key, message });
            }
            *place = value.trim().to_owned();
        }
        let of = |key: &str| text_of(&texts, key);
        let wrong = |key: &'static str| move |message: String| StateError { key, message };
        let rtt_s = match of("rtt") {
            "" => rtt_of_distance_s(parse::distance(of("distance")).map_err(wrong("distance"))?),
            rtt => parse::rtt(rtt).map_err(wrong("rtt"))?,
        };
        let burst = parse::burst(of("burst")).map_err(wrong("burst"))?;
        let loss = parse::loss(of("loss")).map_err(wrong("loss"))?;
        let link = Link {
            bandwidth_bps: parse::rate(of("bandwidth")).map_err(wrong("bandwidth"))? as f64,
            rtt_s,
            loss: if of("burst") == "1" {
                loss
            } else {
                parse::with_burst(loss, burst).map_err(wrong("burst"))?
            },
        };
        let message = Message {
            bytes: parse::size(of("size")).map_err(wrong("size"))?,
            chunk_bytes: parse::size(of("chunk")).map_err(wrong("chunk"))?,
            mtu_bytes: parse::size(of("mtu")).map_err(wrong("mtu"))?,
        };
        let mut question = Question::new(link, message);
        question.receivers = receivers(of("receivers")).map_err(wrong("receivers"))?;
        question.goal = goal(of("goal")).map_err(wrong("goal"))?;
        let axis = axis(of("x")).map_err(wrong("x"))?;
        question.transfer().map_err(StateError::from)?;
        Ok(State { question, axis, burst, texts })
    }
}

impl From<PlanError> for StateError {
    fn from(error: PlanError) -> StateError {
        let key = match error.what {
            "bursts" => "burst",
            what => State::DEFAULTS.iter().find(|(key, _)| *key == what).map_or("loss", |d| d.0),
        };
        StateError { key, message: error.to_string() }
    }
}

fn receivers(text: &str) -> Result<u32, String> {
    let count = text.parse().ok().filter(|count| (1..=MAX_RECEIVERS).contains(count));
    count.ok_or_else(|| format!("invalid number `{text}`: write 1 to {MAX_RECEIVERS}, e.g. 8"))
}

fn goal(text: &str) -> Result<Goal, String> {
    match text {
        "mean" => Ok(Goal::Mean),
        "p50" => Ok(Goal::Quantile(0.5)),
        "p99" => Ok(Goal::Quantile(0.99)),
        "p999" => Ok(Goal::Quantile(0.999)),
        _ => Err(format!("invalid goal `{text}`: write mean, p50, p99 or p999")),
    }
}

fn axis(text: &str) -> Result<Axis, String> {
    match text {
        "loss" => Ok(Axis::Loss),
        "size" => Ok(Axis::Size),
        "distance" => Ok(Axis::Distance),
        "bandwidth" => Ok(Axis::Bandwidth),
        _ => Err(format!("invalid axis `{text}`: write loss, size, distance or bandwidth")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_the_default() {
        let state: State = "".parse().unwrap();
        let command =
            "bowline plan --bandwidth 400Gbps --distance 3750km --loss 1e-5 --size 128MiB";
        assert_eq!(state.command(), command);
        assert_eq!(state.question.goal, Goal::Mean);
    }

    #[test]
    fn every_key_reaches_the_question_and_the_command() {
        let text = "bandwidth=10Gbps\nrtt=40ms\nloss=0.1%\nburst=8\nsize=16MiB\nreceivers=8\n\
                    goal=p99\nchunk=4KiB\nmtu=1024\nx=size\nlater=7";
        let state: State = text.parse().unwrap();
        assert_eq!(
            state.command(),
            "bowline plan --bandwidth 10Gbps --rtt 40ms --loss 0.1% --burst 8 --size 16MiB \
             --receivers 8 --goal p99 --chunk 4KiB --mtu 1024"
        );
        assert_eq!((state.axis, state.question.receivers), (Axis::Size, 8));
        assert!(matches!(state.question.link.loss, bowline_plan::Loss::Bursts(_)));
    }

    #[test]
    fn a_wrong_value_is_told_by_its_key() {
        let wrong = [
            ("bandwidth", "25ms"),
            ("distance", "far"),
            ("rtt", "0ms"),
            ("loss", "2"),
            ("loss", "0.1,seed=7"),
            ("loss", "0.9999999"),
            ("burst", "0.5"),
            ("burst", "NaN"),
            ("size", "0"),
            ("chunk", "5000"),
            ("mtu", "0"),
            ("receivers", "0"),
            ("receivers", "70000"),
            ("goal", "best"),
            ("x", "time"),
            ("size", "'; rm -rf"),
        ];
        for (key, value) in wrong {
            let error = format!("{key}={value}").parse::<State>().unwrap_err();
            assert_eq!(error.key, key, "{value}: {error}");
        }
    }
}
