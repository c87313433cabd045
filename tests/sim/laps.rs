//! What an observer of the core is told: every stage and plugin of an attempt once, in order, whatever the way to the decision.

use std::sync::{Arc, Mutex};

use berth_framework::core::Input;
use berth_framework::model::{Delta, RunObject};
use berth_framework::observe::{Event, Lap, Observer, Point, Status};
use berth_framework::profile::Registry;
use berth_plugins::Builtin as _;
use berth_tests::oracle::Rules;

use crate::stage::{RunExt as _, Stage, active, key, pod, run, workspace};

/// The plugins of the default profile by index.
const NAMES: [&str; 4] = ["RuntimeReady", "WorkspaceFencing", "RunAffinity", "Capacity"];

#[derive(Clone, Default)]
struct Laps(Arc<Mutex<Vec<Lap>>>);

impl Observer for Laps {
    fn lap(&mut self, lap: Lap) {
        self.0.lock().unwrap().push(lap);
    }
}

impl Laps {
    /// What was told since the last call, in short.
    fn take(&self) -> Vec<String> {
        let word = |lap| match lap {
            Lap::Other => "other".to_owned(),
            Lap::AttemptStart { profile } => format!("start {profile}"),
            Lap::Plugin { point, plugin, status, asked } => {
                let asked = if matches!(point, Point::Filter | Point::Score) { format!(" {asked}") } else { String::new() };
                let status = if status == Status::Success { String::new() } else { format!(" {}", status.as_str()) };
                format!("{} {}{asked}{status}", point.as_str(), NAMES[plugin])
            }
            Lap::Host(point) => format!("{} host", point.as_str()),
            Lap::Decided(point) => format!("decided by {}", point.as_str()),
            Lap::Shadows => "shadows".to_owned(),
            Lap::AttemptEnd => "end".to_owned(),
            Lap::Hint { plugin, cause, helps, .. } => format!("hint {} {} {helps}", NAMES[plugin], cause.as_str()),
        };
        std::mem::take(&mut *self.0.lock().unwrap()).into_iter().map(word).collect()
    }
}

fn observed(rules: &Rules) -> (Stage, Laps) {
    let (mut stage, laps) = (Stage::with(rules), Laps::default());
    stage.core.observe(Box::new(laps.clone()));
    (stage, laps)
}

const PRE: [&str; 3] = ["PreFilter WorkspaceFencing", "PreFilter RunAffinity", "PreFilter Capacity"];
const RESERVE: [&str; 3] = ["Reserve RunAffinity", "Reserve Capacity", "end"];

#[test]
fn a_placement_by_table_tells_each_plugin_once_however_many_pods_there_are() {
    let (mut stage, laps) = observed(&Rules::default());
    for name in ["p0", "p1", "p2"] {
        stage.pod(pod(name, 1));
    }
    stage.run(run("a"));
    assert_eq!(stage.placed().len(), 1);
    let looked = ["Filter host", "Filter RuntimeReady 3", "Filter WorkspaceFencing 3", "Filter RunAffinity 3", "Filter Capacity 3"];
    let scored = ["Score RunAffinity 3", "Score Capacity 3", "Filter host", "decided by Score"];
    let expected: Vec<&str> = ["start 0"].into_iter().chain(PRE).chain(looked).chain(scored).chain(RESERVE).collect();
    assert_eq!(laps.take(), expected);

    // Of the same shape: only the Pod that changed is looked at, and it is full.
    stage.run(run("b"));
    assert_eq!(stage.placed().len(), 1);
    let looked = ["Filter host", "Filter RuntimeReady 1", "Filter WorkspaceFencing 1", "Filter RunAffinity 1", "Filter Capacity 1"];
    let expected: Vec<&str> = ["start 0"].into_iter().chain(PRE).chain(looked).chain(["Filter host", "decided by Score"]).chain(RESERVE).collect();
    assert_eq!(laps.take(), expected);
}

#[test]
fn a_run_that_waits_ends_at_its_diagnosis_and_is_hinted_at_by_who_rejected_it() {
    let (mut stage, laps) = observed(&Rules::default());
    stage.pod(pod("p", 1));
    stage.run(active("there", "p"));
    stage.run(run("a"));
    assert_eq!(stage.placed().len(), 0);
    let told = laps.take();
    assert_eq!(told[told.len() - 2..], ["decided by Filter", "end"], "{told:?}");

    stage.run(run("b").requests(&[("runs", 2)]));
    assert_eq!(stage.placed().len(), 0);
    laps.take();
    stage.end(active("there", "p"));
    assert_eq!(stage.placed(), ["a@p"]);
    let told = laps.take();
    let hints: Vec<&String> = told.iter().filter(|lap| lap.starts_with("hint")).collect();
    assert_eq!(hints, ["hint Capacity run_ended true", "hint Capacity run_ended false"], "{told:?}");
    let first = told.iter().position(|lap| lap.starts_with("hint")).unwrap();
    assert_eq!(told[first - 1], "other", "what came before a hint is not its own: {told:?}");
}

#[test]
fn a_narrowed_run_tells_who_refused_and_looks_at_its_candidates_only() {
    let (mut stage, laps) = observed(&Rules { workspace_fencing: Some(false), ..Rules::default() });
    for name in ["p0", "p1"] {
        stage.pod(pod(name, 1));
    }
    stage.run(run("a").workspace("w"));
    assert_eq!(stage.placed().len(), 0);
    let told = laps.take();
    assert_eq!(told[..2], ["start 0", "PreFilter WorkspaceFencing UnschedulableAndUnresolvable"], "{told:?}");
    assert_eq!(told.last().unwrap(), "end");

    stage.workspace(workspace("w", "p1"));
    assert_eq!(stage.placed(), ["a@p1"]);
    let told = laps.take();
    assert!(told.contains(&"Filter Capacity 1".to_owned()) && told.contains(&"Score Capacity 1".to_owned()), "{told:?}");
    assert!(!told.iter().any(|lap| lap.ends_with(" 2")), "only p1 is looked at: {told:?}");
}

#[test]
fn shadows_count_for_nobody() {
    let config = "apiVersion: berth.kruntimes.io/v1alpha1\nkind: BerthConfiguration\nprofiles: [{schedulerName: a}, {schedulerName: b, shadow: true}]\n";
    let loaded = berth_scheduler::config::parse(config, "-", &Registry::builtin()).expect("a configuration");
    let (mut stage, laps) = (Stage::of_all(loaded.profiles), Laps::default());
    stage.core.observe(Box::new(laps.clone()));
    stage.pod(pod("p", 1));
    stage.run(run("a"));
    assert_eq!(stage.placed(), ["a@p"]);
    let told = laps.take();
    let decided = told.iter().position(|lap| lap == "decided by Score").unwrap();
    assert_eq!(told[decided + 1], "shadows", "{told:?}");
    assert_eq!(told.iter().filter(|lap| lap.starts_with("PreFilter")).count(), 3, "{told:?}");
}

#[test]
fn every_change_is_called_what_kube_scheduler_calls_it() {
    let mut stage = Stage::new();
    let seen = |object: RunObject| Input::Run(Delta::Applied(Arc::new(object)));
    fn gone<T>(name: &str) -> Delta<T> {
        Delta::Deleted { key: key(name), uid: format!("uid-{name}").into() }
    }
    let now = stage.now;
    let mut told = |input| stage.core.handle(input, now);
    assert_eq!(told(Input::Pod(Delta::Applied(Arc::new(pod("p", 1))))), Some(Event::NodeAdd));
    assert_eq!(told(Input::Pod(Delta::Applied(Arc::new(pod("p", 2))))), Some(Event::NodeUpdate));
    assert_eq!(told(seen(run("a"))), Some(Event::UnscheduledPodAdd));
    assert_eq!(told(seen(run("a").labels(&[("x", "y")]))), Some(Event::UnscheduledPodUpdate));
    assert_eq!(told(seen(active("a", "p"))), Some(Event::AssignedPodAdd));
    assert_eq!(told(seen(active("a", "p"))), Some(Event::AssignedPodUpdate));
    assert_eq!(told(seen(RunObject { uid: "another".into(), ..run("a") })), Some(Event::UnscheduledPodAdd), "another object of that name");
    assert_eq!(told(Input::Run(gone("a"))), Some(Event::AssignedPodDelete), "the first is gone already");
    assert_eq!(told(Input::Run(Delta::Deleted { key: key("a"), uid: "another".into() })), Some(Event::UnscheduledPodDelete));
    assert_eq!(told(Input::Workspace(Delta::Applied(Arc::new(workspace("w", "p"))))), Some(Event::PersistentWorkspaceAdd));
    assert_eq!(told(Input::Workspace(Delta::Applied(Arc::new(workspace("w", "q"))))), Some(Event::PersistentWorkspaceUpdate));
    assert_eq!(told(Input::Workspace(gone("w"))), Some(Event::PersistentWorkspaceDelete));
    assert_eq!(told(Input::Pod(gone("p"))), Some(Event::NodeDelete));
    assert_eq!(told(Input::Timer), None);
}
