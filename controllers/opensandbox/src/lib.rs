//! A client of OpenSandbox, by what was measured of server 1.1.1 and execd: sandboxes through the lifecycle API, commands through execd.
//!
//! Neither API knows an idempotency key, so what matters of a failed call is what is certain after it: [`Error::certainty`].
//! [`fence`] makes a command's start repeatable all the same, inside the sandbox. [`registry`] finds an image's credentials.
//!
//! Values of secrets travel as [`secrecy::SecretString`]; the bodies of error answers, which may echo what was sent, are reduced to a closed set
//! of [`Code`]s at once. Nothing here logs.

mod answer;
mod endpoint;
mod error;
mod events;
mod execd;
pub mod fence;
mod lifecycle;
pub mod registry;
mod secret;
mod transport;
mod types;

pub use endpoint::{Access, InvalidUrl, ServerUrl};
pub use error::{Cause, Certainty, Code, Error, Failure, Operation, Refusal, TlsTrouble, Unsent};
pub use events::{Event, ExecutionError};
pub use execd::{Command, CommandStatus, Execd, Interrupted, Logs, Outcome, Output};
pub use lifecycle::Client;
pub use secret::{ApiKeys, access_token};
pub use transport::{Breaker, CallObserver, InvalidAuthority, Settings, Timeouts};
pub use types::{CreateSandbox, Image, ImageAuth, Metadata, Page, Platform, Sandbox, State, Status};
