//! From files, folders and standard input to the objects in them, one at a time, each with the place it stands.

use std::cell::OnceCell;
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use serde_saphyr::DuplicateKeyPolicy;

use super::lines::{Lines, options};

/// The largest input that is read, bytes.
const INPUT_BYTES_MAX: u64 = 512 << 20;
/// How deep folders are searched.
const FOLDERS_DEPTH_MAX: usize = 16;

/// Input that can't be read: the file, the line if there is one, and why.
#[derive(Clone, Debug, thiserror::Error)]
pub struct Unreadable {
    /// As given on the command line, or found below it.
    pub file: String,
    /// Line, counted from 1.
    pub line: Option<u64>,
    /// Why.
    pub why: String,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}: {}", self.file, self.why),
            None => write!(f, "{}: {}", self.file, self.why),
        }
    }
}

/// Where an object stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// File name; `<stdin>` for standard input.
    pub file: Arc<str>,
    /// Line, counted from 1; of the document, if the object is an item of a list.
    pub line: u64,
    /// Path below the document, as `items[3]`; empty if the object is the document.
    pub below: String,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)?;
        if self.below.is_empty() { Ok(()) } else { write!(f, " ({})", self.below) }
    }
}

/// One object as it was read.
pub struct Found<'d> {
    /// The object.
    pub value: Value,
    /// Where it stands, as exactly as is known without a second look.
    pub place: Place,
    document: &'d Document<'d>,
}

impl Found<'_> {
    /// The exact place of one of its fields.
    pub fn place_of(&self, path: &str) -> Place {
        let path = format!("{}.{}", self.place.below, path.trim_matches('.'));
        Place { file: self.place.file.clone(), line: self.document.lines().line(&path), below: String::new() }
    }

    /// Paths of its keys that stand twice in one mapping; the later one is in `value`.
    pub fn twice(&self) -> impl Iterator<Item = &str> {
        let below = self.place.below.as_str();
        let inside = move |path: &'_ str| path.strip_prefix(below).filter(|rest| below.is_empty() || rest.starts_with('.')).is_some();
        self.document.twice.iter().filter(move |path| inside(path)).map(move |path| path[below.len()..].trim_start_matches('.'))
    }
}

struct Document<'t> {
    file: Arc<str>,
    text: &'t str,
    before: u64,
    first_line: u64,
    lines: OnceCell<Lines>,
    /// Keys that stand twice in one mapping, of which the later one is taken: paths.
    twice: Vec<String>,
}

impl<'t> Document<'t> {
    /// `text` begins after `before` lines of its file.
    fn new(file: &Arc<str>, text: &'t str, before: u64) -> Self {
        let blank = |line: &str| line.trim().is_empty() || line.starts_with('#') || line.starts_with('%') || line.trim_end() == "---";
        let first_line = before + 1 + text.lines().take_while(|line| blank(line)).count() as u64;
        Self { file: file.clone(), text, before, first_line, lines: OnceCell::new(), twice: Vec::new() }
    }

    fn lines(&self) -> &Lines {
        self.lines.get_or_init(|| Lines::of(self.text, self.before))
    }
}

/// A file to read.
pub struct Source {
    /// Its path; `-` is standard input.
    pub path: PathBuf,
    /// Named itself, not found in a folder.
    pub named: bool,
}

/// The files that the arguments name: `-` and files as they are, folders by their manifests, sorted. As with kubectl, links to
/// folders below a folder are not followed.
///
/// # Errors
/// A path that doesn't exist, or a folder without manifests.
pub fn files(arguments: &[PathBuf]) -> Result<Vec<Source>, Unreadable> {
    let mut files = Vec::new();
    for path in arguments {
        if path.as_os_str() == "-" || !path.is_dir() {
            files.push(Source { path: path.clone(), named: true });
            continue;
        }
        let mut found = Vec::new();
        collect(path, FOLDERS_DEPTH_MAX, &mut found)?;
        if found.is_empty() {
            return Err(Unreadable { file: path.display().to_string(), line: None, why: "no .yaml, .yml or .json file in this folder".into() });
        }
        files.extend(found.into_iter().map(|path| Source { path, named: false }));
    }
    Ok(files)
}

fn collect(folder: &Path, depth: usize, files: &mut Vec<PathBuf>) -> Result<(), Unreadable> {
    let unreadable = |error: std::io::Error| Unreadable { file: folder.display().to_string(), line: None, why: error.to_string() };
    let mut entries: Vec<PathBuf> = std::fs::read_dir(folder).and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect()).map_err(unreadable)?;
    entries.sort();
    for path in entries {
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.')) {
            continue;
        }
        if path.is_dir() {
            if depth > 0 && !path.is_symlink() {
                collect(&path, depth - 1, files)?;
            }
        } else if path.extension().is_some_and(|ext| ["yaml", "yml", "json"].iter().any(|known| ext.eq_ignore_ascii_case(known))) {
            files.push(path);
        }
    }
    Ok(())
}

/// The text of one file, or of standard input for `-`.
///
/// # Errors
/// What can't be opened, is too large or isn't UTF-8.
pub fn text(path: &Path, stdin: &mut dyn Read) -> Result<(Arc<str>, String), Unreadable> {
    let is_stdin = path.as_os_str() == "-";
    let file: Arc<str> = if is_stdin { "<stdin>".into() } else { path.display().to_string().into() };
    let unreadable = |line, why: String| Unreadable { file: file.to_string(), line, why };
    let mut bytes = Vec::new();
    let read = if is_stdin {
        stdin.take(INPUT_BYTES_MAX + 1).read_to_end(&mut bytes)
    } else {
        std::fs::File::open(path).and_then(|open| open.take(INPUT_BYTES_MAX + 1).read_to_end(&mut bytes))
    };
    read.map_err(|error| unreadable(None, error.to_string()))?;
    if bytes.len() as u64 > INPUT_BYTES_MAX {
        return Err(unreadable(None, format!("larger than {} MiB", INPUT_BYTES_MAX >> 20)));
    }
    match String::from_utf8(bytes) {
        Ok(text) => Ok((file, text)),
        Err(error) => {
            let valid = error.utf8_error().valid_up_to();
            let line = error.as_bytes()[..valid].iter().filter(|byte| **byte == b'\n').count() as u64 + 1;
            Err(unreadable(Some(line), "not UTF-8".into()))
        }
    }
}

/// What one text holds.
#[derive(Debug, Default)]
pub struct Content {
    /// How many objects.
    pub objects: usize,
    /// The first of what is none: a document or an item of a list that is a single value or has no `kind`.
    pub stray: Option<Unreadable>,
}

/// Hands every object of `text` to `take`, items of lists one by one, and what is no object as an error.
///
/// # Errors
/// The first document that is neither YAML nor JSON.
pub fn objects(file: &Arc<str>, text: &str, take: &mut dyn FnMut(Result<Found<'_>, Unreadable>)) -> Result<Content, Unreadable> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut content = Content::default();
    let mut counted = |found: Result<Found<'_>, Unreadable>| {
        match &found {
            Ok(_) => content.objects += 1,
            Err(stray) if content.stray.is_none() => content.stray = Some(stray.clone()),
            Err(_) => {}
        }
        take(found);
    };
    let json_error = if text.trim_start().starts_with(['{', '[']) {
        match json_documents(file, text) {
            Ok(documents) => {
                documents.into_iter().for_each(|(document, value)| flatten(&document, String::new(), value, None, &mut counted));
                return Ok(content);
            }
            // YAML's flow style begins alike.
            Err(error) => Some(error),
        }
    } else {
        None
    };
    let is_json = file.to_ascii_lowercase().ends_with(".json");
    for mut document in yaml_documents(file, text) {
        let value = yaml(&mut document).map_err(|yaml| match &json_error {
            Some(json) if is_json || text.trim_end().ends_with(['}', ']']) => json.clone(),
            _ => yaml,
        })?;
        if !value.is_null() {
            flatten(&document, String::new(), value, None, &mut counted);
        }
    }
    Ok(content)
}

/// Reads a YAML document. A key that stands twice is noted, since it is the object's fault and not the text's.
fn yaml(document: &mut Document<'_>) -> Result<Value, Unreadable> {
    let text = document.text;
    let read = |duplicate_keys| {
        let mut options = options();
        options.duplicate_keys = duplicate_keys;
        serde_saphyr::from_str_with_options::<Value>(text, options)
    };
    let value = match read(DuplicateKeyPolicy::Error) {
        Err(error) if matches!(error.without_snippet(), serde_saphyr::Error::DuplicateMappingKey { .. }) => {
            read(DuplicateKeyPolicy::LastWins).inspect(|_| document.twice = document.lines().twice().into_iter().map(|(path, _)| path).collect())
        }
        read => read,
    };
    value.map_err(|error| {
        let line = error.location().map_or(document.first_line, |location| document.before + location.line());
        Unreadable { file: document.file.to_string(), line: Some(line), why: without_place(&error.to_string()) }
    })
}

/// The message of a YAML error without its own account of the place.
fn without_place(message: &str) -> String {
    let first = message.lines().next().unwrap_or_default();
    let end = first.find(" at line ").unwrap_or(first.len());
    let text = first[..end].trim();
    if text.starts_with("budget breached") || text.contains("alias replay") {
        return format!("more than one document may have, as a bomb of aliases does ({text})");
    }
    if text.is_empty() { first.to_owned() } else { text.to_owned() }
}

/// JSON texts one after another, as `kubectl` and log files have them.
fn json_documents<'t>(file: &Arc<str>, text: &'t str) -> Result<Vec<(Document<'t>, Value)>, Unreadable> {
    let mut documents = Vec::new();
    let mut stream = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    let (mut start, mut before) = (0, 0);
    while let Some(value) = stream.next() {
        let end = stream.byte_offset();
        let value = value.map_err(|error| Unreadable {
            file: file.to_string(),
            line: Some(error.line() as u64),
            why: format!("not JSON: {}", without_place(&error.to_string())),
        })?;
        let slice = text.get(start..end).unwrap_or_default();
        documents.push((Document::new(file, slice, before), value));
        before += slice.bytes().filter(|byte| *byte == b'\n').count() as u64;
        start = end;
    }
    Ok(documents)
}

/// Splits at lines that begin with `---`: YAML has no other place for them.
fn yaml_documents<'t>(file: &Arc<str>, text: &'t str) -> Vec<Document<'t>> {
    let mut documents = Vec::new();
    let (mut start, mut before, mut offset, mut line_number) = (0, 0, 0, 0);
    let mut content = false;
    let mut push = |from: usize, to: usize, before| documents.push(Document::new(file, &text[from..to], before));
    for line in text.split_inclusive('\n') {
        let bare = line.trim_end();
        let separator = line.starts_with("---") && (bare.len() == 3 || line[3..].starts_with([' ', '\t']));
        if separator && content {
            push(start, offset, before);
            (start, before) = (offset, line_number);
        }
        // Directives and comments belong to the document that follows.
        content |= separator || !(bare.is_empty() || bare.starts_with(['#', '%']));
        offset += line.len();
        line_number += 1;
    }
    if content {
        push(start, offset, before);
    }
    documents
}

/// Takes lists apart. `inherit` is the `apiVersion` and `kind` of items that have none, as those of a `PodList`.
fn flatten(document: &Document<'_>, below: String, mut value: Value, inherit: Option<(&Value, &str)>, take: &mut dyn FnMut(Result<Found<'_>, Unreadable>)) {
    if let (Some((api_version, kind)), Some(members)) = (inherit, value.as_object_mut())
        && !members.contains_key("kind")
    {
        members.insert("kind".into(), kind.into());
        members.entry("apiVersion").or_insert_with(|| api_version.clone());
    }
    match kind_of(&value) {
        Err(why) => {
            let line = if below.is_empty() { document.first_line } else { document.lines().line(&below) };
            take(Err(Unreadable { file: document.file.to_string(), line: Some(line), why: format!("not a Kubernetes object: {why}") }));
        }
        Ok(kind) => match kind.strip_suffix("List").map(str::to_owned) {
            Some(item_kind) if item_kind.is_empty() || value.get("items").is_some() => {
                let items = match value.get_mut("items").map(Value::take) {
                    Some(Value::Array(items)) => items,
                    _ => Vec::new(),
                };
                let api_version = value.get("apiVersion").cloned().unwrap_or_default();
                let inherit = (!item_kind.is_empty()).then_some((&api_version, &*item_kind));
                let prefix = if below.is_empty() { String::new() } else { format!("{below}.") };
                for (i, item) in items.into_iter().enumerate() {
                    flatten(document, format!("{prefix}items[{i}]"), item, inherit, take);
                }
            }
            _ => {
                let place = Place { file: document.file.clone(), line: document.first_line, below };
                take(Ok(Found { value, place, document }));
            }
        },
    }
}

/// The kind of an object, or why it is none.
fn kind_of(value: &Value) -> Result<&str, &'static str> {
    let members = match value {
        Value::Object(members) => members,
        Value::Array(_) => return Err("it is a bare list; use kind: List"),
        _ => return Err("it is a single value"),
    };
    let kind = members.get("kind").and_then(Value::as_str).filter(|kind| !kind.is_empty()).ok_or("kind is missing")?;
    let items = members.get("items").filter(|_| kind.ends_with("List"));
    if items.is_some_and(|items| !items.is_null() && !items.is_array()) { Err("items is not a list") } else { Ok(kind) }
}
