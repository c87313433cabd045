//! `--config FILE`: reads a BerthConfiguration and builds its profile, telling everything that is wrong at once.

use std::fmt;
use std::path::Path;

use berth_framework::profile::{BerthConfiguration, Profiles, Registry};

use crate::simulate::lines::{Lines, options};

/// A configuration that can't be used: every problem, with file, line and field.
#[derive(Debug)]
pub struct ConfigFileError {
    problems: Vec<String>,
}

impl fmt::Display for ConfigFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.problems.as_slice() {
            [one] => f.write_str(one),
            many => {
                write!(f, "{} problems:", many.len())?;
                many.iter().try_for_each(|problem| write!(f, "\n  {problem}"))
            }
        }
    }
}

impl std::error::Error for ConfigFileError {}

/// The profiles of `file`, or the default one.
///
/// # Errors
/// Everything that is wrong.
pub fn load(file: Option<&Path>, registry: &Registry) -> Result<Profiles, ConfigFileError> {
    let Some(path) = file else {
        return registry.default_profile().map(Into::into).map_err(|errors| ConfigFileError { problems: errors.iter().map(ToString::to_string).collect() });
    };
    let name = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| ConfigFileError { problems: vec![format!("{name}: {error}")] })?;
    parse(&text, &name.to_string(), registry)
}

fn parse(text: &str, name: &str, registry: &Registry) -> Result<Profiles, ConfigFileError> {
    let configuration: BerthConfiguration = serde_saphyr::from_str_with_options(text, options()).map_err(|error| {
        let message = error.to_string();
        let message = message.lines().next().unwrap_or_default();
        let message = message.split(" at line ").next().unwrap_or(message);
        ConfigFileError {
            problems: vec![match error.location() {
                Some(at) => format!("{name}:{}:{}: {message}", at.line(), at.column()),
                None => format!("{name}: {message}"),
            }],
        }
    })?;
    registry.profiles(&configuration).map_err(|errors| {
        let lines = Lines::of(text, 0);
        ConfigFileError { problems: errors.iter().map(|error| format!("{name}:{}: {error}", lines.line(&error.path))).collect() }
    })
}
