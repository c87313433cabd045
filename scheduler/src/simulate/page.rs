//! `berth simulate --html FILE`: one self-contained page to look at. Its sources are in page/; this puts them together.
//!
//! The data goes in as JSON in which `<`, `>`, `&` and the two line separators of JavaScript are escaped, so that no name, label or message
//! can end the script element it stands in; the scripts write texts as text, never as markup; the page's own policy forbids it the network.

mod data;

use std::io::Write;
use std::path::Path;

use anyhow::Context as _;
use serde::Serialize;

pub use data::Input;

const PAGE: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/page.css");
const SCRIPTS: &[&str] = &[
    include_str!("page/model.js"),
    include_str!("page/axis.js"),
    include_str!("page/waiting.js"),
    include_str!("page/lanes.js"),
    include_str!("page/table.js"),
    include_str!("page/details.js"),
    include_str!("page/page.js"),
];

/// Writes the page and tells where.
///
/// # Errors
/// The file can't be written.
pub fn write(path: &Path, input: &Input<'_>, err: &mut dyn Write) -> anyhow::Result<()> {
    let page = html(&data::Data::of(input))?;
    std::fs::write(path, page).with_context(|| format!("--html {}", path.display()))?;
    writeln!(err, "wrote {}", path.display())?;
    Ok(())
}

/// The page that shows `data`.
fn html(data: &impl Serialize) -> serde_json::Result<String> {
    let data = escape(&serde_json::to_string(data)?);
    let mut page = String::with_capacity(PAGE.len() + STYLE.len() + data.len() + 65_536);
    // Piece by piece, so that nothing in a piece is taken for a mark.
    let mut rest = PAGE;
    for (mark, pieces) in [("/*style*/", &[STYLE][..]), ("/*data*/", &[data.as_str()]), ("/*scripts*/", SCRIPTS)] {
        let (before, after) = rest.split_once(mark).unwrap_or((rest, ""));
        page.push_str(before);
        pieces.iter().for_each(|piece| page.push_str(piece));
        rest = after;
    }
    page.push_str(rest);
    Ok(page)
}

/// Escapes JSON so that it can stand in a script element; it is still the same JSON, since these occur only within its strings.
fn escape(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            '<' => out.push_str("\\u003c"),
            '>' => out.push_str("\\u003e"),
            '&' => out.push_str("\\u0026"),
            '\u{2028}' => out.push_str("\\u2028"),
            '\u{2029}' => out.push_str("\\u2029"),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: &[&str] = &[
        "</script><script>alert(1)</script>",
        "<!--<script>",
        "]]>",
        "<img src=x onerror=alert(1)>",
        "\u{2028}\u{2029}\u{0}\u{1b}\"'\\",
        "&lt;/script&gt;",
        "/*data*/ /*scripts*/ /*style*/",
        "${alert(1)}`",
    ];

    #[test]
    fn hostile_texts_come_through_unharmed_and_do_no_harm() -> serde_json::Result<()> {
        let page = html(&HOSTILE)?;
        let data = page.split("<script type=\"application/json\" id=\"data\">").nth(1).and_then(|rest| rest.split("</script>").next());
        let read: Vec<String> = serde_json::from_str(data.unwrap_or_default())?;
        assert_eq!(read, HOSTILE);
        assert!(!data.unwrap_or_default().contains(['<', '>', '&', '\u{2028}', '\u{2029}']));
        let harmless = html(&["x"; 8])?;
        let elements = |page: &str| (page.matches("<script").count(), page.matches("</script").count(), page.matches("<!--").count());
        assert_eq!(elements(&page), elements(&harmless));
        assert_eq!(elements(&page).0, elements(&page).1);
        Ok(())
    }

    #[test]
    fn the_page_is_whole_and_needs_nothing_from_elsewhere() -> serde_json::Result<()> {
        let page = html(&"x")?;
        for mark in ["/*style*/", "/*data*/", "/*scripts*/"] {
            assert!(!page.contains(mark), "{mark} is left");
        }
        assert!(page.contains(STYLE) && SCRIPTS.iter().all(|script| page.contains(script)));
        assert!(page.contains("default-src 'none'"));
        for elsewhere in ["http://", "https://", "src=", "@import", "url(", "innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("] {
            let allowed = if elsewhere == "http://" { page.matches("http://www.w3.org/2000/svg").count() } else { 0 };
            assert_eq!(page.matches(elsewhere).count(), allowed, "{elsewhere}");
        }
        Ok(())
    }
}
