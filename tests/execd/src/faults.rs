//! Faults on demand: `POST /standin` with a [`Setting`].

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::Deserialize;

/// How events are framed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Framing {
    /// A JSON object and an empty line.
    #[default]
    Bare,
    /// `data: ` before it.
    Data,
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Kind {
    /// The answer is this status with a plain text, and nothing is done.
    Status(u16),
    /// It is done; the answer is this status with a plain text.
    StatusAfter(u16),
    /// It is done; the answer never comes.
    Hang,
    /// `POST /command` only: it is started, and the stream ends after `init`.
    EndAfterInit,
}

/// A fault: of requests of that method whose path begins so, the next `times`.
#[derive(Clone, Debug, Deserialize)]
pub struct Fault {
    method: String,
    path: String,
    kind: Kind,
    times: u32,
}

/// The body of `POST /standin`; it replaces what was set before.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Setting {
    /// How events are framed.
    pub framing: Framing,
    /// How long after `init` a background command has no status.
    pub known_after_millis: u64,
    /// Faults.
    pub faults: Vec<Fault>,
}

/// What is set now.
#[derive(Default)]
pub struct Faults(Mutex<Setting>);

impl Faults {
    /// Sets it.
    pub fn set(&self, setting: Setting) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = setting;
    }

    /// How events are framed, and how late a command is known.
    pub fn manner(&self) -> (Framing, Duration) {
        let setting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (setting.framing, Duration::from_millis(setting.known_after_millis))
    }

    /// Takes the fault that strikes this request.
    pub fn take(&self, method: &str, path: &str) -> Option<Kind> {
        let mut setting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fault = setting.faults.iter_mut().find(|fault| fault.times > 0 && fault.method == method && path.starts_with(&fault.path))?;
        fault.times -= 1;
        Some(fault.kind)
    }
}
