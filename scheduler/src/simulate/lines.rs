//! Where a field of a YAML or JSON document stands: built only when there is something to complain about.

use std::fmt;

use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_saphyr::{DuplicateKeyPolicy, Options, Spanned};

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
        // kubectl reads 010 as YAML 1.1 does: 8.
        legacy_octal_numbers: true,
    }
}

/// A line and a column, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The line.
    pub line: u64,
    /// The column, in characters.
    pub column: u64,
}

impl Place {
    const START: Self = Self { line: 1, column: 1 };

    fn of(location: serde_saphyr::Location) -> Self {
        Self { line: location.line(), column: location.column() }
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
    at: Place,
    inside: Inside,
}

#[derive(Debug)]
enum Inside {
    Nothing,
    Scalar,
    List(Vec<Node>),
    /// Key, where the key stands, value.
    Map(Vec<(String, Place, Node)>),
}

impl Lines {
    /// The lines of `text`, which begins after `before` lines of its file; every field is in the first one if it can't be read.
    pub fn of(text: &str, before: u64) -> Self {
        // Both of two equal keys have a place.
        let mut options = options();
        options.duplicate_keys = DuplicateKeyPolicy::PassThrough;
        let root = serde_saphyr::from_str_with_options(text, options).unwrap_or(Node { at: Place::START, inside: Inside::Nothing });
        Self { root, before }
    }

    /// The line of the field at `path` (`spec.list[0].name`), or of the nearest that is there.
    pub fn line(&self, path: &str) -> u64 {
        self.key(path).line
    }

    /// Where the key of the field at `path` stands, or an item's beginning, or the nearest that is there.
    pub fn key(&self, path: &str) -> Place {
        self.find(path).0
    }

    /// Where the value at `path` stands, or its key if the value is a list, a mapping or nothing.
    pub fn value(&self, path: &str) -> Place {
        self.find(path).1
    }

    fn find(&self, path: &str) -> (Place, Place) {
        let mut node = &self.root;
        let mut key = node.at;
        let mut rest = path;
        loop {
            rest = rest.trim_start_matches('.');
            let found = match &node.inside {
                Inside::Nothing | Inside::Scalar => None,
                Inside::List(items) => index(rest).and_then(|(i, after)| Some((items.get(i)?, items.get(i)?.at, after))),
                // Keys may have dots, as labels do: the longest that fits, the first of equal ones.
                Inside::Map(members) => members
                    .iter()
                    .rev()
                    .filter_map(|(key, at, value)| Some((key, at, value, after(rest, key)?)))
                    .max_by_key(|(key, ..)| key.len())
                    .map(|(_, at, value, after)| (value, *at, after)),
            };
            match found {
                Some((child, at, after)) if !rest.is_empty() => (node, key, rest) = (child, at, after),
                _ => {
                    let value = if rest.is_empty() && matches!(node.inside, Inside::Scalar) { node.at } else { key };
                    let below = |place: Place| Place { line: self.before + place.line, ..place };
                    return (below(key), below(value));
                }
            }
        }
    }

    /// Keys that stand twice in one mapping: the path, and where the later one stands.
    pub fn twice(&self) -> Vec<(String, Place)> {
        let mut found = Vec::new();
        self.root.twice("", &mut found);
        found.iter_mut().for_each(|(_, place)| place.line += self.before);
        found
    }
}

impl Node {
    fn twice(&self, path: &str, found: &mut Vec<(String, Place)>) {
        match &self.inside {
            Inside::Nothing | Inside::Scalar => {}
            Inside::List(items) => items.iter().enumerate().for_each(|(i, item)| item.twice(&format!("{path}[{i}]"), found)),
            Inside::Map(members) => {
                for (i, (key, at, value)) in members.iter().enumerate() {
                    let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                    if members[..i].iter().any(|(earlier, ..)| earlier == key) {
                        found.push((path.clone(), *at));
                    }
                    value.twice(&path, found);
                }
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
        Ok(Self { at: Place::of(spanned.referenced), inside: spanned.value })
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
        Ok(Inside::Scalar)
    }
    fn visit_i64<E>(self, _: i64) -> Result<Inside, E> {
        Ok(Inside::Scalar)
    }
    fn visit_i128<E>(self, _: i128) -> Result<Inside, E> {
        Ok(Inside::Scalar)
    }
    fn visit_u64<E>(self, _: u64) -> Result<Inside, E> {
        Ok(Inside::Scalar)
    }
    fn visit_u128<E>(self, _: u128) -> Result<Inside, E> {
        Ok(Inside::Scalar)
    }
    fn visit_f64<E>(self, _: f64) -> Result<Inside, E> {
        Ok(Inside::Scalar)
    }
    fn visit_str<E>(self, _: &str) -> Result<Inside, E> {
        Ok(Inside::Scalar)
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
            members.push((key.value, Place::of(key.referenced), value));
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
    fn keys_and_values_have_columns_and_keys_that_stand_twice_are_found() {
        let lines = Lines::of("a: 1\nb:\n  - c: x\n    d: {e: 5, e: 6}\n    c: y\nb:\n", 0);
        let at = |line, column| Place { line, column };
        assert_eq!((lines.key("a"), lines.value("a")), (at(1, 1), at(1, 4)));
        assert_eq!((lines.key("b[0]"), lines.value("b[0].d")), (at(3, 5), at(4, 5)));
        assert_eq!((lines.key("b[0].d.e"), lines.value("b[0].d.f")), (at(4, 9), at(4, 5)));
        assert_eq!(lines.twice(), [("b[0].d.e".to_owned(), at(4, 15)), ("b[0].c".to_owned(), at(5, 5)), ("b".to_owned(), at(6, 1))]);
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
