//! By which configuration `berth explain run` judges: what is in force, found or named; what it says where it can't know; a server that can't be asked.

use anyhow::Result;
use berth_tests::controlplane::ADMIN;
use berth_tests::helm::{Helm, object};
use berth_tests::poll::{PATIENCE, until};
use berth_tests::release::apply;
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
use serde_json::{Value, json};

use super::explain::{berth, explain, explain_json};
use super::serve_world::{World, run};

/// An account of the namespace with these rights and no others; its kubeconfig.
async fn account(world: &World<'_>, name: &str, rules: Value) -> Result<String> {
    let token = world.plane.service_account(&world.namespace, name).await?;
    let metadata = json!({"name": name, "namespace": world.namespace});
    let api = "rbac.authorization.k8s.io/v1";
    apply(&world.client, &json!({"apiVersion": api, "kind": "Role", "metadata": metadata, "rules": rules})).await?;
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name});
    let subjects = json!([{"kind": "ServiceAccount", "name": name, "namespace": world.namespace}]);
    apply(&world.client, &json!({"apiVersion": api, "kind": "RoleBinding", "metadata": metadata, "roleRef": role, "subjects": subjects})).await?;
    Ok(world.plane.kubeconfig(&token)?.display().to_string())
}

/// The rights that docs/explain.md names.
fn least() -> Vec<Value> {
    vec![
        json!({"apiGroups": ["kruntimes.io"], "resources": ["runs"], "verbs": ["get", "list"]}),
        json!({"apiGroups": ["kruntimes.io"], "resources": ["persistentworkspaces"], "verbs": ["get"]}),
        json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}),
    ]
}

/// Explains with another account, once its rights are in force.
async fn explain_as(world: &World<'_>, kubeconfig: &str, name: &str, more: &[&str]) -> Result<(String, String)> {
    until("the rights to be in force", PATIENCE, || async {
        let args = [&["explain", "run", name, "-n", world.namespace.as_str(), "--kubeconfig", kubeconfig], more].concat();
        let (code, out, err) = berth(args.into_iter().map(ToOwned::to_owned).collect()).await?;
        Ok((code == 0).then_some((out, err)))
    })
    .await
}

#[tokio::test]
async fn a_stock_release_is_found_by_its_config_map_and_doubt_comes_first_where_it_is_not() {
    let world = World::new("explain-stock").await.unwrap();
    let values = json!({"watchNamespace": world.namespace, "crds": {"install": false}});
    let objects = Helm::new().unwrap().rendered(&world.namespace, &world.namespace, &values).unwrap();
    apply(&world.client, object(&objects, "ConfigMap", "berth").unwrap()).await.unwrap();
    let config_map = format!("{}/berth", world.namespace);
    let serve = world.serve().unwrap().arg("--config-map").arg(&config_map);
    let serving = serve.start_ready(world.plane.scratch()).await.unwrap();
    world.pod("q-1", "bash", &[]).await.unwrap();
    world.workspace("w", "bash").await.unwrap();
    world.workspace_when("w", "Bound").await.unwrap();
    world.run(run("waits").workspace("w")).await.unwrap();
    let said = world.waits("waits", &["0/1 fit: 1 without an agent for workspaces"]).await.unwrap();

    // Without a flag, by what is in force.
    let told = explain_json(&world, "waits", &[]).await.unwrap();
    assert_eq!(told["judgedBy"], json!(format!("ConfigMap {config_map}")), "{told:#}");
    assert_eq!(told["rules"], json!({"source": "foundConfigMap", "certain": true, "contradicted": false, "doubt": null}));
    assert_eq!((&told["waiting"]["message"], &told["shown"]["message"]), (&json!(said), &json!(said)));
    assert_eq!(told["smallestChanges"], json!(["an agent that honours workspaces on Pod q-1"]));
    let told = explain_json(&world, "waits", &["--config-map", &config_map]).await.unwrap();
    assert_eq!((&told["rules"]["source"], &told["rules"]["certain"]), (&json!("configMap"), &json!(true)));

    // Who may not see it is told first and loudly that this is not the scheduler's view.
    let narrow = account(&world, "narrow", Value::from(least())).await.unwrap();
    let (out, _) = explain_as(&world, &narrow, "waits", &[]).await.unwrap();
    let first = format!("CAUTION: what follows contradicts the scheduler, which says: {said}\nCAUTION: These are the defaults of this binary, ");
    assert!(out.starts_with(&first) && out.contains("ConfigMaps can't be listed") && out.contains("--config-map NAMESPACE/NAME"), "{out}");
    assert!(out.contains("It waits; by rules that may not be those in force it would be placed on q-1 now."), "{out}");
    let told: Value = serde_json::from_str(&explain_as(&world, &narrow, "waits", &["-o", "json"]).await.unwrap().0).unwrap();
    let rules = &told["rules"];
    assert_eq!((&rules["source"], &rules["certain"], &rules["contradicted"]), (&json!("defaults"), &json!(false), &json!(true)), "{told:#}");
    assert!(rules["doubt"].as_str().unwrap().contains("--server URL"), "{rules}");

    // Who may list ConfigMaps in this namespace alone finds it all the same.
    let lists = json!({"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]});
    let reader = account(&world, "reader", Value::from([least(), vec![lists]].concat())).await.unwrap();
    let (out, _) = explain_as(&world, &reader, "waits", &[]).await.unwrap();
    assert!(out.contains(&format!("(ConfigMap {config_map}).")) && !out.contains("CAUTION"), "{out}");

    // A ConfigMap that can't be used is not what is in force.
    let mut broken = object(&objects, "ConfigMap", "berth").unwrap().clone();
    broken["data"]["config.yaml"] = json!("profiles: 3");
    apply(&world.client, &broken).await.unwrap();
    let (code, out, err) = explain(&world, "waits", &[]).await.unwrap();
    assert_eq!(code, 0);
    assert!(out.starts_with("CAUTION: ") && out.contains("can't be used") && err.contains("warning: ") && err.contains("profiles"), "{out}{err}");
    let (code, _, err) = explain(&world, "waits", &["--config-map", &config_map]).await.unwrap();
    assert!(code == 2 && err.contains("profiles"), "{err}");
    let (code, _, err) = explain(&world, "waits", &["--config-map", &format!("{}/nobody", world.namespace)]).await.unwrap();
    assert!(code == 2 && err.contains(&format!("ConfigMap {}/nobody not found", world.namespace)), "{err}");
    serving.terminate().await.unwrap();
}

#[tokio::test]
async fn a_server_behind_tokens_tells_its_configuration_and_one_that_cannot_be_asked_is_an_error() {
    let world = World::new("explain-live").await.unwrap();
    world.pod("pod-0", "bash", &[("runs", "0")]).await.unwrap();
    let lenient = json!({"apiVersion": "berth.kruntimes.io/v1alpha1", "kind": "BerthConfiguration", "profiles": [
        {"schedulerName": "lenient", "plugins": {"multiPoint": {"disabled": [{"name": "Capacity"}]}}},
        {"schedulerName": "what-if", "shadow": true}]});
    let file = world.plane.scratch().write(&format!("{}-lenient.yaml", world.namespace), lenient.to_string()).unwrap();
    let serving = world.serve().unwrap().config(&file).secure(ADMIN).start_ready(world.plane.scratch()).await.unwrap();
    world.run(run("first")).await.unwrap();
    world.placed("first").await.unwrap();
    let url = serving.url();
    let asked = ["--server", url.as_str(), "--server-insecure-skip-tls-verify"];

    // The caller's own credential; the certificate is self-signed.
    let told = explain_json(&world, "first", &asked).await.unwrap();
    assert_eq!((&told["judgedBy"], &told["profile"]), (&json!(format!("what is in force at {url}")), &json!("lenient")), "{told:#}");
    assert_eq!((&told["rules"]["source"], &told["rules"]["certain"]), (&json!("server"), &json!(true)));
    assert_eq!(told["verdict"], "It is on pod-0, and would be placed on pod-0 now again", "{told:#}");
    assert!(told["queue"]["pending"].is_number(), "{told:#}");
    let (_, out, _) = explain(&world, "first", &asked).await.unwrap();
    assert!(out.contains(&format!("Judged by profile lenient (what is in force at {url}).")), "{out}");
    // A file wins; without either it is the defaults, by which it would not fit, and that is said.
    let (told, of_file) = (explain_json(&world, "first", &[]).await.unwrap(), file.display().to_string());
    assert_eq!((&told["judgedBy"], &told["profile"]), (&json!("defaults"), &json!("default")), "{told:#}");
    assert_eq!((&told["rules"]["source"], &told["rules"]["certain"]), (&json!("defaults"), &json!(false)));
    assert_eq!(told["verdict"], "It is on pod-0; placed anew it would fit on no Pod now");
    let (_, out, _) = explain(&world, "first", &[]).await.unwrap();
    assert!(
        out.contains("(defaults).\nThese are the defaults of this binary, which may not be what is in force: no ConfigMap is labelled as Berth's."),
        "{out}"
    );
    let told = explain_json(&world, "first", &[&["--with-config", of_file.as_str()], asked.as_slice()].concat()).await.unwrap();
    assert_eq!(told["judgedBy"], json!(of_file));
    // By a shadow profile of what is in force.
    let told = explain_json(&world, "first", &[asked.as_slice(), &["--profile", "what-if"]].concat()).await.unwrap();
    assert_eq!((&told["profile"], &told["verdict"]), (&json!("what-if"), &json!("It is on pod-0; placed anew it would fit on no Pod now")));
    let (code, _, err) = explain(&world, "first", &[asked.as_slice(), &["--profile", "other"]].concat()).await.unwrap();
    assert!(code == 2 && err.contains(&format!("--profile other: what is in force at {url} has lenient, what-if")), "{err}");

    // Whom the server refuses, who does not trust it, or finds something else there, gets an error; a flag makes it a warning.
    let stranger = world.plane.service_account(&world.namespace, "stranger").await.unwrap();
    let token = world.plane.scratch().write(&format!("{}-token", world.namespace), format!("{stranger}\n")).unwrap().display().to_string();
    let wrong = world.plane.scratch().write(&format!("{}-wrong", world.namespace), "wrong").unwrap().display().to_string();
    let authority = world.plane.ca_file().display().to_string();
    let nothing = format!("{url}/nothing");
    for (more, told) in [
        (["--server", &url, "--server-token-file", &token, "--server-insecure-skip-tls-verify"].as_slice(), "may not get path \"/configz\""),
        (&["--server", &url, "--server-token-file", &wrong, "--server-insecure-skip-tls-verify"], "401 Unauthorized"),
        (&["--server", &url, "--server-ca-file", &authority], "certificate"),
        (&["--server", &url], "--server-ca-file names who signed it"),
        (&["--server", &nothing, "--server-insecure-skip-tls-verify"], "404 Not Found"),
        (&["--server", "http://127.0.0.1:1"], "refused"),
    ] {
        let (code, out, err) = explain(&world, "first", more).await.unwrap();
        assert_eq!((code, out.as_str()), (2, ""), "{err}");
        assert!(err.contains(&format!("--server {} can't be asked (--server-optional goes on without it)", more[1])) && err.contains(told), "{told}: {err}");
        assert!(!err.contains(&stranger), "{err}");
        let (code, out, err) = explain(&world, "first", &[more, &["--server-optional"]].concat()).await.unwrap();
        assert_eq!(code, 0, "{err}");
        assert!(err.contains("going on without it") && err.contains(told), "{told}: {err}");
        assert!(out.contains("Judged by profile default (defaults).") && !err.contains(&stranger), "{out}");
    }
    let plain = url.replace("https", "http");
    for (more, told) in [
        (["--server", plain.as_str(), "--server-token-file", &token].as_slice(), "a token is only sent over https"),
        (&["--server", &url, "--server-ca-file", &token], "holds no certificate in PEM"),
        (&["--server", "here:1"], "must begin with https:// or http://"),
        (&["--server-token-file", &token], "--server <URL>"),
        (&["--server", "https://192.0.2.1:8443", "--server-insecure-skip-tls-verify"], "is not sent to another host that nobody verifies"),
        (&["--with-config", &of_file, "--config-map", "a/b"], "cannot be used with"),
    ] {
        let (code, _, err) = explain(&world, "first", more).await.unwrap();
        assert_eq!(code, 2, "{err}");
        assert!(err.contains(told), "{told}: {err}");
    }
}

/// As `openssl req -x509` makes them: an authority that is a server as well. curl takes it, rustls does not.
#[tokio::test]
async fn a_certificate_that_is_an_authority_as_well_is_called_so() {
    let world = World::new("explain-openssl").await.unwrap();
    world.run(run("first")).await.unwrap();
    let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let scratch = world.plane.scratch();
    let certificate = scratch.write("openssl.crt", params.self_signed(&key).unwrap().pem()).unwrap().display().to_string();
    let key = scratch.write("openssl.key", key.serialize_pem()).unwrap().display().to_string();
    let serve = world.serve().unwrap().secure(ADMIN).arg("--tls-cert-file").arg(&certificate).arg("--tls-private-key-file").arg(key);
    let serving = serve.start_ready(scratch).await.unwrap();
    let (code, _, err) = explain(&world, "first", &["--server", &serving.url(), "--server-ca-file", &certificate]).await.unwrap();
    assert!(code == 2 && err.contains("CA:TRUE") && err.contains("basicConstraints=critical,CA:FALSE"), "{err}");
}
