//! A real Prometheus on loopback, and its promtool.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use berth_tests::controlplane::checkout;
use berth_tests::poll::{PATIENCE, until};
use berth_tests::process::{Guarded, Scratch, free_port};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};

/// How often it scrapes and evaluates rules, in the words of its configuration.
const EVERY: &str = "500ms";

/// Runs promtool; its output if it finds something wrong.
pub fn promtool(args: &[&str]) -> Result<()> {
    let output = Command::new("promtool").args(args).stdin(Stdio::null()).output().context("cannot run promtool: apt-get install prometheus")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "promtool {}: {text}", args.join(" "));
    Ok(())
}

/// deploy/prometheus/NAME.yaml.
pub fn rule_file(name: &str) -> PathBuf {
    checkout().join("deploy/prometheus").join(format!("{name}.yaml"))
}

/// A running Prometheus. Dropping it kills it.
pub struct Prometheus {
    _process: Guarded,
    port: u16,
}

impl Prometheus {
    /// Scrapes these ports as the chart's ServiceMonitor would, with its account's token, and evaluates the rules of deploy/prometheus.
    pub async fn start(scratch: &Scratch, ports: &[(&str, u16)], token: &str) -> Result<Self> {
        let targets: Vec<_> =
            ports.iter().map(|(pod, port)| json!({"targets": [format!("127.0.0.1:{port}")], "labels": {"namespace": "berth", "pod": pod}})).collect();
        let config = json!({
            "global": {"scrape_interval": EVERY, "scrape_timeout": EVERY, "evaluation_interval": EVERY},
            "rule_files": [rule_file("rules"), rule_file("alerts")],
            "scrape_configs": [{
                "job_name": "berth", "static_configs": targets,
                "scheme": "https", "authorization": {"credentials": token}, "tls_config": {"insecure_skip_verify": true},
            }],
        });
        let config = scratch.write("prometheus.yaml", config.to_string())?;
        let port = free_port()?;
        let mut command = Command::new("prometheus");
        command
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", scratch.path().join("prometheus").display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .arg("--log.level=warn");
        let process = Guarded::spawn("prometheus", command, &scratch.path().join("prometheus.log")).context("apt-get install prometheus")?;
        let prometheus = Self { _process: process, port };
        until("prometheus to be ready", PATIENCE, || async { Ok((get(prometheus.port, "/-/ready").await?.0 == 200).then_some(())) }).await?;
        Ok(prometheus)
    }

    /// An instant query: the samples, each with its labels and a value that is a number.
    pub async fn query(&self, query: &str) -> Result<Vec<(Value, f64)>> {
        let path = format!("/api/v1/query?query={}", percent(query));
        let (code, body) = get(self.port, &path).await?;
        let answer: Value = serde_json::from_str(&body).with_context(|| format!("{code}: {body}"))?;
        ensure!(answer["status"] == "success", "{query}: {}", answer["error"]);
        let number = |sample: &Value| sample["value"][1].as_str().and_then(|text| text.parse::<f64>().ok()).filter(|value| !value.is_nan());
        let samples = answer["data"]["result"].as_array().context("no vector")?;
        Ok(samples.iter().filter_map(|sample| Some((sample["metric"].clone(), number(sample)?))).collect())
    }

    /// Names of the alerts that fire.
    pub async fn firing(&self) -> Result<Vec<String>> {
        let names = self.query("ALERTS{alertstate=\"firing\"}").await?;
        Ok(names.iter().filter_map(|(labels, _)| labels["alertname"].as_str().map(str::to_owned)).collect())
    }
}

/// GET of a path on a loopback port: status and body.
async fn get(port: u16, path: &str) -> Result<(u16, String)> {
    let client: Client<_, Empty<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
    let answer = client.get(format!("http://127.0.0.1:{port}{path}").parse()?).await?;
    let code = answer.status().as_u16();
    let body = answer.into_body().collect().await?.to_bytes();
    Ok((code, String::from_utf8(body.to_vec())?))
}

fn percent(text: &str) -> String {
    text.bytes().map(|byte| if byte.is_ascii_alphanumeric() { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

/// Every dashboard of deploy/grafana: file and content.
pub fn dashboards() -> Result<Vec<(String, Value)>> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(checkout().join("deploy/grafana"))?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    files.retain(|file| file.extension().is_some_and(|extension| extension == "json"));
    files.sort();
    let name = |file: &Path| file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    files.iter().map(|file| Ok((name(file), serde_json::from_str(&std::fs::read_to_string(file)?)?))).collect()
}

/// The panels of a dashboard that ask something: title and queries.
pub fn panels(dashboard: &Value) -> Vec<(String, Vec<String>)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let queries = |panel: &Value| panel["targets"].as_array().into_iter().flatten().map(|target| text(&target["expr"])).collect();
    dashboard["panels"].as_array().into_iter().flatten().filter(|panel| panel["type"] != "row").map(|panel| (text(&panel["title"]), queries(panel))).collect()
}

/// The rules of a rule file.
pub fn rules(name: &str) -> Result<Vec<Value>> {
    let file: Value = serde_saphyr::from_str(&std::fs::read_to_string(rule_file(name))?)?;
    Ok(file["groups"].as_array().into_iter().flatten().flat_map(|group| group["rules"].as_array().cloned().unwrap_or_default()).collect())
}
