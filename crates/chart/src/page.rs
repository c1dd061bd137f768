//! One self-contained HTML page.

use std::fmt::Write;

use crate::text::escape;

/// A page of text, tables and charts in one file: no scripts, nothing fetched, light and dark.
#[derive(Clone, Debug)]
pub struct Page {
    title: String,
    body: String,
}

const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1d2433;--soft:#667085;--line:#e6e9ef;--card:#fff;--page:#f5f6f9;--hi:#1f6fb4;--wash:#eef5fc}\
@media(prefers-color-scheme:dark){:root{--ink:#e8ecf3;--soft:#98a2b3;--line:#2b3342;--card:#141922;--page:#0c1017;--hi:#5aa9f0;--wash:#16263a}}\
*{box-sizing:border-box}body{margin:0;background:var(--page);color:var(--ink);font:16px/1.55 ui-sans-serif,system-ui,-apple-system,'Segoe UI',Roboto,sans-serif}\
main{max-width:1080px;margin:0 auto;padding:40px 24px 64px}h1{font-size:28px;line-height:1.25;margin:0 0 6px;letter-spacing:-.01em}\
h2{font-size:19px;margin:40px 0 12px}p{margin:8px 0;max-width:76ch}.sub{color:var(--soft);margin-bottom:24px}\
.lead{background:var(--wash);border-left:4px solid var(--hi);border-radius:8px;padding:14px 18px;margin:20px 0;font-size:17px;max-width:none}\
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(440px,1fr));gap:16px}\
.charts>*{background:var(--card);border:1px solid var(--line);border-radius:10px;overflow:hidden}.charts svg{display:block;width:100%;height:auto}\
.table{overflow-x:auto;background:var(--card);border:1px solid var(--line);border-radius:10px}\
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:14.5px}th,td{padding:9px 14px;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}\
th{color:var(--soft);font-weight:600}th:first-child,td:first-child{text-align:left}tr:last-child td{border-bottom:0}tr.hi td{background:var(--wash);font-weight:600}\
ul{padding-left:20px}code{font:13.5px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}footer{color:var(--soft);font-size:13.5px;margin-top:48px}\
@media(max-width:560px){.charts{grid-template-columns:1fr}main{padding:24px 14px}}@media print{body{background:#fff}main{max-width:none}}";

impl Page {
    /// A page with its title and a line below it.
    pub fn new(title: &str, subtitle: &str) -> Page {
        let body = format!("<h1>{}</h1><p class=\"sub\">{}</p>", escape(title), escape(subtitle));
        Page { title: title.to_owned(), body }
    }

    /// A heading.
    pub fn heading(&mut self, text: &str) -> &mut Page {
        self.push(&format!("<h2>{}</h2>", escape(text)))
    }

    /// A paragraph.
    pub fn paragraph(&mut self, text: &str) -> &mut Page {
        self.push(&format!("<p>{}</p>", escape(text)))
    }

    /// The main statement of the page.
    pub fn lead(&mut self, text: &str) -> &mut Page {
        self.push(&format!("<p class=\"lead\">{}</p>", escape(text)))
    }

    /// A list.
    pub fn list(&mut self, items: &[String]) -> &mut Page {
        let items: String = items.iter().map(|i| format!("<li>{}</li>", escape(i))).collect();
        self.push(&format!("<ul>{items}</ul>"))
    }

    /// A table, without a head if no column has a name; highlights the row of that index.
    pub fn table(
        &mut self,
        head: &[&str],
        rows: &[Vec<String>],
        highlight: Option<usize>,
    ) -> &mut Page {
        let cells = |tag: &str, cells: &mut dyn Iterator<Item = &str>| {
            cells.map(|c| format!("<{tag}>{}</{tag}>", escape(c))).collect::<String>()
        };
        let named = head.iter().any(|name| !name.is_empty());
        let head = cells("th", &mut head.iter().copied());
        let head = if named { format!("<thead><tr>{head}</tr></thead>") } else { String::new() };
        let mut text = format!("<div class=\"table\"><table>{head}<tbody>");
        for (i, row) in rows.iter().enumerate() {
            let class = if highlight == Some(i) { " class=\"hi\"" } else { "" };
            // Writing to a String cannot fail.
            let _ = write!(text, "<tr{class}>{}</tr>", cells("td", &mut row.iter().map(|c| &**c)));
        }
        self.push(&(text + "</tbody></table></div>"))
    }

    /// Drawings side by side, as [`crate::LineChart::svg`] and [`crate::Heatmap::svg`] make them.
    pub fn charts(&mut self, drawings: &[String]) -> &mut Page {
        let each: String = drawings.iter().map(|svg| format!("<div>{svg}</div>")).collect();
        self.push(&format!("<div class=\"charts\">{each}</div>"))
    }

    /// Small print.
    pub fn footer(&mut self, text: &str) -> &mut Page {
        self.push(&format!("<footer>{}</footer>", escape(text)))
    }

    /// The whole file.
    pub fn html(&self) -> String {
        format!(
            "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
             <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
             <title>{}</title><style>{STYLE}</style></head><body><main>{}</main></body></html>\n",
            escape(&self.title),
            self.body
        )
    }

    fn push(&mut self, html: &str) -> &mut Page {
        self.body.push_str(html);
        self.body.push('\n');
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_fetches_nothing_and_escapes_everything() {
        let mut page = Page::new("a < b", "sub & title");
        page.heading("h").lead("x").list(&["<script>".to_owned()]);
        page.table(&["a", "b"], &[vec!["1".to_owned(), "<2>".to_owned()]], Some(0));
        page.charts(&["<svg></svg>".to_owned()]).footer("end");
        let html = page.html();
        assert!(
            html.contains("a &lt; b")
                && html.contains("&lt;2&gt;")
                && html.contains("tr class=\"hi\"")
        );
        assert!(!html.contains("<script") && !html.contains("http"));
    }
}
