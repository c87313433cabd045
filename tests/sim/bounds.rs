//! What must not grow with what has been, nor cost more for what others do: namespaces that come and go, Runs that wait elsewhere.

use berth_framework::core::{Sizes, WriteOutcome};
use berth_framework::diagnosis::STUCK_NODES_MAX;
use berth_framework::model::{ObjectKey, PodObject, RunObject};

use crate::stage::{RunExt as _, Stage, key, pod, run};

fn in_namespace(namespace: &str, run: RunObject) -> RunObject {
    let uid = format!("{namespace}-{}", run.uid).into();
    RunObject { key: ObjectKey::new(namespace, run.key.name.clone()), uid, ..run }
}

fn delete_run(stage: &mut Stage, run: &RunObject) {
    let gone = berth_framework::model::Delta::Deleted { key: run.key.clone(), uid: run.uid.clone() };
    stage.core.handle(berth_framework::core::Input::Run(gone), stage.now);
}

fn delete_pod(stage: &mut Stage, pod: &PodObject) {
    let gone = berth_framework::model::Delta::Deleted { key: pod.key.clone(), uid: pod.uid.clone() };
    stage.core.handle(berth_framework::core::Input::Pod(gone), stage.now);
}

#[test]
fn nothing_is_left_of_namespaces_that_are_gone() {
    let mut stage = Stage::new();
    for n in 0..1_100 {
        let namespace = format!("ci-{n}");
        let probe_ms = Some(stage.now.wall_ms);
        let its_pod = PodObject { key: ObjectKey::new(namespace.as_str(), "p"), probe_ms, ..pod("p", 1) };
        let placed = in_namespace(&namespace, run("placed").labels(&[("app", "x")]));
        let waits = in_namespace(&namespace, run("waits").requires("app=nowhere").created(1));
        stage.pod(its_pod.clone());
        stage.run(placed.clone());
        stage.run(waits.clone());
        assert_eq!(stage.placed(), ["placed@p"]);
        stage.pass(1_000);
        stage.work();
        let (write, shown) = stage.messages().remove(0);
        assert!(shown.message.ends_with("no Run offers app=nowhere"), "{shown:?}");
        stage.answer(write, WriteOutcome::Applied("1".into()));
        assert_eq!((stage.core.sizes().domains, stage.core.sizes().namespaces), (1, 1), "namespace {n}");
        delete_run(&mut stage, &waits);
        delete_run(&mut stage, &placed);
        delete_pod(&mut stage, &its_pod);
    }
    let Sizes { tables, label_sets, terms, domains, namespaces } = stage.core.sizes();
    assert_eq!((label_sets, domains, namespaces), (0, 0, 0));
    // Some that nobody needs now are kept for whoever comes next.
    assert!(tables <= 128 && terms <= 1_024, "{tables} tables, {terms} terms");
}

/// The place of a domain is used again: what was found out about the Pods of the old one must not be believed of the new one's.
#[test]
fn a_verdict_about_one_namespace_is_not_believed_of_another() {
    let mut stage = Stage::new();
    let old = PodObject { key: ObjectKey::new("old", "p"), ..pod("p", 1) };
    stage.pod(old.clone());
    let first = in_namespace("old", run("a"));
    stage.run(first.clone());
    assert_eq!(stage.placed(), ["a@p"]);
    delete_run(&mut stage, &first);
    delete_pod(&mut stage, &old);
    stage.pod(pod("p", 0));
    stage.run(run("b"));
    assert_eq!(stage.placed(), [""; 0]);
    assert_eq!(stage.text("b"), "waiting for available runtime pods: 0/1 fit: 1 insufficient runs");
}

#[test]
fn a_runtime_that_a_run_leaves_is_forgotten_too() {
    let mut stage = Stage::new();
    stage.run(run("a"));
    stage.run(RunObject { runtime: "python".into(), ..run("a") });
    stage.work();
    assert_eq!(stage.core.sizes().domains, 1);
}

// ---- the search for Runs that wait for each other --------------------------------------------------

fn waiting_for_a_label(count: usize) -> Stage {
    let mut stage = Stage::new();
    for n in 0..count {
        stage.run(run(&format!("w{n}")).requires("app=x"));
    }
    stage.work();
    stage
}

#[test]
fn the_search_looks_at_the_runs_of_one_namespace_once_a_second() {
    let mut stage = waiting_for_a_label(10);
    for n in 0..500 {
        stage.run(in_namespace("other", run(&format!("o{n}"))));
    }
    stage.work();
    assert_eq!(stage.core.work().searched, 0);
    assert!(stage.text("w0").ends_with("; no Run offers app=x"));
    assert_eq!(stage.core.work().searched, 10);
    stage.pass(999);
    let _ = (stage.text("w1"), stage.text("w9"));
    assert_eq!(stage.core.work().searched, 10, "found a moment ago");
    stage.pass(1);
    let _ = (stage.text("w1"), stage.text("w9"));
    assert_eq!(stage.core.work().searched, 20);
}

#[test]
fn beyond_ten_thousand_nodes_nothing_is_said() {
    // One node is the term.
    let most = STUCK_NODES_MAX - 1;
    let mut stage = waiting_for_a_label(most);
    assert!(stage.text("w7").ends_with("; no Run offers app=x"));
    stage.run(run("one-more").requires("app=x"));
    stage.work();
    stage.pass(1_000);
    let text = stage.text("w7");
    assert!(text.ends_with("no active Run matches required affinity app=x"), "{text}");
    stage.lose_run("one-more");
    stage.pass(1_000);
    assert!(stage.text("w7").ends_with("; no Run offers app=x"));
    assert_eq!(stage.core.standing(&key("one-more")), None);
}
