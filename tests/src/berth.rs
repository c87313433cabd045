//! The real `berth` binary as a child process: started, awaited, asked for metrics, terminated, killed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;

use crate::https::{self, Trust};
use crate::poll::{PATIENCE, until};
use crate::process::{self, Guarded, Scratch, free_port};

/// The binary under test: `BERTH_BIN` if set, else the one beside the running test binary's folder.
pub fn binary() -> Result<PathBuf> {
    process::built("berth", "berth-scheduler", "BERTH_BIN")
}

/// How `berth serve` is started. Every further flag goes through [`Serve::arg`].
#[derive(Debug)]
pub struct Serve {
    args: Vec<String>,
    env: Vec<(String, String)>,
    token: Option<String>,
}

impl Serve {
    /// `berth serve --kubeconfig FILE`.
    #[must_use]
    pub fn new(kubeconfig: &Path) -> Self {
        let args = ["serve", "--kubeconfig", &kubeconfig.to_string_lossy()].map(str::to_owned).to_vec();
        Self { args, env: Vec::new(), token: None }
    }

    /// Watches this namespace only.
    #[must_use]
    pub fn namespace(self, namespace: &str) -> Self {
        self.arg("--namespace").arg(namespace)
    }

    /// Reads this BerthConfiguration.
    #[must_use]
    pub fn config(self, file: &Path) -> Self {
        self.arg("--config").arg(file.to_string_lossy())
    }

    /// With `--delegated-auth`, so over TLS; the harness itself shows `token`.
    #[must_use]
    pub fn secure(mut self, token: &str) -> Self {
        self.token = Some(token.to_owned());
        self.arg("--delegated-auth")
    }

    /// One further argument.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<String>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// One environment variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Starts it; its log goes to `scratch`, its endpoints to a free loopback port.
    pub fn start(self, scratch: &Scratch) -> Result<Berth> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let port = free_port()?;
        let log = scratch.path().join(format!("berth-{}.log", NEXT.fetch_add(1, Ordering::Relaxed)));
        let mut command = Command::new(binary()?);
        command.args(&self.args).arg(format!("--metrics-addr=127.0.0.1:{port}")).envs(self.env);
        Ok(Berth { process: Guarded::spawn("berth", command, &log)?, port, token: self.token })
    }

    /// Starts it and waits until every cache is synced.
    pub async fn start_ready(self, scratch: &Scratch) -> Result<Berth> {
        let mut berth = self.start(scratch)?;
        berth.ready().await?;
        Ok(berth)
    }
}

/// A running `berth serve`. Dropping it kills it with SIGKILL.
pub struct Berth {
    process: Guarded,
    port: u16,
    token: Option<String>,
}

impl Berth {
    /// Waits for /readyz; fails at once, with the log, if the process ends.
    pub async fn ready(&mut self) -> Result<()> {
        let start = std::time::Instant::now();
        loop {
            if self.get("/readyz").await.is_ok_and(|(code, _)| code == 200) {
                return Ok(());
            }
            self.process.must_run()?;
            if start.elapsed() > PATIENCE {
                bail!("berth is not ready after {PATIENCE:?}:\n{}", crate::process::tail(&self.log(), 40));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Where its endpoints are.
    pub fn url(&self) -> String {
        format!("{}://127.0.0.1:{}", if self.token.is_some() { "https" } else { "http" }, self.port)
    }

    /// GET of one of its endpoints: status and body.
    pub async fn get(&self, path: &str) -> Result<(u16, String)> {
        if let Some(token) = &self.token {
            return tokio::time::timeout(Duration::from_secs(10), https::get(&self.url(), path, Some(token), Trust::Anybody)).await?;
        }
        let uri = format!("http://127.0.0.1:{}{path}", self.port).parse()?;
        let client: Client<_, Empty<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
        let answer = tokio::time::timeout(Duration::from_secs(10), client.get(uri)).await??;
        let code = answer.status().as_u16();
        let body = answer.into_body().collect().await?.to_bytes();
        Ok((code, String::from_utf8(body.to_vec())?))
    }

    /// Its metrics now.
    pub async fn metrics(&self) -> Result<Metrics> {
        let (code, text) = self.get("/metrics").await?;
        ensure!(code == 200, "/metrics answered {code}");
        Metrics::parse(&text)
    }

    /// Waits until the sum over the series of `name` with `labels` is at least `least`.
    pub async fn metric_at_least(&self, name: &str, labels: &[(&str, &str)], least: f64) -> Result<f64> {
        until(&format!("{name}{labels:?} >= {least}"), PATIENCE, || async {
            let sum = self.metrics().await?.sum(name, labels);
            Ok((sum >= least).then_some(sum))
        })
        .await
    }

    /// Everything it has logged.
    #[must_use]
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// The file that [`log`](Self::log) is read from.
    #[must_use]
    pub fn log_file(&self) -> &Path {
        self.process.log_file()
    }

    /// SIGTERM, then waits for the end.
    pub async fn terminate(mut self) -> Result<(ExitStatus, String)> {
        self.process.terminate()?;
        tokio::task::spawn_blocking(move || Ok((self.process.wait(PATIENCE)?, self.process.log()))).await?
    }

    /// SIGKILL.
    pub fn kill(mut self) -> Result<String> {
        self.process.kill()?;
        Ok(self.process.log())
    }

    /// The process itself, for other signals.
    pub fn process(&mut self) -> &mut Guarded {
        &mut self.process
    }
}

/// A scrape in the Prometheus text format.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    series: Vec<(String, BTreeMap<String, String>, f64)>,
}

impl Metrics {
    /// Reads the text format.
    pub fn parse(text: &str) -> Result<Self> {
        let mut series = Vec::new();
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let series_of = || format!("not a metric: {line}");
            let (head, value) = line.rsplit_once(' ').with_context(series_of)?;
            let (name, labels) = match head.split_once('{') {
                Some((name, labels)) => (name, labels.strip_suffix('}').with_context(series_of)?),
                None => (head, ""),
            };
            series.push((name.to_owned(), labels_of(labels).with_context(series_of)?, value.parse()?));
        }
        Ok(Self { series })
    }

    /// The sum over every series of `name` that carries all of `labels`; 0 if there is none.
    #[must_use]
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let carries = |of: &BTreeMap<String, String>| labels.iter().all(|(k, v)| of.get(*k).is_some_and(|have| have == v));
        self.series.iter().filter(|(n, of, _)| n == name && carries(of)).map(|(_, _, value)| value).sum()
    }

    /// Whether there is any series of `name`.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.series.iter().any(|(n, ..)| n == name)
    }
}

/// `a="x",b="y"`; a value may hold escaped quotes, backslashes and line ends.
fn labels_of(text: &str) -> Option<BTreeMap<String, String>> {
    let mut labels = BTreeMap::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (name, after) = rest.split_once("=\"")?;
        let mut value = String::new();
        let mut chars = after.char_indices();
        let end = loop {
            match chars.next()? {
                (end, '"') => break end,
                (_, '\\') => match chars.next()?.1 {
                    'n' => value.push('\n'),
                    other => value.push(other),
                },
                (_, other) => value.push(other),
            }
        };
        labels.insert(name.trim_start_matches(',').to_owned(), value);
        rest = &after[end + 1..];
    }
    Some(labels)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_read_and_summed() {
        let text = "# HELP x y\nx{a=\"1\",b=\"q\\\"}\\n\"} 2\nx{a=\"1\",b=\"z\"} 3\nx{a=\"2\"} 4\ny 1e3\nz{le=\"+Inf\"} +Inf\n";
        let metrics = Metrics::parse(text).unwrap();
        assert_eq!(metrics.sum("x", &[]), 9.0);
        assert_eq!(metrics.sum("x", &[("a", "1")]), 5.0);
        assert_eq!(metrics.sum("x", &[("b", "q\"}\n")]), 2.0);
        assert_eq!(metrics.sum("y", &[]), 1000.0);
        assert!(metrics.has("z") && !metrics.has("absent"));
    }
}
