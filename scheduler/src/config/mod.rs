//! BerthConfiguration as text: read, checked, shown. Everything wrong is told at once, with line, column and field.
//!
//! ```text
//! text ─► YAML (syntax, keys that stand twice) ─► shape (JSON schema: fields, types) ─► rules (Registry::profiles) ─► Loaded | Refused
//!                                                    └─ what is wrong is cut out, so that the rules still see the rest
//! ```

mod command;
pub mod document;
mod policies;
mod reference;
pub mod schema;
mod shape;

use std::fmt;
use std::io::Read;
use std::path::Path;

use berth_controllers::policy::Policies;
use berth_framework::profile::{BerthConfiguration, CONFIG_API_VERSION, CONFIG_KIND, ConfigError, Profiles, Registry};

use crate::simulate::lines::{Lines, Place};

pub use command::{ConfigArgs, run, summary};
pub use policies::policies;
pub use reference::reference;

/// One thing wrong with a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where, if it is about a place.
    pub place: Option<Place>,
    /// Field path, empty if it is about the whole.
    pub path: String,
    /// What is wrong and what would be right.
    pub message: String,
}

/// A configuration that can't be used: every problem, in the order of the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// File, or whatever the text came from.
    pub source: String,
    /// What is wrong; never empty.
    pub problems: Vec<Problem>,
}

impl Refused {
    /// About the text as a whole.
    pub fn whole(source: &str, message: impl Into<String>) -> Self {
        Self { source: source.to_owned(), problems: vec![Problem { place: None, path: String::new(), message: message.into() }] }
    }

    fn line(&self, problem: &Problem, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.source)?;
        if let Some(Place { line, column }) = problem.place {
            write!(f, ":{line}:{column}")?;
        }
        if !problem.path.is_empty() {
            write!(f, ": {}", problem.path)?;
        }
        write!(f, ": {}", problem.message)
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [one] = self.problems.as_slice() {
            return self.line(one, f);
        }
        write!(f, "{} problems:", self.problems.len())?;
        for problem in &self.problems {
            f.write_str("\n  ")?;
            self.line(problem, f)?;
        }
        Ok(())
    }
}

impl std::error::Error for Refused {}

/// A configuration that can be used.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// As written.
    pub written: BerthConfiguration,
    /// With every default merged: what is in force.
    pub effective: BerthConfiguration,
    /// Its profiles.
    pub profiles: Profiles,
}

impl Loaded {
    /// What stands without a configuration.
    ///
    /// # Errors
    /// A plugin of this binary that refuses its own defaults.
    pub fn defaults(registry: &Registry) -> Result<Self, Refused> {
        Self::new(BerthConfiguration::default(), registry).map_err(|errors| {
            let problem = |error: ConfigError| Problem { place: None, path: error.path, message: error.message };
            Refused { source: "defaults".to_owned(), problems: errors.into_iter().map(problem).collect() }
        })
    }

    /// What it says to the reconcilers.
    pub fn policies(&self) -> Policies {
        policies(&self.effective)
    }

    /// Whether this may take over from `start` while the process runs; `text` is what it was read from.
    ///
    /// # Errors
    /// Every setting that is another one and can't change.
    pub fn refuse_changes(
        &self,
        start: &BerthConfiguration,
        over: impl Fn(&BerthConfiguration) -> BerthConfiguration,
        text: &str,
        source: &str,
    ) -> Result<(), Refused> {
        let settled = |configuration: &BerthConfiguration| {
            let configuration = over(configuration);
            let election = serde_json::to_value(&configuration.leader_election).unwrap_or_default();
            let election = ["leaderElect", "leaseDuration", "renewDeadline", "retryPeriod", "resourceName", "resourceNamespace"]
                .map(|field| (format!("leaderElection.{field}"), election.get(field).cloned().unwrap_or_default()));
            std::iter::once(("bindWorkers".to_owned(), serde_json::json!(configuration.bind_workers))).chain(election).collect::<Vec<_>>()
        };
        let lines = Lines::of(text, 0);
        let word =
            |value: &serde_json::Value| value.as_str().map_or_else(|| if value.is_null() { "unset".to_owned() } else { value.to_string() }, str::to_owned);
        let changed = settled(start).into_iter().zip(settled(&self.effective)).filter(|((_, is), (_, would))| is != would);
        let problem = |((path, is), (_, would)): ((String, serde_json::Value), (String, serde_json::Value))| Problem {
            place: Some(lines.value(&path)),
            message: format!("can't change while berth runs: is {}, would be {}; restart it", word(&is), word(&would)),
            path,
        };
        let problems: Vec<Problem> = changed.map(problem).collect();
        if problems.is_empty() { Ok(()) } else { Err(Refused { source: source.to_owned(), problems }) }
    }

    fn new(written: BerthConfiguration, registry: &Registry) -> Result<Self, Vec<ConfigError>> {
        let profiles = registry.profiles(&written)?;
        let effective = registry.effective(&written)?;
        Ok(Self { written, effective, profiles })
    }
}

/// The profiles of `file`, or the default one.
///
/// # Errors
/// Everything that is wrong.
pub fn load(file: Option<&Path>, registry: &Registry) -> Result<Profiles, Refused> {
    load_whole(file, registry).map(|loaded| loaded.profiles)
}

/// The configuration of `file`, or the defaults.
///
/// # Errors
/// Everything that is wrong.
pub fn load_whole(file: Option<&Path>, registry: &Registry) -> Result<Loaded, Refused> {
    let Some(path) = file else { return Loaded::defaults(registry) };
    let source = path.display().to_string();
    let bytes = std::fs::read(path).map_err(|error| Refused::whole(&source, error.to_string()))?;
    parse_bytes(bytes, &source, registry)
}

/// The configuration that `input` holds.
///
/// # Errors
/// Everything that is wrong.
pub fn read(input: &mut dyn Read, source: &str, registry: &Registry) -> Result<Loaded, Refused> {
    let mut bytes = Vec::new();
    input.read_to_end(&mut bytes).map_err(|error| Refused::whole(source, error.to_string()))?;
    parse_bytes(bytes, source, registry)
}

fn parse_bytes(bytes: Vec<u8>, source: &str, registry: &Registry) -> Result<Loaded, Refused> {
    let text = text_of(bytes).map_err(|why| Refused::whole(source, why))?;
    parse(&text, source, registry)
}

/// The text of a file.
///
/// # Errors
/// The line that is not UTF-8.
pub fn text_of(bytes: Vec<u8>) -> Result<String, String> {
    String::from_utf8(bytes).map_err(|error| {
        let line = error.as_bytes()[..error.utf8_error().valid_up_to()].iter().filter(|byte| **byte == b'\n').count() + 1;
        format!("line {line} is not UTF-8")
    })
}

/// Reads a configuration, YAML or JSON.
///
/// # Errors
/// Everything that is wrong.
pub fn parse(text: &str, source: &str, registry: &Registry) -> Result<Loaded, Refused> {
    let refused = |problems| Refused { source: source.to_owned(), problems };
    let mut value = document::read(text).map_err(|problem| refused(vec![problem]))?;
    let lines = Lines::of(text, 0);
    let twice = lines.twice().into_iter().map(|(path, place)| Problem { place: Some(place), message: "is set twice in this mapping".to_owned(), path });
    let mut problems: Vec<Problem> = twice.collect();
    if let Some(message) = other_kind(&value) {
        problems.push(Problem { place: Some(lines.value("kind")), path: "kind".to_owned(), message });
        return Err(refused(problems));
    }
    document::without_nulls(&mut value);
    let found = shape::check(&value, registry);
    let cuts = shape::cut(&mut value, &found);
    let place = |finding: &shape::Finding| if finding.at_key { lines.key(&finding.path) } else { lines.value(&finding.path) };
    let (weak, strong): (Vec<_>, Vec<_>) = found.into_iter().partition(|finding| finding.weak);
    problems.extend(strong.iter().map(|finding| Problem { place: Some(place(finding)), path: finding.path.clone(), message: finding.message.clone() }));
    match serde_json::from_value::<BerthConfiguration>(value).map_err(|error| error.to_string()) {
        Err(message) if problems.is_empty() && weak.is_empty() => problems.push(Problem { place: None, path: String::new(), message }),
        Err(_) => {}
        Ok(configuration) => match Loaded::new(configuration, registry) {
            Ok(loaded) if problems.is_empty() && weak.is_empty() => return Ok(loaded),
            Ok(_) => {}
            Err(errors) => {
                let errors = errors.into_iter().filter(|error| !cuts.explain(error));
                problems.extend(errors.map(|error| Problem { place: Some(lines.value(&error.path)), path: error.path, message: error.message }));
            }
        },
    }
    // What the rules say of a field is better than what the schema says of it.
    for finding in weak {
        if problems.iter().all(|problem| problem.path != finding.path) {
            problems.push(Problem { place: Some(place(&finding)), path: finding.path, message: finding.message });
        }
    }
    problems.sort_by(|a, b| (a.place, &a.path, &a.message).cmp(&(b.place, &b.path, &b.message)));
    problems.dedup();
    Err(refused(problems))
}

/// Whether this is an object of another kind, which would only lead to a flood of messages.
fn other_kind(value: &serde_json::Value) -> Option<String> {
    let text = |field: &str| value.get(field).and_then(serde_json::Value::as_str);
    let kind = text("kind").filter(|kind| *kind != CONFIG_KIND)?;
    Some(match kind {
        "ConfigMap" => {
            "this is a ConfigMap; what is checked is the text in its data, as `kubectl get configmap NAME -o jsonpath='{.data.config\\.yaml}'` prints it"
                .to_owned()
        }
        _ if text("apiVersion") == Some(CONFIG_API_VERSION) => format!("must be {CONFIG_KIND}, not {kind:?}"),
        _ => format!("must be {CONFIG_KIND} of {CONFIG_API_VERSION}, not {kind:?}"),
    })
}
