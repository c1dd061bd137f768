//! The planner for a browser: WebAssembly with a plain C interface.
//!
//! A page calls [`input`] for a buffer, writes a question there, calls [`answer`], [`curves`] or
//! [`map_end`], each of which returns the length of its result, and reads that from [`output`]. A
//! heatmap takes longer, and is computed in steps between which the page can react: [`map_begin`],
//! [`map_step`] until no row is left, [`map_end`]. Question and result are UTF-8. A question is
//! lines of `key=value` ([`State`]); the key `source` is the attribution shown in drawings.
//!
//! `crates/planner/wasm/build` builds it into `crates/planner/page/planner.wasm`.

use std::cell::RefCell;

use bowline_planner::{Grid, State, StateError};
use serde_json::{Value, json};

thread_local! {
    static INPUT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    static OUTPUT: RefCell<String> = const { RefCell::new(String::new()) };
    static MAP: RefCell<Option<Map>> = const { RefCell::new(None) };
}

/// A heatmap in progress.
struct Map {
    source: String,
    grid: Grid,
    rows: Vec<Vec<f64>>,
}

/// Longer questions are truncated.
const MAX_INPUT: usize = 64 << 10;

/// A buffer for a question of so many bytes. The next call of this function moves it.
#[unsafe(no_mangle)]
pub extern "C" fn input(bytes: usize) -> *mut u8 {
    INPUT.with_borrow_mut(|input| {
        input.clear();
        input.resize(bytes.min(MAX_INPUT), 0);
        input.as_mut_ptr()
    })
}

/// Where the last result is. The next question overwrites it.
#[unsafe(no_mangle)]
pub extern "C" fn output() -> *const u8 {
    OUTPUT.with_borrow(|output| output.as_ptr())
}

/// Text and numbers, as JSON: what [`bowline_planner::answer`] returns, or `error` with its key and
/// message.
#[unsafe(no_mangle)]
pub extern "C" fn answer() -> usize {
    reply(|question| {
        let answer = state(question).and_then(|state| bowline_planner::answer(&state));
        answer.unwrap_or_else(|error| told(&error)).to_string()
    })
}

/// The curves, as SVG; empty if the question is invalid.
#[unsafe(no_mangle)]
pub extern "C" fn curves() -> usize {
    reply(|question| {
        let svg =
            state(question).and_then(|state| bowline_planner::curves(&state, source(question)));
        svg.unwrap_or_default()
    })
}

/// Starts a heatmap; returns the number of its rows, 0 if the question is invalid.
#[unsafe(no_mangle)]
pub extern "C" fn map_begin() -> usize {
    let begun = INPUT.with_borrow(|input| {
        let question = String::from_utf8_lossy(input);
        let grid = bowline_planner::grid(&state(&question).ok()?).ok()?;
        Some(Map { source: source(&question).to_owned(), grid, rows: Vec::new() })
    });
    MAP.with_borrow_mut(|map| {
        *map = begun;
        map.as_ref().map_or(0, |map| map.grid.rows())
    })
}

/// Computes one more row of the heatmap; returns how many are left.
#[unsafe(no_mangle)]
pub extern "C" fn map_step() -> usize {
    MAP.with_borrow_mut(|map| {
        let Some(map) = map else { return 0 };
        if map.rows.len() < map.grid.rows() {
            map.rows.push(map.grid.row(map.rows.len()));
        }
        map.grid.rows() - map.rows.len()
    })
}

/// The heatmap, as SVG; empty unless all its rows are computed.
#[unsafe(no_mangle)]
pub extern "C" fn map_end() -> usize {
    let done = MAP.with_borrow_mut(|map| map.take_if(|map| map.rows.len() == map.grid.rows()));
    reply(|_| match &done {
        Some(map) => {
            let mut drawn = map.grid.heatmap(map.rows.clone());
            drawn.source.clone_from(&map.source);
            drawn.svg()
        }
        None => String::new(),
    })
}

/// The attribution shown in drawings.
fn source(question: &str) -> &str {
    question.lines().find_map(|line| line.strip_prefix("source=")).unwrap_or_default()
}

fn state(question: &str) -> Result<State, StateError> {
    question.parse()
}

fn told(error: &StateError) -> Value {
    json!({"error": {"key": error.key, "message": error.message}})
}

fn reply(of: impl Fn(&str) -> String) -> usize {
    let text = INPUT.with_borrow(|input| of(&String::from_utf8_lossy(input)));
    let bytes = text.len();
    OUTPUT.with_borrow_mut(|output| *output = text);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(question: &[u8], function: extern "C" fn() -> usize) -> String {
        input(question.len());
        INPUT.with_borrow_mut(|input| input.copy_from_slice(question));
        let bytes = function();
        OUTPUT.with_borrow(|output| {
            assert_eq!(output.len(), bytes);
            output.clone()
        })
    }

    #[test]
    fn a_question_is_answered_and_nonsense_is_named() {
        let good: Value = serde_json::from_str(&ask(b"size=1MiB\n", answer)).unwrap();
        assert_eq!(good["plan"]["size_bytes"], 1 << 20);
        let bad: Value = serde_json::from_str(&ask(b"size=much\xff\n", answer)).unwrap();
        assert_eq!(bad["error"]["key"], "size");
        assert_eq!(ask(b"size=much\n", curves), "");
    }

    #[test]
    fn drawings_have_their_source() {
        let svg = ask(b"x=size\nsource=bowline plan, today\n", curves);
        assert!(svg.starts_with("<svg") && svg.contains("bowline plan, today"));
        assert_eq!(ask(b"source=here\n", map_end), "");
        assert!(map_begin() > 1);
        assert_eq!(ask(b"", map_end), "");
        while map_step() > 0 {}
        assert!(ask(b"", map_end).contains("here"));
        assert_eq!((map_step(), ask(b"", map_end).len()), (0, 0));
    }
}
