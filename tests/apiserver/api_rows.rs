//! The rows of the API's validation, on the real API server: the same verdict, at the same field, in the same words.

use anyhow::{Context as _, Result};
use berth_api::{decode, rules};
use berth_tests::controlplane::ControlPlane;
use futures::{StreamExt as _, stream};
use hyper::{Method, Request};
use kube::Client;
use serde_json::{Value, json};

#[path = "../../framework/api/tests/rows/mod.rs"]
mod rows;

use rows::{Act, Expect, Kind, Row};

/// What the API server answered: what is stored now, or its Status.
type Answer = Result<Value, kube::core::Status>;

struct Server {
    client: Client,
    namespace: String,
}

impl Server {
    async fn send(&self, method: Method, kind: Kind, name: &str, sub: &str, strict: bool, body: &Value) -> Result<Answer> {
        let plural = match kind {
            Kind::Run => "runs",
            Kind::PersistentWorkspace => "persistentworkspaces",
        };
        let validation = if strict { "Strict" } else { "Ignore" };
        let path = format!("/apis/kruntimes.io/v1alpha1/namespaces/{}/{plural}{name}{sub}?fieldValidation={validation}", self.namespace);
        let format = if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
        let request = Request::builder().method(method).uri(path).header("content-type", format).body(serde_json::to_vec(body)?)?;
        match self.client.request::<Value>(request).await {
            Ok(stored) => Ok(Ok(stored)),
            Err(kube::Error::Api(status)) => Ok(Err(*status)),
            Err(error) => Err(error.into()),
        }
    }

    async fn create(&self, row: &Row, name: &str, object: &Value, strict: bool) -> Result<Answer> {
        let envelope = json!({
            "apiVersion": "kruntimes.io/v1alpha1",
            "kind": match row.kind { Kind::Run => "Run", Kind::PersistentWorkspace => "PersistentWorkspace" },
            "metadata": {"name": name},
        });
        let body = rows::merge_keeping_nulls(&envelope, object);
        self.send(Method::POST, row.kind, "", "", strict, &body).await
    }

    /// Does what the row says to an object of that name.
    async fn act(&self, row: &Row, name: &str) -> Result<Answer> {
        let (old, patch, sub) = match &row.act {
            Act::Create(object) => return self.create(row, name, object, row.strict).await,
            Act::Update(old, patch) => (old, patch, ""),
            Act::Status(old, patch) => (old, patch, "/status"),
        };
        let created = self.create(row, name, old, false).await?;
        created.map_err(|status| anyhow::anyhow!("{}: the object before the update: {}", row.name, status.message))?;
        self.send(Method::PATCH, row.kind, &format!("/{name}"), sub, row.strict, patch).await
    }
}

/// What differs from the row's expectation, if anything.
fn difference(row: &Row, answer: &Answer) -> Option<String> {
    match (&row.expect, answer) {
        (Expect::Accepted(None), Ok(_)) => None,
        (Expect::Accepted(Some((at, value))), Ok(stored)) => (stored.pointer(at) != Some(value)).then(|| format!("stored {:?} at {at}", stored.pointer(at))),
        (Expect::Refused { path, message }, Err(status)) => {
            // Strictness is judged while decoding: there are no causes then, and a patch has code 422 instead of 400.
            if row.strict {
                let expected = format!("strict decoding error: {message} \"{path}\"");
                return (!status.message.contains(&expected)).then(|| format!("refused otherwise: {}", status.message));
            }
            let mut causes = status.details.iter().flat_map(|details| &details.causes);
            // Rules of the root, and the range of an integer, come without a field.
            let right = causes.any(|cause| {
                let at = cause.field == *path || cause.field == "<nil>" && (path.is_empty() || cause.message.ends_with(&format!(" in {path}")));
                at && cause.message.contains(message)
            });
            (status.code != 422 || !right).then(|| format!("refused otherwise: {} {}", status.code, status.message))
        }
        (_, Ok(_)) => Some("accepted".to_owned()),
        (_, Err(status)) => Some(format!("refused: {} {}", status.code, status.message)),
    }
}

#[tokio::test]
async fn the_api_server_gives_the_verdict_of_every_row() -> Result<()> {
    let plane = ControlPlane::shared().await?;
    let server = Server { client: plane.admin()?, namespace: plane.namespace("api-rows").await? };
    let rows = rows::all();
    let server = &server;
    let answers: Vec<Result<(usize, Answer)>> = stream::iter(rows.iter().enumerate())
        .map(|(index, row)| async move {
            let answer = server.act(row, &format!("row-{index}")).await.with_context(|| row.name.clone())?;
            Ok((index, answer))
        })
        .buffer_unordered(8)
        .collect()
        .await;
    let mut wrong = Vec::new();
    for answer in answers {
        let (index, answer) = answer?;
        let row = &rows[index];
        if let Some(difference) = difference(row, &answer) {
            wrong.push(format!("{}: {:?}\n    {difference}", row.name, row.expect));
        }
        if let Ok(stored) = answer {
            wrong.extend(unreadable(row, &stored));
        }
    }
    assert!(wrong.is_empty(), "{} of {} rows\n{}", wrong.len(), rows.len(), wrong.join("\n"));
    Ok(())
}

/// What the API server really stored is what our decoder reads and what our rules would store.
fn unreadable(row: &Row, stored: &Value) -> Option<String> {
    let (again, refused) = match row.kind {
        Kind::Run => (rules::stored_run(stored), decode::run(stored.clone()).err()),
        Kind::PersistentWorkspace => (rules::stored_workspace(stored), decode::persistent_workspace(stored.clone()).err()),
    };
    if again != *stored {
        return Some(format!("{}: our defaults would change what is stored: {again}", row.name));
    }
    refused.filter(|error| !error.without_spec && row.undecodable.is_none()).map(|error| format!("{}: our decoder refuses what is stored: {error}", row.name))
}

#[tokio::test]
async fn the_definitions_are_served_as_the_reference_says() -> Result<()> {
    let plane = ControlPlane::shared().await?;
    let client = plane.admin()?;
    let get = |path: String| {
        let client = client.clone();
        async move { Ok::<Value, anyhow::Error>(client.request(Request::get(path).body(Vec::new())?).await?) }
    };
    let resources = get("/apis/kruntimes.io/v1alpha1".to_owned()).await?;
    for (plural, short, kind) in [("runs", "rn", "Run"), ("persistentworkspaces", "pw", "PersistentWorkspace")] {
        let listed = resources["resources"].as_array().context("resources")?;
        let resource = listed.iter().find(|resource| resource["name"] == plural).context("the resource")?;
        assert_eq!(resource["shortNames"], json!([short]));
        assert_eq!((&resource["kind"], &resource["namespaced"]), (&json!(kind), &json!(true)));
        assert!(listed.iter().any(|resource| resource["name"] == format!("{plural}/status")));
        assert!(!listed.iter().any(|resource| resource["name"] == format!("{plural}/scale")));
    }

    let namespace = plane.namespace("api-served").await?;
    let server = Server { client: client.clone(), namespace: namespace.clone() };
    for (name, runtime, pod) in [("a", "bash", "p"), ("b", "bash", "q"), ("c", "python", "p")] {
        let body = json!({"apiVersion": "kruntimes.io/v1alpha1", "kind": "Run", "metadata": {"name": name},
            "spec": {"runtime": runtime, "mode": {"task": {}}}});
        server.send(Method::POST, Kind::Run, "", "", true, &body).await?.map_err(|status| anyhow::anyhow!(status.message))?;
        let status = json!({"status": {"phase": "Scheduled", "assignedPod": pod}});
        let done = server.send(Method::PATCH, Kind::Run, &format!("/{name}"), "/status", true, &status).await?;
        done.map_err(|status| anyhow::anyhow!(status.message))?;
    }
    for (selector, expected) in [
        ("spec.runtime=bash", vec!["a", "b"]),
        ("status.assignedPod=p", vec!["a", "c"]),
        ("status.assignedPod=p,spec.runtime=python", vec!["c"]),
        ("status.phase=Pending", vec![]),
    ] {
        let path = format!("/apis/kruntimes.io/v1alpha1/namespaces/{namespace}/runs?fieldSelector={selector}");
        let list = get(path).await?;
        let names: Vec<&str> = list["items"].as_array().into_iter().flatten().filter_map(|item| item["metadata"]["name"].as_str()).collect();
        assert_eq!(names, expected, "{selector}");
    }

    let request = Request::get(format!("/apis/kruntimes.io/v1alpha1/namespaces/{namespace}/runs"))
        .header("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
        .body(Vec::new())?;
    let table: Value = client.request(request).await?;
    let columns: Vec<&str> = table["columnDefinitions"].as_array().into_iter().flatten().filter_map(|column| column["name"].as_str()).collect();
    assert_eq!(columns, ["Name", "Phase", "Assigned Pod", "Runtime", "Age"]);
    assert_eq!(table["rows"][0]["cells"].as_array().map(|cells| cells[..4].to_vec()), Some(vec![json!("a"), json!("Scheduled"), json!("p"), json!("bash")]));
    Ok(())
}
