//! The watch on the one Lease: makes a standby quick. Whatever it can't tell, a read does.

use crate::backoff::Backoff;
use futures::StreamExt;
use futures::stream::BoxStream;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::runtime::watcher::{self, Event, watcher};
use tokio::time::Instant;

/// The server ends each watch after that many seconds; a dead connection is noticed 5 s later. Polling goes on meanwhile.
const TIMEOUT_S: u32 = 60;
/// Between failing attempts.
const BACKOFF: Backoff = Backoff::WATCHES;

/// What the watch tells.
#[derive(Debug)]
pub(super) enum Told {
    /// The Lease is like that, or was a moment ago.
    Is(Box<Lease>),
    /// It is gone.
    Gone,
}

pub(super) struct Watching {
    events: BoxStream<'static, Result<Event<Lease>, watcher::Error>>,
    found: bool,
    failures: u32,
    resume: Option<Instant>,
}

impl Watching {
    pub fn new(api: Api<Lease>, name: &str) -> Self {
        let config = watcher::Config::default().fields(&format!("metadata.name={name}")).timeout(TIMEOUT_S);
        Self { events: watcher(api, config).boxed(), found: false, failures: 0, resume: None }
    }

    /// The next thing told; waits for ever if there is none. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Told {
        loop {
            if let Some(at) = self.resume {
                tokio::time::sleep_until(at).await;
                self.resume = None;
            }
            match self.events.next().await {
                Some(Ok(event)) => {
                    self.failures = 0;
                    match event {
                        Event::Init => self.found = false,
                        Event::InitApply(lease) | Event::Apply(lease) => {
                            self.found = true;
                            return Told::Is(Box::new(lease));
                        }
                        Event::Delete(_) => return Told::Gone,
                        Event::InitDone if !self.found => return Told::Gone,
                        Event::InitDone => {}
                    }
                }
                Some(Err(error)) => {
                    tracing::debug!(%error, "the watch of the lease failed");
                    self.resume = Some(Instant::now() + BACKOFF.delay(self.failures));
                    self.failures = self.failures.saturating_add(1);
                }
                // kube's watcher stream never ends.
                None => return futures::future::pending().await,
            }
        }
    }
}
