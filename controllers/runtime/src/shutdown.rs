//! The tasks of a process in ordered groups: started first, stopped last.
//!
//! A group is told to stop only when every later group has ended, so that a worker's last writes still find the informers and the
//! event recorder alive. A task that ends before it was told to ends the process: nothing runs on half a controller.

use futures::FutureExt;
use std::panic::AssertUnwindSafe;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Why [`Supervisor::run`] ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It was asked to, and every task ended in its group's time.
    Stopped,
    /// A task ended by itself, failed or panicked; the rest was stopped.
    Failed {
        /// Its name.
        task: &'static str,
        /// What it said.
        error: String,
    },
    /// It was asked to, and these tasks had to be aborted.
    Aborted(Vec<&'static str>),
}

/// Groups of tasks; see the module.
#[derive(Default)]
pub struct Supervisor {
    groups: Vec<Group>,
}

/// Tasks that stop together.
pub struct Group {
    stop: CancellationToken,
    stop_within: Duration,
    tasks: JoinSet<(&'static str, Result<(), String>)>,
    names: Vec<&'static str>,
}

impl Group {
    /// What tells this group's tasks to stop.
    pub fn stop(&self) -> CancellationToken {
        self.stop.clone()
    }

    /// Starts a task at once. It is expected to run until [`stop`](Self::stop) is cancelled.
    pub fn spawn<E: std::fmt::Display>(&mut self, name: &'static str, task: impl Future<Output = Result<(), E>> + Send + 'static) {
        self.names.push(name);
        self.tasks.spawn(async move {
            let result = match AssertUnwindSafe(task).catch_unwind().await {
                Ok(result) => result.map_err(|error| error.to_string()),
                Err(_) => Err("panicked".to_owned()),
            };
            (name, result)
        });
    }

    /// Tells the tasks to stop and waits; the names of those that had to be aborted.
    async fn end(&mut self) -> Vec<&'static str> {
        self.stop.cancel();
        let all = async {
            while let Some(ended) = self.tasks.join_next().await {
                if let Ok((name, result)) = ended {
                    self.names.retain(|running| *running != name);
                    if let Err(error) = result {
                        tracing::warn!(task = name, %error, "failed while stopping");
                    }
                }
            }
        };
        match tokio::time::timeout(self.stop_within, all).await {
            Ok(()) => Vec::new(),
            Err(_) => {
                self.tasks.abort_all();
                std::mem::take(&mut self.names)
            }
        }
    }
}

impl Supervisor {
    /// No groups yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// A further group, to be stopped before all earlier ones, and given `stop_within` for it.
    pub fn group(&mut self, stop_within: Duration) -> &mut Group {
        let group = Group { stop: CancellationToken::new(), stop_within, tasks: JoinSet::new(), names: Vec::new() };
        self.groups.push(group);
        let last = self.groups.len() - 1;
        &mut self.groups[last]
    }

    /// Waits for `shutdown` or the first task that ends by itself, then stops the groups, last one first.
    pub async fn run(mut self, shutdown: CancellationToken) -> Ended {
        let failed = tokio::select! {
            () = shutdown.cancelled() => None,
            (task, result) = first_end(&mut self.groups) => {
                let error = result.err().unwrap_or_else(|| "ended unexpectedly".to_owned());
                tracing::error!(task, %error, "a task ended by itself; stopping");
                Some((task, error))
            }
        };
        let mut aborted = Vec::new();
        for group in self.groups.iter_mut().rev() {
            aborted.append(&mut group.end().await);
        }
        match failed {
            Some((task, error)) => Ended::Failed { task, error },
            None if aborted.is_empty() => Ended::Stopped,
            None => Ended::Aborted(aborted),
        }
    }
}

async fn first_end(groups: &mut [Group]) -> (&'static str, Result<(), String>) {
    let ends = groups.iter_mut().map(|group| {
        Box::pin(async {
            match group.tasks.join_next().await {
                Some(Ok((name, result))) => {
                    group.names.retain(|running| *running != name);
                    (name, result)
                }
                Some(Err(error)) => ("?", Err(error.to_string())),
                None => futures::future::pending().await,
            }
        })
    });
    let ends: Vec<_> = ends.collect();
    if ends.is_empty() {
        return futures::future::pending().await;
    }
    futures::future::select_all(ends).await.0
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    type Log = Arc<Mutex<Vec<&'static str>>>;

    async fn until(stop: CancellationToken, last_words: Duration, log: Log, name: &'static str) -> Result<(), String> {
        stop.cancelled().await;
        tokio::time::sleep(last_words).await;
        log.lock().unwrap().push(name);
        Ok(())
    }

    fn world(log: &Log, slow_ms: u64) -> Supervisor {
        let mut supervisor = Supervisor::new();
        for (name, last_ms) in [("informers", 0), ("recorder", 5), ("workers", slow_ms)] {
            let group = supervisor.group(Duration::from_secs(1));
            group.spawn(name, until(group.stop(), Duration::from_millis(last_ms), log.clone(), name));
        }
        supervisor
    }

    #[tokio::test(start_paused = true)]
    async fn groups_stop_in_reverse_order_each_after_the_next() {
        let log = Log::default();
        let shutdown = CancellationToken::new();
        shutdown.cancel();
        assert_eq!(world(&log, 900).run(shutdown).await, Ended::Stopped);
        assert_eq!(*log.lock().unwrap(), ["workers", "recorder", "informers"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_group_that_takes_too_long_is_aborted_and_named() {
        let log = Log::default();
        let shutdown = CancellationToken::new();
        shutdown.cancel();
        assert_eq!(world(&log, 5_000).run(shutdown).await, Ended::Aborted(vec!["workers"]));
        assert_eq!(*log.lock().unwrap(), ["recorder", "informers"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_ends_by_itself_stops_the_rest() {
        let log = Log::default();
        for (error, result) in [("boom", Err("boom")), ("ended unexpectedly", Ok(()))] {
            let mut supervisor = world(&log, 0);
            supervisor.group(Duration::from_secs(1)).spawn("lease", async move { result });
            let ended = supervisor.run(CancellationToken::new()).await;
            assert_eq!(ended, Ended::Failed { task: "lease", error: error.to_owned() });
        }
        let mut supervisor = Supervisor::new();
        supervisor.group(Duration::from_secs(1)).spawn("core", async { if true { panic!("bug") } else { Ok::<(), String>(()) } });
        assert_eq!(supervisor.run(CancellationToken::new()).await, Ended::Failed { task: "core", error: "panicked".to_owned() });
    }
}
