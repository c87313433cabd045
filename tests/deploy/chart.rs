//! The chart: linted strictly, rendered with many values, wrong values refused; what it renders is accepted by a real API server,
//! field by field, and by the binary, flag by flag.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use berth_framework::config::BerthConfiguration;
use berth_tests::berth;
use berth_tests::controlplane::{ControlPlane, checkout};
use berth_tests::crds;
use berth_tests::helm::{Helm, chart, documents, last_line_of, object, path};
use berth_tests::poll::{PATIENCE, until};
use berth_tests::release::apply;
use berth_tests::runtimed;
use kube::Client;
use serde_json::{Value, json};

/// Values that an operator may really set, each with what must show in the result.
fn value_sets() -> Vec<(&'static str, Value)> {
    vec![
        ("defaults", json!({})),
        ("single", json!({"replicas": 1, "leaderElection": {"enabled": false}, "podDisruptionBudget": {"enabled": false}})),
        ("one-namespace", json!({"watchNamespace": "team-a", "antiAffinity": "required", "scheduledEvents": false})),
        (
            "everything",
            json!({
                "replicas": 3,
                "image": {"repository": "example.test/berth", "digest": format!("sha256:{}", "0".repeat(64)), "pullPolicy": "Always"},
                "imagePullSecrets": [{"name": "pull"}],
                "fullnameOverride": "placer",
                "crds": {"keep": false},
                "serviceAccount": {"name": "robot", "annotations": {"a": "b"}},
                "configuration": {
                    "runMaxBackoffSeconds": 20,
                    "bindWorkers": 8,
                    "profiles": [
                        {"schedulerName": "tight", "pluginConfig": [{"name": "Capacity", "args": {"strategy": "MostAllocated"}}]},
                        {"schedulerName": "bash", "runtimes": ["bash"], "plugins": {"multiPoint": {"enabled": [{"name": "RunAffinity", "weight": 3}]}}},
                    ],
                },
                "leaderElection": {"leaseDuration": "3s", "renewDeadline": "2s", "retryPeriod": "500ms", "resourceName": "the-lease"},
                "logging": {"format": "text", "verbosity": 2},
                "metrics": {
                    "port": 9090,
                    "tlsSecret": "berth-tls",
                    "serviceMonitor": {"enabled": true, "labels": {"release": "prometheus"}, "interval": "5s"},
                    "prometheusRule": {"enabled": true, "labels": {"release": "prometheus"}},
                    "dashboards": {"enabled": true},
                },
                "podDisruptionBudget": {"maxUnavailable": "50%"},
                "antiAffinity": "none",
                "resources": {"requests": {"cpu": "1"}, "limits": {"memory": "2Gi"}},
                "priorityClassName": "system-cluster-critical",
                "nodeSelector": {"kubernetes.io/os": "linux"},
                "tolerations": [{"key": "dedicated", "operator": "Exists"}],
                "podAnnotations": {"x": "y"},
                "podLabels": {"team": "a"},
            }),
        ),
        ("jobs", json!({"jobs": {"enabled": true}})),
        ("sandboxes", json!({"jobs": {"enabled": true, "openSandbox": {"enabled": true, "apiKeySecrets": [{"namespace": "default", "name": "key"}]}}})),
        ("open", json!({"metrics": {"secure": false, "serviceMonitor": {"enabled": true}}})),
        ("self-signed", json!({"metrics": {"serviceMonitor": {"enabled": true}}})),
        ("runtimes", json!({"runtimes": runtimes(), "logging": {"format": "text"}})),
        ("nothing-beside", json!({"crds": {"install": false}, "rbac": {"create": false}, "serviceAccount": {"create": false, "name": "given"}})),
    ]
}

/// Runtime Pods: as little as can be said of them, and all that can be.
fn runtimes() -> Value {
    json!([
        {"name": "bash"},
        {
            "name": "python",
            "replicas": 3,
            "capacity": {"runs": 4, "gpu": "2"},
            "image": "python:3.13",
            "imagePullPolicy": "Always",
            "privilegeSeparation": false,
            "user": 1000,
            "workspace": {"emptyDir": {"sizeLimit": "10Gi"}},
            "args": ["--run-pids-max=512", "--stop-grace=30s"],
            "env": [{"name": "A", "value": "b"}],
            "envFrom": [{"prefix": "S_", "secretRef": {"name": "s"}}],
            "volumes": [{"name": "git", "secret": {"secretName": "git"}}],
            "volumeMounts": [{"name": "git", "mountPath": "/git", "readOnly": true}],
            "resources": {"requests": {"cpu": "1"}, "limits": {"memory": "2Gi"}},
            "nodeSelector": {"kubernetes.io/os": "linux"},
            "tolerations": [{"key": "dedicated", "operator": "Exists"}],
            "podLabels": {"team": "a"},
            "podAnnotations": {"x": "y"},
        },
    ])
}

#[test]
fn lint_finds_nothing() -> Result<()> {
    let helm = Helm::new()?;
    for (name, values) in value_sets() {
        let file = helm.values(name, &values)?;
        let output = helm.run(&["lint", "--strict", "--values", &path(&file), &path(&chart())])?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success() && !text.contains("[WARNING]") && !text.contains("[ERROR]"), "{name}: {text}");
    }
    Ok(())
}

#[test]
fn a_value_that_is_wrong_is_refused_and_named() -> Result<()> {
    let helm = Helm::new()?;
    let rows = [
        (json!({"replica": 2}), "replica"),
        (json!({"replicas": "two"}), "/replicas"),
        (json!({"replicas": -1}), "/replicas"),
        (json!({"replicas": 2, "leaderElection": {"enabled": false}}), "/replicas"),
        (json!({"image": {"repository": ""}}), "/image/repository"),
        (json!({"image": {"digest": "sha256:abc"}}), "/image/digest"),
        (json!({"image": {"pullPolicy": "Sometimes"}}), "/image/pullPolicy"),
        (json!({"configuration": {"profile": {}}}), "/configuration"),
        (json!({"configuration": {"leaderElection": {}}}), "/configuration"),
        (profile(json!({"pluginConfig": [{"name": "Capacity", "args": "MostAllocated"}]})), "/configuration/profiles/0/pluginConfig/0/args"),
        (profile(json!({"plugins": {"score": {"enabled": [{"name": "Capacity", "weight": 0}]}}})), "/configuration/profiles/0/plugins/score/enabled/0/weight"),
        (profile(json!({"plugins": {"filter": {"enabled": [{"name": "Capacity", "weight": 2}]}}})), "/configuration/profiles/0/plugins/filter/enabled/0"),
        (profile(json!({"plugins": {"permit": {}}})), "/configuration/profiles/0/plugins"),
        (json!({"leaderElection": {"leaseDuration": 15}}), "/leaderElection/leaseDuration"),
        (json!({"leaderElection": {"leaseDuration": "15"}}), "/leaderElection/leaseDuration"),
        (json!({"metrics": {"port": 80}}), "/metrics/port"),
        (json!({"metrics": {"secure": "yes"}}), "/metrics/secure"),
        (json!({"metrics": {"tlsSecret": "Not A Name"}}), "/metrics/tlsSecret"),
        (json!({"metrics": {"serviceMonitor": {"on": true}}}), "/metrics/serviceMonitor"),
        (json!({"logging": {"format": "xml"}}), "/logging/format"),
        (json!({"antiAffinity": "soft"}), "/antiAffinity"),
        (json!({"podDisruptionBudget": {"maxUnavailable": 0}}), "/podDisruptionBudget/maxUnavailable"),
        (json!({"watchNamespace": "Team A"}), "/watchNamespace"),
        (json!({"watchNamespace": "a.b"}), "/watchNamespace"),
        (json!({"metrics": {"prometheusRule": {"runbookBaseURL": "docs"}}}), "/metrics/prometheusRule/runbookBaseURL"),
        (json!({"leaderElection": {"leaseDuration": "5s"}}), "leaderElection.renewDeadline (10s) must be less than leaderElection.leaseDuration (5s)"),
        (
            json!({"leaderElection": {"renewDeadline": "2400ms"}}),
            "leaderElection.retryPeriod (2s) times 1.2 must be less than leaderElection.renewDeadline (2400ms)",
        ),
        (json!({"podLabels": {"app.kubernetes.io/name": "x"}}), "podLabels.app.kubernetes.io/name is the chart's own"),
        (json!({"serviceAccount": {"create": false}}), "serviceAccount.name is needed"),
        (json!({"jobs": {"openSandbox": {"enabled": true}}}), "jobs.openSandbox.enabled needs jobs.enabled"),
        (json!({"configuration": {"bindWorkers": 0}}), "/configuration/bindWorkers"),
        (json!({"nodeSelector": {"a": 1}}), "/nodeSelector/a"),
        (json!({"runtimes": [{}]}), "/runtimes/0"),
        (json!({"runtimes": [{"name": "Bash"}]}), "/runtimes/0/name"),
        (json!({"runtimes": [{"name": "bash", "replicas": 0}]}), "/runtimes/0/replicas"),
        (json!({"runtimes": [{"name": "bash", "capacity": {"runs": true}}]}), "/runtimes/0/capacity/runs"),
        (json!({"runtimes": [{"name": "bash", "capacity": {"runs": -1}}]}), "/runtimes/0/capacity/runs"),
        (json!({"runtimes": [{"name": "bash", "capacity": {"runs": "-1"}}]}), "/runtimes/0/capacity/runs"),
        (json!({"runtimes": [{"name": "bash", "capacity": {"runs": "0.5"}}]}), "/runtimes/0/capacity/runs"),
        (json!({"runtimes": [{"name": "bash", "volumes": [{"name": "workspace"}]}]}), "bash: volumes: the name workspace is the chart's own"),
        (
            json!({"runtimes": [{"name": "bash", "volumeMounts": [{"name": "x", "mountPath": "//x/../workspace/x"}]}]}),
            "bash: volumeMounts: //x/../workspace/x is",
        ),
        (json!({"runtimes": [{"name": "bash", "volumeMounts": [{"name": "x", "mountPath": "/"}]}]}), "bash: volumeMounts: / is the chart's own"),
        (json!({"runtimes": [{"name": "bash", "args": ["--root=/x"]}]}), "bash: args: --root=/x is the chart's own"),
        (json!({"runtimes": [{"name": "bash", "env": [{"name": "POD_UID", "value": "x"}]}]}), "bash: env: POD_UID is the agent's own"),
        (json!({"runtimes": [{"name": "bash", "envFrom": [{"secret": "x"}]}]}), "/runtimes/0/envFrom/0"),
        (json!({"runtimes": [{"name": "bash", "user": 0}]}), "/runtimes/0/user"),
        (json!({"runtimes": [{"name": "bash", "privilegeSeparation": "no"}]}), "/runtimes/0/privilegeSeparation"),
        (json!({"runtimes": [{"name": "bash", "workspace": {"emptyDir": {}, "hostPath": {}}}]}), "/runtimes/0/workspace"),
        (json!({"runtimes": [{"name": "bash", "args": ["rm"]}]}), "/runtimes/0/args/0"),
        (json!({"runtimes": [{"name": "bash", "command": ["sh"]}]}), "/runtimes/0"),
        (json!({"runtimed": {"image": {"repository": ""}}}), "/runtimed/image/repository"),
        (json!({"runtimes": [{"name": "a", "namespace": "x"}, {"name": "a", "namespace": "x"}]}), "runtimes: two entries are called a in namespace x"),
        (json!({"watchNamespace": "y", "runtimes": [{"name": "a", "namespace": "x"}]}), "runtimes: a is in namespace x, but only watchNamespace (y) is served"),
    ];
    for (values, place) in rows {
        let Err(error) = helm.template("wrong", "berth", &values)? else { panic!("{values} was accepted") };
        ensure!(error.contains(place), "{values}: {place} is not in {error}");
    }
    Ok(())
}

#[test]
fn what_must_show_shows() -> Result<()> {
    let helm = Helm::new()?;
    let sets: BTreeMap<_, _> = value_sets().into_iter().collect();
    let of = |name: &str| helm.rendered(name, "berth", &sets[name]);

    let objects = of("defaults")?;
    let deployment = object(&objects, "Deployment", "berth").context("no Deployment")?;
    let pod = &deployment["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    assert_eq!(deployment["spec"]["replicas"], 2);
    assert_eq!(container["image"], format!("berth:{}", env!("CARGO_PKG_VERSION")), "appVersion is the crates' version");
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
    let security = &container["securityContext"];
    assert_eq!((&security["readOnlyRootFilesystem"], &security["allowPrivilegeEscalation"]), (&json!(true), &json!(false)));
    assert_eq!(security["capabilities"], json!({"drop": ["ALL"]}));
    assert_eq!(container["resources"], json!({"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}}));
    assert_eq!(container["livenessProbe"]["httpGet"]["path"], "/livez");
    assert_eq!(container["readinessProbe"]["httpGet"]["path"], "/readyz");
    assert!(pod["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"].is_array());
    assert_eq!(object(&objects, "PodDisruptionBudget", "berth").context("no PDB")?["spec"]["maxUnavailable"], 1);
    assert!(objects.iter().all(|object| !object["apiVersion"].as_str().unwrap_or_default().starts_with("monitoring.coreos.com")));
    for role in objects.iter().filter(|object| matches!(object["kind"].as_str(), Some("Role" | "ClusterRole"))) {
        assert!(!role.to_string().contains("\"*\""), "{role}");
    }
    let crds: Vec<_> = objects.iter().filter(|object| object["kind"] == "CustomResourceDefinition").collect();
    assert_eq!(crds.len(), 2, "those of Jobs come with them alone");
    let with_jobs = of("jobs")?.iter().filter(|object| object["kind"] == "CustomResourceDefinition").count();
    assert_eq!(with_jobs, crds::read()?.len());
    for crd in crds {
        assert_eq!(crd["metadata"]["annotations"]["helm.sh/resource-policy"], "keep", "uninstalling must not delete every Run");
    }

    let objects = of("single")?;
    let deployment = object(&objects, "Deployment", "berth").context("no Deployment")?;
    assert_eq!(deployment["spec"]["strategy"]["type"], "Recreate");
    assert!(!objects.iter().any(|object| object.to_string().contains("leases")), "no election, no right to Leases");

    let objects = of("one-namespace")?;
    let strategy = &object(&objects, "Deployment", "berth").context("no Deployment")?["spec"]["strategy"];
    assert_eq!(strategy["rollingUpdate"]["maxSurge"], 0, "one more could wait for a node for ever");
    let of_the_cluster = |kind: &str| objects.iter().filter(|o| o["kind"] == kind).filter_map(|o| o["metadata"]["name"].as_str()).collect::<Vec<_>>();
    assert_eq!(of_the_cluster("ClusterRole"), ["berth-auth-delegator", "berth-metrics-reader", "berth-debug-reader"], "tokens and paths are of no namespace");
    assert_eq!(of_the_cluster("ClusterRoleBinding"), ["berth-auth-delegator"]);
    assert_eq!(object(&objects, "Role", "berth").context("no Role")?["metadata"]["namespace"], "team-a");
    let own = object(&objects, "Role", "berth-self").context("no Role")?;
    let events = json!({"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"]});
    assert!(
        own["metadata"]["namespace"] == "berth" && own["rules"].as_array().is_some_and(|rules| rules.contains(&events)),
        "for those on its ConfigMap: {own}"
    );
    assert_eq!(object(&objects, "RoleBinding", "berth").context("no RoleBinding")?["subjects"][0]["namespace"], "berth");

    // Scheme of the probes, scheme and trust of the scrape, roles: as the endpoints are served.
    for (name, release, scheme, flag, trust) in [
        ("self-signed", "berth", "https", true, json!({"insecureSkipVerify": true})),
        ("everything", "placer", "https", true, json!({"ca": {"secret": {"name": "berth-tls", "key": "ca.crt"}}, "serverName": "placer.berth.svc"})),
        ("open", "berth", "http", false, Value::Null),
    ] {
        let objects = of(name)?;
        let container = &object(&objects, "Deployment", release).context("no Deployment")?["spec"]["template"]["spec"]["containers"][0];
        let args = container["args"].to_string();
        for probe in ["livenessProbe", "readinessProbe"] {
            assert_eq!(container[probe]["httpGet"]["scheme"], scheme.to_uppercase(), "{name}");
        }
        assert_eq!((args.contains("--delegated-auth"), args.contains("--tls-cert-file=/tls/tls.crt")), (flag, name == "everything"), "{name}");
        let scrape = &object(&objects, "ServiceMonitor", release).context("no ServiceMonitor")?["spec"]["endpoints"][0];
        assert_eq!((&scrape["scheme"], scrape["bearerTokenFile"].is_string(), &scrape["tlsConfig"]), (&json!(scheme), flag, &trust), "{name}");
        let reader = if release == "berth" { "berth-metrics-reader" } else { "berth-placer-metrics-reader" };
        assert_eq!(object(&objects, "ClusterRole", reader).is_some(), flag, "{name}");
    }

    runtime_pods_show(&of("runtimes")?)?;

    let objects = of("nothing-beside")?;
    let kinds: BTreeSet<_> = objects.iter().filter_map(|object| object["kind"].as_str()).collect();
    assert_eq!(kinds, ["ConfigMap", "Deployment", "PodDisruptionBudget", "Service"].into());
    Ok(())
}

#[test]
fn two_releases_share_no_object_of_the_cluster_but_the_crds() -> Result<()> {
    let helm = Helm::new()?;
    let names = |namespace: &str, values: Value| -> Result<BTreeSet<String>> {
        let objects = helm.rendered("two", namespace, &values)?;
        let of_the_cluster = objects.iter().filter(|object| object["metadata"]["namespace"].is_null() && object["kind"] != "CustomResourceDefinition");
        Ok(of_the_cluster.map(|object| format!("{} {}", object["kind"], object["metadata"]["name"])).collect())
    };
    for values in [json!({}), json!({"watchNamespace": "team-a"})] {
        let (one, other) = (names("berth", values.clone())?, names("other", values)?);
        assert!(one.len() > 3 && one.len() == other.len(), "{one:?} {other:?}");
        assert!(one.is_disjoint(&other), "{one:?} {other:?}");
    }
    Ok(())
}

#[test]
fn alerts_link_to_the_runbook_where_its_readers_have_it() -> Result<()> {
    let base = json!({"metrics": {"prometheusRule": {"enabled": true, "runbookBaseURL": "https://git.example.test/berth/docs/"}}});
    let objects = Helm::new()?.rendered("runbook", "berth", &base)?;
    let rules = &object(&objects, "PrometheusRule", "berth").context("no PrometheusRule")?["spec"]["groups"];
    let alerts: Vec<&Value> = rules
        .as_array()
        .into_iter()
        .flatten()
        .flat_map(|group| group["rules"].as_array().into_iter().flatten())
        .filter(|rule| rule["alert"].is_string())
        .collect();
    assert!(!alerts.is_empty());
    for alert in alerts {
        let name = alert["alert"].as_str().unwrap_or_default().to_lowercase();
        assert_eq!(alert["annotations"]["runbook_url"], format!("https://git.example.test/berth/docs/runbook.md#{name}"));
    }
    Ok(())
}

fn runtime_pods_show(objects: &[Value]) -> Result<()> {
    let rows = [
        ("bash", 0, json!(["CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETUID"]), json!({"kruntimes.io/capacity.runs": "2"})),
        ("python", 1000, Value::Null, json!({"kruntimes.io/capacity.runs": "4", "kruntimes.io/capacity.gpu": "2", "x": "y"})),
    ];
    for (runtime, user, added, annotations) in rows {
        let template = &object(objects, "Deployment", &format!("berth-{runtime}")).context("no Deployment")?["spec"]["template"];
        let (pod, container) = (&template["spec"], &template["spec"]["containers"][0]);
        assert_eq!((&template["metadata"]["labels"]["runtime"], &template["metadata"]["annotations"]), (&json!(runtime), &annotations));
        assert_eq!((&pod["securityContext"]["runAsUser"], &pod["serviceAccountName"]), (&json!(user), &json!("berth-runtimed")));
        let security = &container["securityContext"];
        assert_eq!((&security["allowPrivilegeEscalation"], &security["capabilities"]["drop"]), (&json!(false), &json!(["ALL"])));
        assert_eq!(
            security["readOnlyRootFilesystem"],
            if runtime == "bash" { json!(true) } else { Value::Null },
            "an image of the user's own writes where it likes"
        );
        assert_eq!((&security["capabilities"]["add"], container["args"].to_string().contains("--run-as=65532:65532")), (&added, user == 0), "{runtime}");
    }
    // The agent is put into a Runtime's own image.
    let pod = &object(objects, "Deployment", "berth-python").context("no Deployment")?["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    assert_eq!(container["envFrom"], json!([{"prefix": "S_", "secretRef": {"name": "s"}}]));
    let last = |list: &Value| list.as_array().and_then(|list| list.last()).cloned();
    assert_eq!(last(&container["volumeMounts"]), Some(json!({"name": "git", "mountPath": "/git", "readOnly": true})));
    assert_eq!(last(&pod["volumes"]), Some(json!({"name": "git", "secret": {"secretName": "git"}})));
    let own = format!("runtimed:{}", env!("CARGO_PKG_VERSION"));
    assert_eq!((&pod["containers"][0]["image"], &pod["initContainers"][0]["image"]), (&json!("python:3.13"), &json!(own)));
    assert_eq!(pod["containers"][0]["command"], json!(["/runtimed.bin/runtimed"]));

    let elsewhere = json!({"runtimes": [{"name": "a", "namespace": "x"}, {"name": "1", "namespace": "2"}, {"name": "y", "namespace": "x"}]});
    let objects = Helm::new()?.rendered("elsewhere", "berth", &elsewhere)?;
    for kind in ["ServiceAccount", "Role", "RoleBinding"] {
        let of_agents = objects.iter().filter(|object| object["kind"] == kind && object["metadata"]["name"] == "berth-runtimed");
        let namespaces: BTreeSet<_> = of_agents.filter_map(|object| object["metadata"]["namespace"].as_str()).collect();
        assert_eq!(namespaces, ["2", "x"].into(), "{kind}: one per namespace, and none beside");
    }
    let runtime_of = |name: &str| object(&objects, "Deployment", name).map(|found| found["spec"]["selector"]["matchLabels"]["runtime"].clone());
    assert_eq!((runtime_of("berth-1"), runtime_of("berth-y")), (Some(json!("1")), Some(json!("y"))), "text, whatever it looks like");
    Ok(())
}

/// Values with this one profile.
fn profile(profile: Value) -> Value {
    json!({"configuration": {"profiles": [profile]}})
}

#[test]
fn workspaces_need_an_agent_unless_a_profile_says_otherwise() -> Result<()> {
    let helm = Helm::new()?;
    let fencing = |args: Value| json!({"name": "WorkspaceFencing", "args": args});
    let other = json!({"name": "Capacity", "args": {"strategy": "MostAllocated"}});
    let yes = json!({"requireWorkspaceAgent": true});
    let rows = [
        (json!({}), json!([fencing(yes.clone())])),
        (json!({"configuration": {"profiles": []}}), json!([fencing(yes.clone())])),
        (profile(json!({"pluginConfig": [other.clone()]})), json!([other, fencing(yes.clone())])),
        (profile(json!({"pluginConfig": [fencing(json!({"requireWorkspaceAgent": false}))]})), json!([fencing(json!({"requireWorkspaceAgent": false}))])),
        (profile(json!({"pluginConfig": [{"name": "WorkspaceFencing"}]})), json!([fencing(yes)])),
        (profile(json!({"plugins": {"multiPoint": {"disabled": [{"name": "*"}]}}})), Value::Null),
        (json!({"requireWorkspaceAgent": false}), json!([])),
    ];
    for (values, expected) in rows {
        let objects = helm.rendered("profile", "berth", &values)?;
        let text = object(&objects, "ConfigMap", "berth").context("no ConfigMap")?["data"]["config.yaml"].as_str().context("no profile")?.to_owned();
        let config: Value = serde_saphyr::from_str(&text)?;
        assert_eq!(config["profiles"][0]["pluginConfig"], expected, "{values}: {text}");
    }
    Ok(())
}

#[test]
fn the_schema_of_the_values_knows_the_fields_of_a_configuration() -> Result<()> {
    let values: Value = serde_json::from_str(&std::fs::read_to_string(chart().join("values.schema.json"))?)?;
    let types = schemars::schema_for!(BerthConfiguration).to_value();
    let fields = |schema: &Value| -> BTreeSet<String> { schema["properties"].as_object().into_iter().flatten().map(|(name, _)| name.clone()).collect() };
    let of_type = |name: &str| fields(&types["$defs"][name]);
    let configuration = &values["properties"]["configuration"];
    let profile = &configuration["properties"]["profiles"]["items"];
    let plugins = &profile["properties"]["plugins"];
    let set = &plugins["properties"]["multiPoint"];

    let mut top = fields(&types);
    for given_by_the_chart in ["apiVersion", "kind", "leaderElection"] {
        assert!(top.remove(given_by_the_chart));
    }
    assert_eq!(fields(configuration), top);
    assert_eq!(fields(profile), of_type("ProfileConfiguration"));
    assert_eq!(fields(plugins), of_type("PluginsConfiguration"));
    assert_eq!(fields(set), of_type("PluginSet"));
    assert_eq!(fields(&set["properties"]["enabled"]["items"]), of_type("EnabledPlugin"));
    assert_eq!(fields(&profile["properties"]["pluginConfig"]["items"]), of_type("PluginConfig"));
    let mut election = of_type("LeaderElectionConfiguration");
    assert!(election.remove("leaderElect") && election.remove("resourceNamespace") && election.insert("enabled".to_owned()));
    assert_eq!(fields(&values["properties"]["leaderElection"]), election);
    Ok(())
}

/// Secrets and ConfigMaps that Jobs name are the node's to read (ADR 0054).
#[test]
fn no_right_of_the_chart_reads_what_jobs_refer_to() -> Result<()> {
    let objects = Helm::new()?.rendered("jobs", "berth", &json!({"jobs": {"enabled": true}}))?;
    let roles: Vec<&Value> = objects.iter().filter(|object| matches!(object["kind"].as_str(), Some("Role" | "ClusterRole"))).collect();
    ensure!(roles.len() > 3, "{} roles", roles.len());
    for rule in roles.iter().flat_map(|role| role["rules"].as_array().into_iter().flatten()) {
        let is_about = |resource: &str| rule["resources"].as_array().into_iter().flatten().any(|named| named == resource);
        // Its own configuration, by name.
        ensure!(!is_about("*") && !is_about("secrets") && (!is_about("configmaps") || rule["resourceNames"].is_array()), "{rule}");
    }
    Ok(())
}

/// Of Secrets: its own identity, the API keys by their names, and in the namespaces that it is told what Jobs refer to. None is made or listed (ADR 0063).
#[test]
fn the_rights_to_secrets_are_those_of_the_values_and_no_more() -> Result<()> {
    let keys = json!([{"namespace": "keys", "name": "a"}, {"namespace": "berth", "name": "b"}]);
    let sandbox = json!({"enabled": true, "apiKeySecrets": keys, "referenceNamespaces": ["ci"]});
    let objects = Helm::new()?.rendered("sandboxes", "berth", &json!({"jobs": {"enabled": true, "openSandbox": sandbox}}))?;
    let mut granted = Vec::new();
    for role in objects.iter().filter(|object| matches!(object["kind"].as_str(), Some("Role" | "ClusterRole"))) {
        for rule in role["rules"].as_array().into_iter().flatten() {
            let is_about = |resource: &str| rule["resources"].as_array().into_iter().flatten().any(|named| named == resource);
            ensure!(!is_about("*"), "{rule}");
            if is_about("secrets") {
                granted.push(json!([role["kind"], role["metadata"]["namespace"], rule["resourceNames"], rule["verbs"]]));
            }
        }
    }
    let expected = json!([
        ["Role", "berth", ["berth-installation"], ["get", "patch"]],
        ["Role", "keys", ["a"], ["get"]],
        ["Role", "berth", ["b"], ["get"]],
        ["Role", "ci", null, ["get"]],
    ]);
    let sorted = |rows: &[Value]| -> Vec<String> {
        let mut rows: Vec<_> = rows.iter().map(Value::to_string).collect();
        rows.sort_unstable();
        rows
    };
    assert_eq!(sorted(&granted), sorted(expected.as_array().context("no rows")?));
    let deployment = object(&objects, "Deployment", "berth").context("no Deployment")?;
    let args = deployment["spec"]["template"]["spec"]["containers"][0]["args"].as_array().context("no args")?;
    for arg in ["--jobs-opensandbox=berth/berth-installation", "--jobs-opensandbox-api-key=keys/a", "--jobs-opensandbox-api-key=berth/b"] {
        ensure!(args.iter().any(|given| given == arg), "no {arg} in {args:?}");
    }
    let secrets: Vec<&Value> = objects.iter().filter(|object| object["kind"] == "Secret").collect();
    let [secret] = secrets[..] else { anyhow::bail!("{secrets:?}") };
    ensure!(secret["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep" && secret["data"].is_null() && secret["stringData"].is_null(), "{secret}");
    Ok(())
}

#[test]
fn the_crds_of_the_chart_are_those_of_deploy_crds() -> Result<()> {
    let objects = Helm::new()?.rendered("plain", "berth", &json!({"crds": {"keep": false}, "jobs": {"enabled": true}}))?;
    let mut committed = Vec::new();
    for entry in std::fs::read_dir(checkout().join("deploy/crds"))? {
        committed.extend(documents(&std::fs::read_to_string(entry?.path())?)?);
    }
    ensure!(committed.len() == objects.iter().filter(|object| object["kind"] == "CustomResourceDefinition").count(), "a CRD is missing or too much");
    for crd in &committed {
        let name = crd["metadata"]["name"].as_str().unwrap_or_default();
        let rendered = object(&objects, "CustomResourceDefinition", name).with_context(|| format!("no {name}"))?;
        ensure!(whole(rendered.clone()) == whole(crd.clone()), "{name} differs from deploy/crds");
    }
    Ok(())
}

/// Numbers as helm writes them: 0 for 0.0.
fn whole(value: Value) -> Value {
    match value {
        Value::Number(number) => json!(number.as_f64()),
        Value::Array(items) => items.into_iter().map(whole).collect(),
        Value::Object(members) => members.into_iter().map(|(name, value)| (name, whole(value))).collect(),
        other => other,
    }
}

#[test]
fn the_binaries_take_every_flag_and_the_profile_of_the_chart() -> Result<()> {
    let helm = Helm::new()?;
    let (berth, runtimed) = (berth::binary()?, runtimed::binary()?);
    for (name, values) in value_sets() {
        let objects = helm.rendered(name, "berth", &values)?;
        for deployment in objects.iter().filter(|object| object["kind"] == "Deployment") {
            let container = &deployment["spec"]["template"]["spec"]["containers"][0];
            let args: Vec<&str> = container["args"].as_array().context("no args")?.iter().filter_map(Value::as_str).collect();
            let program = if container["name"] == "runtimed" { &runtimed } else { &berth };
            // clap reads from left to right and fails at the first flag it does not know, before it comes to --help.
            let output = Command::new(program).args(&args).arg("--help").output()?;
            ensure!(output.status.success(), "{name}: {} {}: {}", program.display(), args.join(" "), String::from_utf8_lossy(&output.stderr));
        }

        let config = objects.iter().filter(|object| object["kind"] == "ConfigMap").find_map(|map| map["data"]["config.yaml"].as_str()).context("no profile")?;
        let file = helm.file(&format!("{name}-config.yaml"), config)?;
        let empty = helm.file("empty.yaml", "apiVersion: v1\nkind: List\nitems: []\n")?;
        let output = Command::new(&berth).args(["simulate", "-f", &path(&empty), "--config", &path(&file)]).output()?;
        ensure!(output.status.success(), "{name}: {config}{}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

#[tokio::test]
async fn a_real_api_server_accepts_every_object_and_knows_every_field() -> Result<()> {
    let plane = ControlPlane::start(Default::default()).await?;
    let client = plane.admin()?;
    let operator = last_line_of(&checkout().join("tests/promoperator/crds.sh"))?;
    for file in ["servicemonitors", "prometheusrules"] {
        let text = std::fs::read_to_string(operator.join(format!("monitoring.coreos.com_{file}.yaml")))?;
        for crd in documents(&text)? {
            apply(&client, &crd).await?;
            served(&client, &crd).await?;
        }
    }
    let helm = Helm::new()?;
    for (number, (name, mut values)) in value_sets().into_iter().enumerate() {
        let namespace = plane.namespace("chart").await?;
        if values["watchNamespace"].is_string() {
            values["watchNamespace"] = json!(plane.namespace("watched").await?);
        }
        for object in helm.rendered(name, &namespace, &values)? {
            apply(&client, &object).await.with_context(|| format!("values {number} ({name})"))?;
        }
    }
    Ok(())
}

/// Waits until the API server serves the kind of a CRD.
async fn served(client: &Client, crd: &Value) -> Result<()> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let path = format!("/apis/{}/{}/{}?limit=1", text(&crd["spec"]["group"]), text(&crd["spec"]["versions"][0]["name"]), text(&crd["spec"]["names"]["plural"]));
    until(&format!("{path} to be served"), PATIENCE, || async {
        client.request_text(hyper::Request::get(&path).body(Vec::new())?).await?;
        Ok(Some(()))
    })
    .await
}
