//! A note about work to do names somebody who will do it.

use super::{Problem, Tree};

/// Written in parts, or this file would break its own rule.
const NOTES: [&str; 3] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];

pub(super) fn check(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for file in tree.files() {
        for (number, line) in file.lines() {
            if let Some(note) = NOTES.into_iter().find(|note| has_unowned(line, note)) {
                let what = format!("who does it? Write `{note}(name): …`, or an issue instead");
                problems.push(Problem::new(&file.path, number, what));
            }
        }
    }
    problems
}

/// Whether the word is there without a name in parentheses.
fn has_unowned(line: &str, note: &str) -> bool {
    line.match_indices(note).any(|(at, _)| {
        let (before, after) = (&line[..at], &line[at + note.len()..]);
        let in_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let owned = after.strip_prefix('(').is_some_and(|name| name.starts_with(in_word));
        !before.ends_with(in_word) && !after.starts_with(in_word) && !owned
    })
}

#[cfg(test)]
mod tests {
    use super::super::places;
    use super::*;

    #[test]
    fn a_note_without_a_name_is_found() {
        let note = NOTES[0];
        let text = format!("{note}(ann): x\n# {note}: y\nMY{note}S\n{note}()\n");
        let found = places(check, &[("run", &text)]);
        assert_eq!(found, [("run".to_owned(), 2), ("run".to_owned(), 4)]);
    }
}
