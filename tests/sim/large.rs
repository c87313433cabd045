//! Histories larger than the core's limits: more Pods than a sparse term may have, more shapes than tables are kept,
//! more changes than the log of a domain reaches back.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::selector::{CompiledSelector, Operator, Requirement};
use berth_framework::model::{Affinity, WorkspacePhase};
use berth_tests::oracle::Rules;

use crate::history::{BoundUid, Event, History, PodChange, PodSpec, RunChange, RunSpec, State, Timed, WorkspaceSpec};
use crate::random::Random;

fn is(key: &str, value: &str) -> CompiledSelector {
    CompiledSelector { requirements: vec![Requirement { key: key.to_owned(), op: Operator::In, values: vec![value.to_owned()] }] }
}

fn run(labels: &[(&str, &str)], state: State, affinity: Affinity) -> RunSpec {
    let labels: BTreeMap<String, String> = labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    RunSpec { runtime: 0, labels, requests: Some(Vec::new()), affinity: Arc::new(affinity), workspace: None, created_s: 0, invalid: None, state }
}

fn pod(runs: i64) -> PodSpec {
    PodSpec { runtime: 0, running: true, ready: true, heartbeat: true, probe_age_ms: Some(0), capacity: vec![("runs", runs)], agent: true }
}

fn history(rules: Rules) -> History {
    History { namespaces: 1, rules, lag: false, prompt: true, events: Vec::new() }
}

fn quiet(history: &mut History, event: Event) {
    history.events.push(Timed { event, quiet: true });
}

fn loud(history: &mut History, event: Event) {
    history.events.push(Timed { event, quiet: false });
}

/// About as many Pods hold a target (or an owner of anti-affinity) as a term may have and still be looked at Pod by Pod.
pub fn crowded(seed: u64) -> History {
    let random = &mut Random::new(seed ^ 0xC0DE);
    let rules = Rules { run_affinity: Some((random.chance(80), *random.pick(&[1, 1, 3]))), ..Rules::default() };
    let mut history = history(rules);
    let pods = 70 + random.below(25);
    for at in 0..pods {
        let free = if random.chance(25) { 1 } else { 3 };
        quiet(&mut history, Event::CreatePod(at, pod(free), false));
    }
    // A target, an owner of anti-affinity, or both, on every Pod of the crowd.
    let flavour = random.below(3);
    let member = |random: &mut Random, at: usize| {
        let target: &[(&str, &str)] = if flavour == 1 { &[("a", "y")] } else { &[("a", "x"), ("b", "y")] };
        let owned = if flavour == 0 { Vec::new() } else { vec![is("c", "x")] };
        let state = if random.chance(3) { State::Active(pods) } else { State::Active(at) };
        run(target, state, Affinity { required_anti: owned, ..Affinity::default() })
    };
    let crowd = 60 + random.below(8);
    for at in 0..crowd {
        let spec = member(random, at);
        quiet(&mut history, Event::CreateRun(at, spec, false));
    }
    let newcomer = |random: &mut Random| {
        let mut affinity = Affinity::default();
        for (percent, terms) in [(30, &mut affinity.required), (25, &mut affinity.required_anti)] {
            if random.chance(percent) {
                terms.push(is("a", "x"));
            }
            if random.chance(percent / 2) {
                terms.push(is("b", "y"));
            }
        }
        for terms in [&mut affinity.preferred, &mut affinity.preferred_anti] {
            if random.chance(30) {
                terms.push((*random.pick(&[5, 60]), is("a", if random.chance(50) { "x" } else { "y" })));
            }
        }
        let labels: &[(&str, &str)] = match random.below(4) {
            0 => &[("a", "x")],
            1 => &[("c", "x")],
            2 => &[("b", "y"), ("c", "x")],
            _ => &[],
        };
        run(labels, State::Pending, affinity)
    };
    for _ in 0..70 {
        match random.weighted(&[30, 22, 22, 8, 5, 5, 4, 4]) {
            0 => {
                let spec = newcomer(random);
                loud(&mut history, Event::CreateRun(200 + random.below(40), spec, true));
            }
            // The crowd shrinks and grows around the limit.
            1 => {
                let at = 56 + random.below(14);
                loud(&mut history, Event::ChangeRun(at, RunChange::State(State::Terminal)));
            }
            2 => {
                let at = (56 + random.below(14)).min(pods - 1);
                let spec = member(random, at);
                loud(&mut history, Event::CreateRun(at, spec, true));
            }
            3 => loud(
                &mut history,
                Event::ChangePod(random.below(pods), PodChange::Capacity(vec![("runs", 1 + i64::try_from(random.below(4)).expect("small"))])),
            ),
            4 => loud(&mut history, Event::DeletePod(random.below(pods))),
            5 => loud(&mut history, Event::CreatePod(random.below(pods), pod(2), true)),
            6 => loud(&mut history, Event::ChangeRun(random.below(crowd), RunChange::Labels([("a".to_owned(), "y".to_owned())].into()))),
            _ => loud(&mut history, Event::ChangeRun(200 + random.below(40), RunChange::State(State::Terminal))),
        }
    }
    history
}

/// More shapes than tables are kept, taken up again in any order, with ids of requests that are freed and reused.
pub fn many_shapes(seed: u64) -> History {
    let random = &mut Random::new(seed ^ 0x5A4E);
    let mut history = history(Rules::default());
    for at in 0..4 {
        let capacity = vec![("runs", 3), ("mem", 100 + i64::try_from(at).expect("small"))];
        quiet(&mut history, Event::CreatePod(at, PodSpec { capacity, ..pod(3) }, false));
    }
    let workspace = WorkspaceSpec { runtime: 0, phase: WorkspacePhase::Bound, bound: Some(1), uid: BoundUid::Real, deleting: false, recreate: false };
    quiet(&mut history, Event::Workspace(0, workspace));
    for _ in 0..900 {
        let n = random.below(12);
        match random.weighted(&[60, 20, 10, 10]) {
            0 => {
                let mut spec = run(&[], State::Pending, Affinity::default());
                spec.requests = Some(vec![("mem", i64::try_from(random.below(180)).expect("small"))]);
                spec.workspace = random.chance(20).then_some(0);
                loud(&mut history, Event::CreateRun(n, spec, true));
            }
            1 => loud(&mut history, Event::ChangeRun(n, RunChange::State(State::Terminal))),
            2 => loud(&mut history, Event::ChangePod(random.below(4), PodChange::Capacity(vec![("runs", 3), ("mem", *random.pick(&[20, 90, 200]))]))),
            _ => loud(&mut history, Event::DeleteRun(n)),
        }
    }
    history
}

/// Few shapes and thousands of changes between two uses of a rare one.
pub fn changing(seed: u64) -> History {
    let random = &mut Random::new(seed ^ 0x10C);
    let mut history = history(Rules::default());
    for at in 0..5 {
        quiet(&mut history, Event::CreatePod(at, PodSpec { capacity: vec![("runs", 2), ("gpu", 2)], ..pod(2) }, false));
    }
    // These change so rarely that the log forgets it.
    for at in 5..25 {
        quiet(&mut history, Event::CreatePod(at, PodSpec { capacity: vec![("runs", 0), ("gpu", 2)], ..pod(0) }, false));
    }
    for i in 0..4_000 {
        let n = random.below(10);
        let rare = i % 700 < 6;
        if i % 150 == 100 {
            let at = 5 + random.below(20);
            let runs = *random.pick(&[0, 0, 1]);
            loud(&mut history, Event::ChangePod(at, PodChange::Capacity(vec![("runs", runs), ("gpu", 2)])));
        }
        match random.weighted(&[40, 25, 30, 3, 2]) {
            0 => {
                let labels: &[(&str, &str)] = if random.chance(50) { &[("a", "x")] } else { &[] };
                let mut spec = run(labels, State::Pending, Affinity::default());
                if rare {
                    spec.requests = Some(vec![("gpu", 1)]);
                    spec.affinity = Arc::new(Affinity { preferred: vec![(1, is("a", "x"))], ..Affinity::default() });
                }
                loud(&mut history, Event::CreateRun(n, spec, true));
            }
            1 => loud(&mut history, Event::ChangeRun(n, RunChange::State(State::Terminal))),
            2 => {
                let runs = *random.pick(&[0, 1, 2, 3]);
                loud(&mut history, Event::ChangePod(random.below(5), PodChange::Capacity(vec![("runs", runs), ("gpu", 2)])));
            }
            3 => loud(&mut history, Event::DeletePod(random.below(5))),
            _ => loud(&mut history, Event::CreatePod(random.below(5), pod(2), true)),
        }
    }
    history
}
