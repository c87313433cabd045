//! What a placement costs, counted in Pods, terms and Runs looked at: the same in a small cluster and in a large one.

use std::sync::Arc;

use berth_framework::WorkCounters;
use berth_framework::core::{Attempt, AttemptResult};
use berth_framework::model::RunObject;
use berth_tests::oracle::{Decision, Oracle, Rules};

use crate::stage::{RunExt as _, Stage, active, pod, run};

/// How many cohorts world (b) has, and how many targets each has at most.
const COHORTS: usize = 1_000;
const TARGETS: usize = 10;
/// Placements before counting begins, and counted ones.
const WARM_UP: usize = 20;
const COUNTED: usize = 200;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    One,
    Cohorts,
    Preferred,
}

fn newcomer(shape: Shape, n: usize) -> RunObject {
    let run = run(&format!("new-{n}"));
    match shape {
        Shape::One => run,
        Shape::Cohorts => run.requires(&format!("cohort=c{}", n % COHORTS)),
        Shape::Preferred => run.prefers(50, "tier=gold"),
    }
}

/// The most that one placement looked at.
fn cost(shape: Shape, pods: usize, actives: usize) -> WorkCounters {
    let mut stage = Stage::new();
    stage.core.keep_ranked(1);
    let capacity = i64::try_from(2 * actives / pods + 100).expect("small");
    for i in 0..pods {
        stage.pod(pod(&format!("p{i}"), capacity));
    }
    for i in 0..actives {
        let member = active(&format!("a{i}"), &format!("p{}", i % pods));
        stage.run(match shape {
            Shape::Cohorts if i < COHORTS * TARGETS => member.labels(&[("cohort", &format!("c{}", i % COHORTS))]),
            Shape::Preferred if i < pods => member.labels(&[("tier", "gold")]),
            _ => member,
        });
    }
    let mut most = WorkCounters::default();
    let mut before = WorkCounters::default();
    for n in 0..WARM_UP + COUNTED {
        stage.run(newcomer(shape, n));
        let attempts = stage.work();
        assert!(matches!(&attempts[..], [a] if matches!(a.result, AttemptResult::Placed { .. })), "{attempts:?}");
        let bind = stage.binds().remove(0);
        stage.stored(bind.write);
        let bound = RunObject { assigned_pod: Some(bind.pod), ..active(&format!("new-{n}"), "") };
        stage.run(RunObject { affinity: newcomer(shape, n).affinity, ..bound });
        // One of the older ones ends.
        stage.end(RunObject { labels: Arc::default(), ..run(&format!("a{}", actives - 1 - n)) });
        stage.work();
        let now = stage.core.work();
        if n >= WARM_UP {
            most.pods = most.pods.max(now.pods - before.pods);
            most.terms = most.terms.max(now.terms - before.terms);
            most.runs = most.runs.max(now.runs - before.runs);
        }
        before = now;
    }
    most
}

fn same_cost(shape: Shape, limit: WorkCounters) {
    let small = cost(shape, 100, 1_000);
    let large = cost(shape, 10_000, 25_000);
    eprintln!("{shape:?}: at most {small:?} in the small cluster, {large:?} in the large one");
    for cost in [small, large] {
        assert!(cost.pods <= limit.pods && cost.terms <= limit.terms && cost.runs <= limit.runs, "{shape:?}: {cost:?}, the limit is {limit:?}");
    }
}

#[test]
fn runs_of_one_shape_cost_the_same_however_large_the_cluster_is() {
    same_cost(Shape::One, WorkCounters { pods: 4, terms: 0, runs: 0, searched: 0 });
}

#[test]
fn a_cohort_costs_its_targets() {
    let limit = WorkCounters { pods: TARGETS as u64 + 4, terms: 2 * TARGETS as u64 + 4, runs: 0, searched: 0 };
    same_cost(Shape::Cohorts, limit);
}

#[test]
fn a_preference_that_every_pod_meets_costs_the_same_however_large_the_cluster_is() {
    same_cost(Shape::Preferred, WorkCounters { pods: 4, terms: 4, runs: 0, searched: 0 });
}

/// Decisions per world that are held against the exhaustive oracle.
const SAMPLED: usize = 50;

/// In the worlds whose cost is counted above (smaller, for the oracle looks at everything every time) the core decides as the
/// oracle does: the same Pods in the same order with the same totals.
fn decides_as_the_oracle(shape: Shape, pods: usize, actives: usize) {
    let mut stage = Stage::new();
    stage.core.keep_ranked(3);
    let mut oracle = Oracle::new(Rules::default());
    for i in 0..pods {
        let pod = pod(&format!("p{i}"), i64::try_from(actives + i % 7).expect("small"));
        oracle.see_pod(&Arc::new(pod.clone()), stage.now);
        stage.pod(pod);
    }
    for i in 0..actives {
        let member = active(&format!("a{i}"), &format!("p{}", (i * i) % pods));
        let member = match shape {
            Shape::Cohorts if i < COHORTS * TARGETS => member.labels(&[("cohort", &format!("c{}", i % COHORTS))]),
            Shape::Preferred if i % 2 == 0 => member.labels(&[("tier", "gold")]),
            _ => member,
        };
        oracle.see_run(&Arc::new(member.clone()));
        stage.run(member);
    }
    for n in 0..SAMPLED {
        let newcomer = newcomer(shape, n);
        let expected = oracle.expected(&newcomer, stage.now);
        stage.run(newcomer.clone());
        let attempts = stage.work();
        let (Decision::Fits(expected), [Attempt { result: AttemptResult::Placed { ranked, .. }, .. }]) = (&expected, &attempts[..]) else {
            panic!("{shape:?} {n}: {expected:?}, {attempts:?}");
        };
        let found: Vec<_> = ranked.iter().map(|r| (r.pod.to_string(), r.total)).collect();
        let wanted: Vec<_> = expected.iter().take(3).map(|s| (s.pod.clone(), s.total)).collect();
        assert_eq!(found, wanted, "{shape:?} {n}");
        let bind = stage.binds().remove(0);
        stage.stored(bind.write);
        let bound = RunObject { assigned_pod: Some(bind.pod.clone()), affinity: newcomer.affinity, ..active(&format!("new-{n}"), &bind.pod) };
        oracle.see_run(&Arc::new(bound.clone()));
        stage.run(bound);
        stage.work();
    }
}

#[test]
fn sampled_decisions_of_every_world_are_the_oracles() {
    for shape in [Shape::One, Shape::Cohorts, Shape::Preferred] {
        decides_as_the_oracle(shape, 100, 1_000);
        decides_as_the_oracle(shape, 400, 4_000);
    }
}
