//! Rows on a real API server: what is sent for each, and how the answer differs from what the row expects.

use anyhow::{Context as _, Result};
use futures::{StreamExt as _, stream};
use hyper::{Method, Request};
use kube::Client;
use serde_json::{Value, json};

use crate::row::{Act, Expect, Kind, Row, merge_keeping_nulls};

/// What the API server answered: what is stored now, or its Status.
pub type Answer = Result<Value, kube::core::Status>;

/// Where rows are tried.
pub struct Server {
    pub client: Client,
    pub namespace: String,
}

impl Server {
    /// One request about an object of `kind`; `name` is `/NAME` or empty, `sub` `/status` or empty.
    pub async fn send(&self, method: Method, kind: Kind, name: &str, sub: &str, strict: bool, body: &Value) -> Result<Answer> {
        let validation = if strict { "Strict" } else { "Ignore" };
        let scope = if kind.namespaced { format!("/namespaces/{}", self.namespace) } else { String::new() };
        let path = format!("/apis/{}{scope}/{}{name}{sub}?fieldValidation={validation}", kind.api_version, kind.plural);
        let format = if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
        let request = Request::builder().method(method).uri(path).header("content-type", format).body(serde_json::to_vec(body)?)?;
        match self.client.request::<Value>(request).await {
            Ok(stored) => Ok(Ok(stored)),
            Err(kube::Error::Api(status)) => Ok(Err(*status)),
            Err(error) => Err(error.into()),
        }
    }

    /// Creates `object` under `name`.
    pub async fn create(&self, kind: Kind, name: &str, object: &Value, strict: bool) -> Result<Answer> {
        let envelope = json!({"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name}});
        self.send(Method::POST, kind, "", "", strict, &merge_keeping_nulls(&envelope, object)).await
    }

    /// Creates `object` and gives it the status that it has, if it has one; the caller takes this for granted.
    pub async fn create_whole(&self, kind: Kind, name: &str, object: &Value) -> Result<Value> {
        let must = |what: &str, answer: Answer| answer.map_err(|status| anyhow::anyhow!("{what}: {}", status.message));
        let Some(status) = object.get("status") else { return must("the object", self.create(kind, name, object, false).await?) };
        // A Job is cancelled when it has the status that it is to have: a cancelled one takes no execution any more.
        let cancelled = object.pointer("/spec/desiredState").filter(|state| *state == "Cancelled");
        let mut first = object.clone();
        if cancelled.is_some() {
            first["spec"]["desiredState"] = json!("Running");
        }
        must("the object", self.create(kind, name, &first, false).await?)?;
        let whole = must("its status", self.send(Method::PATCH, kind, &format!("/{name}"), "/status", false, &json!({ "status": status })).await?)?;
        let Some(state) = cancelled else { return Ok(whole) };
        let patch = json!({"spec": {"desiredState": state}});
        must("its cancel", self.send(Method::PATCH, kind, &format!("/{name}"), "", false, &patch).await?)
    }

    /// Does what the row says to an object of that name.
    async fn act(&self, row: &Row, name: &str) -> Result<Answer> {
        let (old, patch, sub) = match &row.act {
            Act::Create(object) => return self.create(row.kind, name, object, row.strict).await,
            Act::Update(old, patch) => (old, patch, ""),
            Act::Status(old, patch) => (old, patch, "/status"),
        };
        self.create_whole(row.kind, name, old).await?;
        self.send(Method::PATCH, row.kind, &format!("/{name}"), sub, row.strict, patch).await
    }
}

/// What differs from the expectations of `rows`, a text each. `decode` is the decoder: what it says of an object that it refuses.
pub async fn differences(server: &Server, rows: &[Row], decode: impl Fn(&Row, Value) -> Option<String>) -> Result<Vec<String>> {
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
            // What the API server really stored is what our decoder reads and what our rules would store.
            let again = (row.kind.definition)().stored(&stored);
            if again != stored {
                wrong.push(format!("{}: our defaults would change what is stored: {again}", row.name));
            }
            let refused = decode(row, stored).filter(|_| row.undecodable.is_none());
            wrong.extend(refused.map(|error| format!("{}: our decoder refuses what is stored: {error}", row.name)));
        }
    }
    Ok(wrong)
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
                // The type of an integer that is too large is judged for the whole subresource.
                let below = cause.message.rsplit_once(" in ").is_some_and(|(_, rest)| format!("{}.{rest}", cause.field) == *path);
                let at = cause.field == *path || below || cause.field == "<nil>" && (path.is_empty() || cause.message.ends_with(&format!(" in {path}")));
                at && cause.message.contains(message)
            });
            (status.code != 422 || !right).then(|| format!("refused otherwise: {} {}", status.code, status.message))
        }
        (_, Ok(_)) => Some("accepted".to_owned()),
        (_, Err(status)) => Some(format!("refused: {} {}", status.code, status.message)),
    }
}
