//! Common parts of SVG drawings: their frame, and colours for light and dark themes.

use crate::text::escape;

/// Line colours that most people can tell apart, on light and on dark backgrounds.
pub(crate) const LIGHT: [&str; 8] =
    ["#6b7280", "#d1495b", "#e08e0b", "#1f6fb4", "#1a9e8c", "#8b5cb3", "#a3a9b3", "#7a5c3e"];
pub(crate) const DARK: [&str; 8] =
    ["#9aa4b2", "#ff7b8a", "#f5b342", "#5aa9f0", "#3fcfb9", "#c39be6", "#6b7684", "#c9a27e"];

/// The same as terminal colour codes.
pub(crate) const TERMINAL: [u8; 8] = [245, 203, 214, 75, 43, 141, 240, 137];

fn variables(palette: [&str; 8]) -> String {
    palette.iter().enumerate().map(|(i, c)| format!("--s{i}:{c};")).collect()
}

/// The styles of all drawings, and the colours of schemes as CSS variables `--s0` to `--s7`: the
/// index is that of [`crate::scheme_colour`]. For pages that name schemes outside of drawings, or
/// that put drawings in without their own `<style>`.
pub fn css() -> String {
    let (light, dark) = (variables(LIGHT), variables(DARK));
    let drawing = drawing_css();
    format!(":root{{{light}}}@media(prefers-color-scheme:dark){{:root{{{dark}}}}}{drawing}")
}

/// Styles of one drawing. They are the same in each, so that several on a page do not conflict.
pub(crate) fn style() -> String {
    format!("<style>{}</style>", drawing_css())
}

fn drawing_css() -> String {
    format!(
        ".bl{{--ink:#1d2433;--soft:#667085;--grid:#e6e9ef;--bg:#ffffff;{light}\
         font:13px/1.3 ui-sans-serif,system-ui,-apple-system,'Segoe UI',Roboto,sans-serif}}\
         @media(prefers-color-scheme:dark){{.bl{{--ink:#e8ecf3;--soft:#98a2b3;--grid:#2b3342;\
         --bg:#141922;{dark}}}}}\
         .bl text{{fill:var(--soft)}}.bl .t{{fill:var(--ink);font-size:15px;font-weight:600}}\
         .bl .g{{stroke:var(--grid);stroke-width:1}}.bl .l{{fill:none;stroke-width:2.25;\
         stroke-linejoin:round;stroke-linecap:round}}.bl .m{{stroke:var(--soft);stroke-dasharray:2 4}}\
         .bl .b{{fill:var(--bg)}}.bl .e{{text-anchor:end}}.bl .c{{text-anchor:middle}}",
        light = variables(LIGHT),
        dark = variables(DARK),
    )
}

/// Space below a drawing for its source.
const SOURCE_ROOM: f64 = 20.0;

/// The height of a drawing with space for its source, if it has one.
pub(crate) fn height_with(source: &str, height: f64) -> f64 {
    if source.is_empty() { height } else { height + SOURCE_ROOM }
}

/// The source of a drawing's numbers, at its lower edge; nothing if it is unknown.
pub(crate) fn source(source: &str, height: f64) -> String {
    if source.is_empty() {
        return String::new();
    }
    // A line of this many characters fills a drawing; a longer one is set smaller.
    const FULL: usize = 124;
    let size = 11 * FULL / source.chars().count().max(FULL);
    let (y, text) = (height - 12.0, escape(source));
    format!("<text x=\"16\" y=\"{y:.1}\" style=\"font-size:{size}px\">{text}</text>")
}

/// The start of a drawing, with its title for screen readers.
pub(crate) fn open(width: f64, height: f64, title: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"bl\" viewBox=\"0 0 {width} {height}\" \
         role=\"img\" aria-label=\"{0}\">{1}\
         <rect class=\"b\" width=\"{width}\" height=\"{height}\" rx=\"8\"/>\
         <text class=\"t\" x=\"16\" y=\"26\">{0}</text>",
        escape(title),
        style(),
    )
}
