//! The explorer: one HTML file that holds the planner as WebAssembly and loads nothing else.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bowline_chart::text::escape;

const HTML: &str = include_str!("../page/explorer.html");
const CSS: &str = include_str!("../page/explorer.css");
const JS: &str = include_str!("../page/explorer.js");
const WASM: &[u8] = include_bytes!("../page/planner.wasm");

/// The page. `command` made it on `date`; it starts from `state`, lines of `key=value` as
/// [`crate::State`] reads them, unless its URL says otherwise.
pub fn html(command: &str, date: &str, state: &str) -> String {
    // Inserted values are not expanded again, so no value can act as a placeholder.
    let mut out = String::with_capacity(HTML.len() + CSS.len() + JS.len() + 2 * WASM.len());
    let mut rest = HTML;
    while let Some((before, after)) = rest.split_once("{{") {
        out += before;
        let (name, after) = after.split_once("}}").unwrap_or((after, ""));
        match name {
            "command" => out += &escape(command),
            "date" => out += &escape(date),
            "state" => out += &escape(state),
            "version" => out += env!("CARGO_PKG_VERSION"),
            "charts" => out += &bowline_chart::css(),
            "css" => out += CSS,
            "js" => out += JS,
            "wasm" => out += &STANDARD.encode(WASM),
            _ => {}
        }
        rest = after;
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_holds_everything_and_fetches_nothing() {
        let page = html("bowline plan --page '<x>'", "2026-11-17", "size=1MiB\n\"&");
        assert!(page.contains("bowline plan --page '&lt;x&gt;'") && page.contains("2026-11-17"));
        assert!(page.contains("size=1MiB\n&quot;&amp;") && !page.contains("{{"));
        assert!(page.contains(env!("CARGO_PKG_VERSION")));
        for outside in ["src=\"http", "href=\"http", "url(http", "@import", "fetch(", "import("] {
            assert!(!page.contains(outside), "{outside}");
        }
    }
}
