//! Selects the paths to send: `--exclude` and `--include`.
//!
//! A pattern that starts with a slash or contains one is matched against the whole path from the
//! named directory on. Other patterns are matched against the last component. `*` and `?` match
//! within a component, `**` across components, `[a-z]` one character. A pattern that ends in a
//! slash matches directories only.

use serde::{Deserialize, Serialize};

/// Maximum number of patterns, and maximum length of each, because they are sent to the receiver.
const MAX_PATTERNS: usize = 128;
const MAX_PATTERN: usize = 256;

/// Patterns of entries to leave out, and of exceptions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Filter {
    exclude: Vec<String>,
    include: Vec<String>,
}

impl Filter {
    pub(super) fn new(exclude: &[String], include: &[String]) -> Result<Filter, String> {
        let filter = Filter { exclude: exclude.to_vec(), include: include.to_vec() };
        filter.check()?;
        Ok(filter)
    }

    /// Checks whether a sender may send this filter.
    pub(super) fn check(&self) -> Result<(), String> {
        let count = self.exclude.len() + self.include.len();
        if count > MAX_PATTERNS {
            return Err(format!("{count} patterns, but {MAX_PATTERNS} are allowed"));
        }
        match self
            .exclude
            .iter()
            .chain(&self.include)
            .find(|p| p.len() > MAX_PATTERN || p.is_empty())
        {
            Some(pattern) => {
                let shown: String = pattern.chars().take(40).collect();
                Err(format!(
                    "invalid pattern `{shown}`: write 1 to {MAX_PATTERN} bytes, e.g. '*.o'"
                ))
            }
            None => Ok(()),
        }
    }

    /// Whether an entry is left out. `path` begins with the last component of the path that the
    /// user named.
    pub(super) fn leaves_out(&self, path: &[u8], is_dir: bool) -> bool {
        let any = |patterns: &[String]| patterns.iter().any(|p| matches(p, path, is_dir));
        any(&self.exclude) && !any(&self.include)
    }
}

fn matches(pattern: &str, path: &[u8], is_dir: bool) -> bool {
    let (pattern, dirs_only) = match pattern.strip_suffix('/') {
        Some(rest) => (rest, true),
        None => (pattern, false),
    };
    if dirs_only && !is_dir {
        return false;
    }
    if let Some(anchored) = pattern.strip_prefix('/') {
        // Match from the named directory on, without the directory's own name.
        let inner = path.iter().position(|byte| *byte == b'/').map_or(path, |at| &path[at + 1..]);
        return glob(anchored.as_bytes(), inner);
    }
    if pattern.contains('/') {
        return glob(pattern.as_bytes(), path)
            || path
                .iter()
                .enumerate()
                .any(|(at, byte)| *byte == b'/' && glob(pattern.as_bytes(), &path[at + 1..]));
    }
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
    glob(pattern.as_bytes(), name)
}

/// Matches a whole text. A mismatch returns only to the last star, so the time is bounded by the
/// product of the lengths. `**` also matches slashes, and a single star does not.
fn glob(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    // Where to continue after a single and a double star, and how much text they have matched.
    let mut star: Option<(usize, usize)> = None;
    let mut double: Option<(usize, usize)> = None;
    loop {
        match pattern.get(p) {
            Some(b'*') if pattern.get(p + 1) == Some(&b'*') => {
                p += 2;
                double = Some((p, t));
                star = None;
                continue;
            }
            Some(b'*') => {
                p += 1;
                star = Some((p, t));
                continue;
            }
            Some(_) if t < text.len() => {
                if let Some(used) = one(&pattern[p..], text[t]) {
                    p += used;
                    t += 1;
                    continue;
                }
            }
            None if t == text.len() => return true,
            _ => {}
        }
        // Mismatch: a star matches one more byte.
        match (star, double) {
            (Some((after, taken)), _) if taken < text.len() && text[taken] != b'/' => {
                star = Some((after, taken + 1));
                (p, t) = (after, taken + 1);
            }
            (_, Some((after, taken))) if taken < text.len() => {
                double = Some((after, taken + 1));
                star = None;
                (p, t) = (after, taken + 1);
            }
            _ => return false,
        }
    }
}

/// The length of the pattern's first item, if it matches this byte.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern[0] {
        b'?' => (byte != b'/').then_some(1),
        b'\\' if pattern.len() > 1 => (pattern[1] == byte).then_some(2),
        b'[' => class(pattern, byte),
        literal => (literal == byte).then_some(1),
    }
}

/// Matches `[abc]`, `[a-z]` and `[!abc]`. A bracket that is not closed stands for itself.
fn class(pattern: &[u8], byte: u8) -> Option<usize> {
    let Some(end) = pattern.iter().skip(2).position(|b| *b == b']').map(|at| at + 2) else {
        return (byte == b'[').then_some(1);
    };
    let (negated, inner) = match &pattern[1..end] {
        [b'!' | b'^', rest @ ..] => (true, rest),
        inner => (false, inner),
    };
    let mut rest = inner;
    let mut found = false;
    while let Some(first) = rest.first() {
        if let [low, b'-', high, ..] = rest {
            found |= (*low..=*high).contains(&byte);
            rest = &rest[3..];
        } else {
            found |= *first == byte;
            rest = &rest[1..];
        }
    }
    (found != negated && byte != b'/').then_some(end + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_rsync_s_do() {
        let yes = [
            ("*.o", "t/a/b.o"),
            ("b.o", "t/a/b.o"),
            ("a/b.o", "t/a/b.o"),
            ("/a/b.o", "t/a/b.o"),
            ("/a/*", "t/a/b"),
            ("a/**", "t/a/b/c"),
            ("**/c", "t/a/b/c"),
            ("?.o", "t/b.o"),
            ("[a-c].o", "t/b.o"),
            ("[!x].o", "t/b.o"),
            ("\\*", "t/*"),
            ("*", "t"),
            ("a*c*e", "t/abcde"),
            ("a*b*c", "t/aXbYbZc"),
        ];
        for (pattern, path) in yes {
            assert!(matches(pattern, path.as_bytes(), false), "{pattern} {path}");
        }
        let no = [
            ("*.o", "t/b.oo"),
            ("b", "t/b/c"),
            ("/b.o", "t/a/b.o"),
            ("/a/*", "t/a/b/c"),
            ("?", "t/ab"),
            ("[a-c].o", "t/d.o"),
            ("b/", "t/b"),
            ("\\*", "t/x"),
        ];
        for (pattern, path) in no {
            assert!(!matches(pattern, path.as_bytes(), false), "{pattern} {path}");
        }
        assert!(matches("b/", b"t/b", true));
    }

    #[test]
    fn an_include_wins_over_an_exclude() {
        let filter = Filter::new(&["*.log".into()], &["keep.log".into()]).unwrap();
        assert!(filter.leaves_out(b"t/a.log", false));
        assert!(!filter.leaves_out(b"t/keep.log", false));
        assert!(!filter.leaves_out(b"t/a.txt", false));
    }

    #[test]
    fn a_pattern_of_stars_takes_no_time() {
        let pattern = "*a".repeat(100) + "b";
        let text = "a".repeat(4000);
        let start = std::time::Instant::now();
        assert!(!matches(&pattern, text.as_bytes(), false));
        assert!(start.elapsed().as_secs() < 5);
        assert!(Filter::new(&vec!["*".into(); 200], &[]).is_err());
        assert!(Filter::new(&["x".repeat(300)], &[]).is_err());
    }
}
