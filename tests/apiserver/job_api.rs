//! The API of Jobs on the real API server: the rows, and how the kinds are served.

use anyhow::{Context as _, Result};
use berth_tests::controlplane::ControlPlane;
use hyper::{Method, Request};
use serde_json::{Value, json};

use crate::job_rows::{self, JOB, JOB_CLASS, Stage, stage};
use crate::row::merge;
use crate::row_server::{Server, differences};

#[tokio::test]
async fn the_api_server_gives_the_verdict_of_every_row_about_jobs() -> Result<()> {
    let plane = ControlPlane::shared().await?;
    let server = Server { client: plane.admin()?, namespace: plane.namespace("job-rows").await? };
    let rows = job_rows::all();
    let wrong = differences(&server, &rows, job_rows::undecodable).await?;
    assert!(wrong.is_empty(), "{} of {} rows\n{}", wrong.len(), rows.len(), wrong.join("\n"));
    println!("{} rows about Jobs", rows.len());
    Ok(())
}

#[tokio::test]
async fn jobs_are_served_with_their_names_columns_and_selectors() -> Result<()> {
    let plane = ControlPlane::shared().await?;
    let client = plane.admin()?;
    let server = Server { client: client.clone(), namespace: plane.namespace("job-served").await? };
    let resources: Value = client.request(Request::get("/apis/execution.ayatori.ddupan.top/v1alpha1").body(Vec::new())?).await?;
    let listed = resources["resources"].as_array().context("resources")?;
    for (plural, short, kind, namespaced, status) in [
        ("jobs", "ajob", "Job", true, true),
        ("jobclasses", "jc", "JobClass", false, true),
        ("kubernetesexecutionparameters", "kep", "KubernetesExecutionParameters", false, false),
        ("opensandboxexecutionparameters", "oep", "OpenSandboxExecutionParameters", false, false),
    ] {
        let resource = listed.iter().find(|resource| resource["name"] == plural).with_context(|| plural.to_owned())?;
        assert_eq!((&resource["shortNames"], &resource["kind"], &resource["namespaced"]), (&json!([short]), &json!(kind), &json!(namespaced)));
        assert_eq!(resource["categories"], json!(["ayatori"]), "{plural}");
        assert_eq!(listed.iter().any(|resource| resource["name"] == format!("{plural}/status")), status, "{plural}");
    }

    let whole = |spec: Value, moment: Stage| merge(&job_rows::job(spec), &json!({ "status": stage(moment) }));
    server.create_whole(JOB, "a", &whole(json!({"jobClassName": "default"}), Stage::Failed)).await?;
    server.create_whole(JOB, "b", &whole(json!({}), Stage::Waiting)).await?;
    server.create_whole(JOB, "c", &job_rows::job(json!({"jobClassName": "default", "desiredState": "Cancelled"}))).await?;
    let jobs = format!("/apis/{}/namespaces/{}/jobs", JOB.api_version, server.namespace);
    for (selector, expected) in [
        ("spec.jobClassName=default", vec!["a", "c"]),
        ("spec.desiredState=Cancelled", vec!["c"]),
        ("spec.desiredState=Running,spec.jobClassName=default", vec!["a"]),
    ] {
        let list: Value = client.request(Request::get(format!("{jobs}?fieldSelector={selector}")).body(Vec::new())?).await?;
        let names: Vec<&str> = list["items"].as_array().into_iter().flatten().filter_map(|item| item["metadata"]["name"].as_str()).collect();
        assert_eq!(names, expected, "{selector}");
    }

    let table = |path: String| {
        let client = client.clone();
        async move {
            let request = Request::get(path).header("accept", "application/json;as=Table;v=v1;g=meta.k8s.io").body(Vec::new())?;
            let table: Value = client.request(request).await?;
            let columns = table["columnDefinitions"].as_array().into_iter().flatten().map(|column| column["name"].as_str().unwrap_or_default().to_owned());
            let cells = table["rows"].as_array().into_iter().flatten().map(|row| row["cells"].as_array().cloned().unwrap_or_default());
            Ok::<_, anyhow::Error>((columns.collect::<Vec<_>>(), cells.collect::<Vec<_>>()))
        }
    };
    let (columns, rows) = table(jobs).await?;
    assert_eq!(columns, ["Name", "Class", "Succeeded", "Reason", "Exit", "Started", "Completed", "Age", "Backend"]);
    let failed = &rows[0];
    assert_eq!(failed[..5], [json!("a"), json!("default"), json!("False"), json!("ProcessFailed"), json!(3)]);
    assert!(failed[5].is_string() && failed[6].is_string(), "{failed:?}");
    assert_eq!(failed[8], json!("kubernetes"));
    assert_eq!(rows[1][..5], [json!("b"), Value::Null, json!("Unknown"), json!("Pending"), Value::Null]);

    let class = json!({"spec": {"controllerName": "example.com/x"}, "status": {"conditions": [{"type": "Accepted", "status": "False",
        "reason": "Unsupported", "message": "", "lastTransitionTime": "2026-01-02T03:04:05Z"},
        {"type": "BackendReady", "status": "False", "reason": "Unreachable", "message": "", "lastTransitionTime": "2026-01-02T03:04:05Z"}]}});
    server.create_whole(JOB_CLASS, "served", &class).await?;
    let (columns, rows) = table(format!("/apis/{}/jobclasses?fieldSelector=metadata.name=served", JOB.api_version)).await?;
    assert_eq!(columns, ["Name", "Controller", "Accepted", "Reason", "Backend", "Description", "Age"]);
    assert_eq!(rows[0][..5], [json!("served"), json!("example.com/x"), json!("False"), json!("Unsupported"), json!("Unreachable")]);

    // A Job without a name of its own gets one.
    let body = merge(&job_rows::job(json!({})), &json!({"apiVersion": JOB.api_version, "kind": "Job", "metadata": {"generateName": "hello-"}}));
    let made = server.send(Method::POST, JOB, "", "", true, &body).await?.map_err(|status| anyhow::anyhow!(status.message))?;
    assert!(made["metadata"]["name"].as_str().is_some_and(|name| name.starts_with("hello-") && name.len() > 6), "{made}");
    Ok(())
}
