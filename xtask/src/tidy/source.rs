//! Rust's text, told apart: code, comments, literals.

/// A Rust file's code without its comments and literals.
pub(super) struct Source {
    /// The text with spaces in the place of comments and of literals. Lines and columns stay.
    pub(super) code: String,
    /// Lines, from 0, that have a part of a string in them.
    strings: Vec<bool>,
}

/// A function and how long it is.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Function<'a> {
    pub(super) name: &'a str,
    /// Where `fn` is, from 1.
    pub(super) line: usize,
    /// From there to the closing brace, both counted.
    pub(super) lines: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Comment,
    String,
    Char,
}

impl Source {
    pub(super) fn new(text: &str) -> Source {
        let bytes = text.as_bytes();
        let mut code = Vec::with_capacity(bytes.len());
        let mut strings = vec![false; text.lines().count() + 1];
        let (mut at, mut line) = (0, 0);
        while at < bytes.len() {
            let Some((kind, len)) = other_than_code(text, at) else {
                line += usize::from(bytes[at] == b'\n');
                code.push(bytes[at]);
                at += 1;
                continue;
            };
            for &byte in &bytes[at..at + len] {
                strings[line] |= kind == Kind::String;
                line += usize::from(byte == b'\n');
                code.push(if byte == b'\n' { b'\n' } else { b' ' });
            }
            at += len;
        }
        let code = String::from_utf8(code).expect("whole characters are kept or replaced");
        Source { code, strings }
    }

    /// Whether a line, from 1, has a part of a string in it.
    pub(super) fn has_string(&self, line: usize) -> bool {
        self.strings[line - 1]
    }

    /// Starts of a word in the code.
    pub(super) fn words<'a>(&'a self, word: &'a str) -> impl Iterator<Item = usize> + 'a {
        self.code.match_indices(word).map(|(at, _)| at).filter(move |&at| {
            let before = self.code[..at].chars().next_back();
            let after = self.code[at + word.len()..].chars().next();
            !before.is_some_and(in_word) && !after.is_some_and(in_word)
        })
    }

    /// The line, from 1, of a place in the code.
    pub(super) fn line_of(&self, at: usize) -> usize {
        self.code[..at].matches('\n').count() + 1
    }

    /// Functions that have a body.
    pub(super) fn functions(&self) -> impl Iterator<Item = Function<'_>> {
        self.words("fn").filter_map(|at| {
            let rest = self.code[at + 2..].trim_start();
            let name = &rest[..rest.find(|c| !in_word(c))?];
            let body = body(rest)?;
            if name.is_empty() {
                return None;
            }
            let end = self.code.len() - rest.len() + body;
            let lines = self.code[at..end].matches('\n').count() + 1;
            Some(Function { name, line: self.line_of(at), lines })
        })
    }
}

fn in_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Where a function's body ends, behind its closing brace; none if it has no body.
fn body(signature: &str) -> Option<usize> {
    let mut nested = 0_usize;
    let mut braces = 0_usize;
    for (at, c) in signature.char_indices() {
        match c {
            '(' | '[' if braces == 0 => nested += 1,
            ')' | ']' if braces == 0 => nested = nested.checked_sub(1)?,
            ';' if nested == 0 && braces == 0 => return None,
            '{' if nested == 0 => braces += 1,
            '}' if nested == 0 => {
                braces = braces.checked_sub(1)?;
                if braces == 0 {
                    return Some(at + 1);
                }
            }
            _ => {}
        }
    }
    None
}

/// What starts here that is not code, and its length in bytes.
fn other_than_code(text: &str, at: usize) -> Option<(Kind, usize)> {
    let bytes = text.as_bytes();
    let rest = bytes.get(at..)?;
    match rest[0] {
        b'/' if rest.starts_with(b"//") => {
            let end = rest.iter().position(|&b| b == b'\n').unwrap_or(rest.len());
            Some((Kind::Comment, end))
        }
        b'/' if rest.starts_with(b"/*") => Some((Kind::Comment, block_comment(rest))),
        b'"' => Some((Kind::String, string(rest))),
        b'r' | b'b' | b'c' if at == 0 || !in_word(char::from(bytes[at - 1])) => {
            raw_string(rest).map(|len| (Kind::String, len))
        }
        b'\'' => character(&text[at..]).map(|len| (Kind::Char, len)),
        _ => None,
    }
}

fn block_comment(rest: &[u8]) -> usize {
    let (mut at, mut depth) = (2, 1);
    while at < rest.len() && depth > 0 {
        if rest[at..].starts_with(b"/*") {
            (at, depth) = (at + 2, depth + 1);
        } else if rest[at..].starts_with(b"*/") {
            (at, depth) = (at + 2, depth - 1);
        } else {
            at += 1;
        }
    }
    at
}

fn string(rest: &[u8]) -> usize {
    let mut at = 1;
    while at < rest.len() && rest[at] != b'"' {
        at += if rest[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(rest.len())
}

/// `r"…"`, `r#"…"#`, with `b` or `c` before.
fn raw_string(rest: &[u8]) -> Option<usize> {
    let prefix = usize::from(rest[0] != b'r');
    if rest.get(prefix) != Some(&b'r') {
        return None;
    }
    let hashes = rest[prefix + 1..].iter().take_while(|&&b| b == b'#').count();
    let start = prefix + 1 + hashes;
    if rest.get(start) != Some(&b'"') {
        return None;
    }
    let mut end = vec![b'"'];
    end.resize(hashes + 1, b'#');
    let inside = &rest[start + 1..];
    let len = inside.windows(end.len()).position(|window| window == end).unwrap_or(inside.len());
    Some((start + 1 + len + end.len()).min(rest.len()))
}

/// A character's literal; none if it is a lifetime.
fn character(rest: &str) -> Option<usize> {
    let mut chars = rest.char_indices().skip(1);
    let (_, first) = chars.next()?;
    if first == '\\' {
        chars.next()?;
        return chars.find(|(_, c)| *c == '\'').map(|(at, _)| at + 1);
    }
    let (at, second) = chars.next()?;
    (first != '\'' && second == '\'').then_some(at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blanked() {
        let text = "let a = \"fn {\"; // fn x\nlet b = r#\"\"}\"#; /* { /* */ } */ let c = '{';\n\
                    fn f<'a>(x: &'a str) -> char { '\\'' }";
        let source = Source::new(text);
        assert_eq!(source.code.len(), text.len());
        assert!(!source.code.contains(['"', '/']));
        assert_eq!(source.code.matches(['{', '}']).count(), 2);
        assert!(source.code.contains("fn f<'a>(x: &'a str) -> char {"));
        assert_eq!(source.words("fn").count(), 1);
    }

    #[test]
    fn lines_of_strings_are_known() {
        let source = Source::new("let a = \"one\ntwo\";\nlet b = 1; // \"no\"\nlet c = b\"x\";");
        let lines: Vec<bool> = (1..=4).map(|line| source.has_string(line)).collect();
        assert_eq!(lines, [true, true, false, true]);
    }

    #[test]
    fn functions_are_measured_to_their_brace() {
        let text = "trait T {\n    fn none(&self) -> [u8; 2];\n    fn two() {\n    }\n}\n\
                    type F = fn(u8);\nfn three(a: [u8; 3]) {\n    if a[0] == 1 { b(\"}\") }\n}\n";
        let source = Source::new(text);
        let found: Vec<_> = source.functions().map(|f| (f.name, f.line, f.lines)).collect();
        assert_eq!(found, [("two", 3, 2), ("three", 7, 3)]);
    }

    #[test]
    fn what_has_no_end_is_no_panic() {
        for text in
            ["\"abc", "r#\"abc\"", "/* /* */", "'", "'\\", "fn f(", "fn", "fn f() { {", "b'"]
        {
            let source = Source::new(text);
            assert_eq!(source.code.len(), text.len());
            assert_eq!(source.functions().count(), 0);
        }
    }
}
