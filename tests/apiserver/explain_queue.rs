//! `berth explain run --server`: a placed Run, a waiting Run's position, cause and times in the queue, standbys, namespaces that are not served.

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::explain::{explain, explain_json};
use super::serve_leader::Candidate;
use super::serve_world::{World, condition_since, run};

fn time(value: &Value) -> Timestamp {
    value.as_str().expect("a time").parse().expect("RFC 3339")
}

#[tokio::test]
async fn a_placed_run_and_the_queue_of_a_running_scheduler_are_told() {
    let world = World::new("explain-placed").await.unwrap();
    world.pod("pod-0", "bash", &[("runs", "2")]).await.unwrap();
    let berth = world.berth().await.unwrap();
    let url = berth.url();
    world.run(run("first")).await.unwrap();
    world.placed("first").await.unwrap();
    let message = "waiting for available runtime pods: 0/1 fit: 1 insufficient runs";
    world.run(run("second").request("runs", 2)).await.unwrap();
    world.waits("second", &[message]).await.unwrap();

    // Why there: what it scores, itself not counted.
    let told = explain_json(&world, "first", &["--server", &url]).await.unwrap();
    assert_eq!(told["verdict"], "It is on pod-0, and would be placed on pod-0 now again", "{told:#}");
    let score = json!({"pod": "pod-0", "total": 50.0, "byPlugin": {"Capacity": 50.0, "RunAffinity": 0.0}});
    assert_eq!((&told["pods"][0]["chosen"], &told["pods"][0]["score"]), (&json!(true), &score), "{told:#}");
    let (_, out, _) = explain(&world, "first", &["--server", &url]).await.unwrap();
    assert!(out.contains("In the queue: no longer, it is Scheduled; 1 Run is pending"), "{out}");
    assert!(out.lines().any(|line| line.trim_start().starts_with("pod-0") && line.contains("here")), "{out}");

    // Its first attempt had no cause.
    let told = explain_json(&world, "second", &["--server", &url]).await.unwrap();
    assert_eq!(told["shown"]["message"], told["waiting"]["message"], "one source: the condition and explain agree");
    assert_eq!(told["shown"]["reason"], told["waiting"]["reason"]);
    let queued = &told["queue"]["run"];
    assert_eq!((&queued["standing"], &queued["position"], &queued["attempts"]), (&json!("waiting"), &json!({"before": 0, "of": 1}), &json!(1)), "{told:#}");
    assert_eq!((&queued["cause"], &queued["message"]), (&Value::Null, &json!(message)));

    // Tried again long after it began to wait, for its labels: the message is of that attempt, the wait is as old as it was.
    let since = condition_since(&world.runs.get("second").await.unwrap(), "Scheduled").unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(1_100)).await;
    world.patch_run("second", json!({"metadata": {"labels": {"try": "again"}}})).await.unwrap();
    let again = |told: &Value| told["queue"]["run"]["attempts"] == 2;
    let told = berth_tests::poll::until("the second attempt", berth_tests::poll::PATIENCE, || async {
        let told = explain_json(&world, "second", &["--server", &url]).await?;
        Ok(again(&told).then_some(told))
    });
    let told = told.await.unwrap();
    let queued = &told["queue"]["run"];
    assert_eq!((&queued["cause"], &queued["standing"]), (&json!("own_labels_changed"), &json!("waiting")), "{told:#}");
    assert_eq!((time(&told["shown"]["since"]), &told["shown"]["lastAttempt"]), (since, &queued["lastAttempt"]), "{told:#}");
    assert!(time(&queued["lastAttempt"]) > since && time(&queued["lastAttempt"]) > time(&queued["waitingSince"]), "{told:#}");
    assert!(time(&told["judgedAt"]) > time(&queued["lastAttempt"]));
    let (_, out, _) = explain(&world, "second", &["--server", &url]).await.unwrap();
    // A moment of the monotonic clock as a time is good to a millisecond or two.
    let (_, rest) = out.split_once(&format!("Shown: Unschedulable: {message} (waiting since {since}, last attempt ")).expect(&out);
    let last = rest.split_once(')').expect(&out).0;
    let apart = last.parse::<Timestamp>().unwrap().as_millisecond().abs_diff(time(&queued["lastAttempt"]).as_millisecond());
    assert!(apart <= 2, "{last}, and before {queued:#}");
    assert!(out.contains("In the queue: waits for an event; 1 Run is pending\n"), "{out}");
    assert!(out.contains(&format!("  tried 2 times, last at {last} because of own_labels_changed; waits since ")), "{out}");

    // Of two that ask for the same one is behind the other.
    world.run(run("third").request("runs", 2)).await.unwrap();
    world.is_waiting(&berth, "third").await.unwrap();
    let mut positions = Vec::new();
    for name in ["second", "third"] {
        let told = explain_json(&world, name, &["--server", &url]).await.unwrap();
        assert_eq!((&told["queue"]["pending"], &told["queue"]["run"]["position"]["of"]), (&json!(2), &json!(2)), "{told:#}");
        positions.push(told["queue"]["run"]["position"]["before"].as_u64().unwrap());
    }
    positions.sort_unstable();
    assert_eq!(positions, [0, 1]);

    // The path by itself.
    let (code, text) = berth.get("/debug/queue").await.unwrap();
    let all: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((code, all["runs"].as_array().unwrap().len(), &all["writes"]), (200, 2, &json!({"placements": 0, "messages": 0})), "{all:#}");
    assert_eq!((&all["state"], &all["leader"], &all["namespace"]), (&json!("placing"), &Value::Null, &json!(world.namespace)));
    assert!(all["runs"][0]["position"].is_null(), "positions are told of one: {all:#}");
    for (query, wanted) in [("run=x", 400), ("runs=a/b", 400), ("run=other/nobody", 200)] {
        assert_eq!(berth.get(&format!("/debug/queue?{query}")).await.unwrap().0, wanted, "{query}");
    }

    // Of another namespace than it serves.
    let elsewhere = World::new("explain-unserved").await.unwrap();
    elsewhere.run(run("first")).await.unwrap();
    let told = explain_json(&elsewhere, "first", &["--server", &url]).await.unwrap();
    assert_eq!((&told["queue"]["served"], &told["queue"]["run"]), (&json!(false), &Value::Null), "{told:#}");
    let (_, out, _) = explain(&elsewhere, "first", &["--server", &url]).await.unwrap();
    assert!(out.contains(&format!("In the queue: not of this process, which serves namespace {} alone", world.namespace)), "{out}");
    berth.terminate().await.unwrap();
}

#[tokio::test]
async fn a_standby_says_so_and_who_leads() {
    let world = World::new("explain-standby").await.unwrap();
    let leader = Candidate::start(&world).await.unwrap();
    leader.leads().await.unwrap();
    let standby = Candidate::start(&world).await.unwrap();
    world.run(run("waits")).await.unwrap();
    world.waits("waits", &["no Pod has label runtime=bash"]).await.unwrap();
    let (_, text) = leader.berth.get("/debug/queue").await.unwrap();
    let view: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(view["state"], "placing");
    let identity = view["leader"].as_str().unwrap().to_owned();
    let told = berth_tests::poll::until("the standby to know who leads", berth_tests::poll::PATIENCE, || async {
        let told = explain_json(&world, "waits", &["--server", &standby.berth.url()]).await?;
        Ok((told["queue"]["leader"] == identity.as_str() && !told["queue"]["run"].is_null()).then_some(told))
    });
    let told = told.await.unwrap();
    assert_eq!((&told["queue"]["state"], &told["queue"]["run"]["standing"]), (&json!("standby"), &json!("standby")), "{told:#}");
    let (_, out, _) = explain(&world, "waits", &["--server", &standby.berth.url()]).await.unwrap();
    assert!(out.contains(&format!("In the queue: this process stands by; {identity}, by the Lease, places, and knows more\n")), "{out}");
    let told = explain_json(&world, "waits", &["--server", &leader.berth.url()]).await.unwrap();
    assert_eq!(told["queue"]["run"]["standing"], "waiting", "{told:#}");
}
