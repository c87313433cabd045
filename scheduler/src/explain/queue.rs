//! Asks a running `berth serve` where a Run stands in its queue.

use anyhow::{Context, ensure};
use kube::{Client, Config};
use serde_json::{Value, json};

/// The entry of /debug/queue about the Run (null if it is none of the oldest 500), and how many Runs are pending.
///
/// # Errors
/// The server does not answer, or not with a queue.
pub async fn ask(server: &str, namespace: &str, name: &str) -> anyhow::Result<Value> {
    let client = Client::try_from(Config::new(server.parse().context("not a URL")?))?;
    let request = http::Request::get("/debug/queue").body(Vec::new())?;
    let body = client.request_text(request).await?;
    let queue: Value = serde_json::from_str(&body).context("its /debug/queue is not JSON")?;
    ensure!(queue.is_object(), "its /debug/queue is not a queue");
    let about = |run: &&Value| run["namespace"] == namespace && run["name"] == name;
    let run = queue["runs"].as_array().and_then(|runs| runs.iter().find(about)).cloned().unwrap_or(Value::Null);
    Ok(json!({"run": run, "pending": queue["pending"]}))
}
