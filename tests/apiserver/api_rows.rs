//! The rows of the API's validation, on the real API server: the same verdict, at the same field, in the same words.

use anyhow::{Context as _, Result};
use berth_api::decode;
use berth_tests::controlplane::ControlPlane;
use hyper::{Method, Request};
use serde_json::{Value, json};

use crate::row_server::{Server, differences};
use crate::rows::{self, RUN, WORKSPACE};

#[tokio::test]
async fn the_api_server_gives_the_verdict_of_every_row() -> Result<()> {
    let plane = ControlPlane::shared().await?;
    let server = Server { client: plane.admin()?, namespace: plane.namespace("api-rows").await? };
    let decode = |row: &rows::Row, stored: Value| {
        let refused = if row.kind == RUN { decode::run(stored).err() } else { decode::persistent_workspace(stored).err() };
        refused.filter(|error| !error.without_spec).map(|error| error.to_string())
    };
    let rows = rows::all();
    let wrong = differences(&server, &rows, decode).await?;
    assert!(wrong.is_empty(), "{} of {} rows\n{}", wrong.len(), rows.len(), wrong.join("\n"));
    Ok(())
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
        server.send(Method::POST, RUN, "", "", true, &body).await?.map_err(|status| anyhow::anyhow!(status.message))?;
        let status = json!({"status": {"phase": "Scheduled", "assignedPod": pod}});
        let done = server.send(Method::PATCH, RUN, &format!("/{name}"), "/status", true, &status).await?;
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

    let table = async |plural: &str| -> Result<(Vec<String>, Value)> {
        let request = Request::get(format!("/apis/kruntimes.io/v1alpha1/namespaces/{namespace}/{plural}"))
            .header("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
            .body(Vec::new())?;
        let table: Value = client.request(request).await?;
        let columns = table["columnDefinitions"].as_array().into_iter().flatten().filter_map(|column| column["name"].as_str().map(str::to_owned)).collect();
        Ok((columns, table["rows"][0]["cells"].clone()))
    };
    let (columns, cells) = table("runs").await?;
    assert_eq!(columns, ["Name", "Phase", "Assigned Pod", "Runtime", "Age"]);
    assert_eq!(cells.as_array().map(|cells| &cells[..4]), Some(&[json!("a"), json!("Scheduled"), json!("p"), json!("bash")][..]));
    let workspace = json!({"apiVersion": "kruntimes.io/v1alpha1", "kind": "PersistentWorkspace", "metadata": {"name": "w"}, "spec": {"runtime": "bash"}});
    server.send(Method::POST, WORKSPACE, "", "", true, &workspace).await?.map_err(|status| anyhow::anyhow!(status.message))?;
    let (columns, cells) = table("persistentworkspaces").await?;
    assert_eq!(columns, ["Name", "Phase", "Runtime", "Bound Pod", "Available", "Last Used", "Age"]);
    assert_eq!(cells.as_array().map(|cells| &cells[..3]), Some(&[json!("w"), json!(null), json!("bash")][..]));
    Ok(())
}
