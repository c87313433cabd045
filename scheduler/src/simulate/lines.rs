//! Where a field of a YAML or JSON document stands: built only when there is something to complain about.

use std::fmt;

use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_saphyr::{Options, Spanned};

/// How many nodes one document may have, and how many of them aliases may add: a bomb of aliases ends here.
const NODES_MAX: usize = 20_000_000;
const ALIASED_NODES_MAX: usize = 200_000;
const SCALAR_BYTES_MAX: usize = 512 << 20;
/// A JSON text has long strings where YAML looks for keys.
const KEY_CHARS_MAX: usize = 1 << 20;

/// The limits of everything that is read as YAML.
pub fn options() -> Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_events: NODES_MAX,
            max_nodes: NODES_MAX,
            max_total_scalar_bytes: SCALAR_BYTES_MAX,
            max_recorded_anchor_events: ALIASED_NODES_MAX,
            simple_key_max_lookahead: KEY_CHARS_MAX,
        },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: ALIASED_NODES_MAX },
        with_snippet: false,
        emit_comments: false,
    }
}

/// The lines of one document.
#[derive(Debug)]
pub struct Lines {
    root: Node,
    /// Lines of the file before this document.
    before: u64,
}

#[derive(Debug)]
struct Node {
    line: u64,
    inside: Inside,
}

#[derive(Debug)]
enum Inside {
    Nothing,
    List(Vec<Node>),
    /// Key, line of the key, value.
    Map(Vec<(String, u64, Node)>),
}

impl Lines {
    /// The lines of `text`, which begins after `before` lines of its file; every field is in the first one if it can't be read.
    pub fn of(text: &str, before: u64) -> Self {
        let root = serde_saphyr::from_str_with_options(text, options()).unwrap_or(Node { line: 1, inside: Inside::Nothing });
        Self { root, before }
    }

    /// The line of the field at `path` (`spec.list[0].name`), or of the nearest that is there.
    pub fn line(&self, path: &str) -> u64 {
        let mut node = &self.root;
        let mut line = node.line;
        let mut rest = path;
        loop {
            rest = rest.trim_start_matches('.');
            let found = match &node.inside {
                Inside::Nothing => None,
                Inside::List(items) => index(rest).and_then(|(i, after)| Some((items.get(i)?, items.get(i)?.line, after))),
                // Keys may have dots, as labels do: the longest that fits.
                Inside::Map(members) => members
                    .iter()
                    .filter_map(|(key, line, value)| Some((key, line, value, after(rest, key)?)))
                    .max_by_key(|(key, ..)| key.len())
                    .map(|(_, line, value, after)| (value, *line, after)),
            };
            match found {
                Some((child, at, after)) if !rest.is_empty() => (node, line, rest) = (child, at, after),
                _ => return self.before + line,
            }
        }
    }
}

/// What follows `key` in `path`, if the path begins with it.
fn after<'p>(path: &'p str, key: &str) -> Option<&'p str> {
    let rest = path.strip_prefix(key).or_else(|| path.strip_prefix('[')?.strip_prefix(key)?.strip_prefix(']'))?;
    (rest.is_empty() || rest.starts_with(['.', '['])).then_some(rest)
}

/// Reads `[3]` at the beginning of `path`.
fn index(path: &str) -> Option<(usize, &str)> {
    let (number, rest) = path.strip_prefix('[')?.split_once(']')?;
    Some((number.parse().ok()?, rest))
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Inside>::deserialize(deserializer)?;
        Ok(Self { line: spanned.referenced.line(), inside: spanned.value })
    }
}

impl<'de> Deserialize<'de> for Inside {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyNode)
    }
}

struct AnyNode;

impl<'de> Visitor<'de> for AnyNode {
    type Value = Inside;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("anything")
    }
    fn visit_bool<E>(self, _: bool) -> Result<Inside, E> {
        Ok(Inside::Nothing)
    }
    fn visit_i64<E>(self, _: i64) -> Result<Inside, E> {
        Ok(Inside::Nothing)
    }
    fn visit_i128<E>(self, _: i128) -> Result<Inside, E> {
        Ok(Inside::Nothing)
    }
    fn visit_u64<E>(self, _: u64) -> Result<Inside, E> {
        Ok(Inside::Nothing)
    }
    fn visit_u128<E>(self, _: u128) -> Result<Inside, E> {
        Ok(Inside::Nothing)
    }
    fn visit_f64<E>(self, _: f64) -> Result<Inside, E> {
        Ok(Inside::Nothing)
    }
    fn visit_str<E>(self, _: &str) -> Result<Inside, E> {
        Ok(Inside::Nothing)
    }
    fn visit_unit<E>(self) -> Result<Inside, E> {
        Ok(Inside::Nothing)
    }
    fn visit_none<E>(self) -> Result<Inside, E> {
        Ok(Inside::Nothing)
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Inside, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element()? {
            items.push(item);
        }
        Ok(Inside::List(items))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Inside, A::Error> {
        let mut members = Vec::new();
        while let Some((key, value)) = access.next_entry::<Spanned<String>, Node>()? {
            members.push((key.value, key.referenced.line(), value));
        }
        Ok(Inside::Map(members))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_leads_to_the_line_of_its_field_or_of_the_nearest() {
        let yaml = "# c\nkind: Run\nspec:\n  list:\n    - name: a\n      x.y/z: 1\n    -\n      name: b\nlabels:\n  a.b: 1\n";
        let lines = Lines::of(yaml, 100);
        for (path, line) in [
            ("", 102),
            (".", 102),
            ("kind", 102),
            ("spec", 103),
            ("spec.list", 104),
            ("spec.list[0]", 105),
            ("spec.list[0].name", 105),
            ("spec.list[0].x.y/z", 106),
            ("spec.list[1].name", 108),
            ("spec.list[1].missing", 108),
            ("spec.list[7].name", 104),
            ("spec.missing.deeper", 103),
            ("labels.a.b", 110),
            ("labels[a.b]", 110),
        ] {
            assert_eq!(lines.line(path), line, "{path}");
        }
    }

    #[test]
    fn json_has_lines_too() {
        let lines = Lines::of("{\n\t\"spec\": {\n\t\t\"runtime\":\t5,\n\t\t\"a\": [\n{\"b\": 1}]\n}}", 0);
        assert_eq!((lines.line("spec.runtime"), lines.line("spec.a[0].b")), (3, 5));
    }

    #[test]
    fn what_cannot_be_read_is_in_the_first_line() {
        assert_eq!(Lines::of("a: [", 4).line("a"), 5);
    }
}
