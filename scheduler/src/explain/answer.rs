//! The answer of `berth explain run`, whose JSON is stable, and how it comes about: the Run is judged as if it were to be placed now, all
//! others being where they are.

use std::sync::Arc;

use anyhow::Context as _;
use berth_api::conditions;
use berth_api::constants::run_condition;
use berth_api::run::Run;
use berth_api::runtime_ready::Now;
use berth_framework::core::{Core, Explanation, Input, Judgement};
use berth_framework::from_api;
use berth_framework::model::{Delta, Phase, RunObject};
use jiff::Timestamp;
use serde::Serialize;

use super::change;
use super::live::Live;
use super::rules::{Rules, Trust};
use super::server::Queue;
use crate::simulate::{ExplainedPod, RejectionReport, ScoreReport, VerdictReport};

/// The answer; its JSON is stable.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    /// The Run's namespace.
    pub namespace: Arc<str>,
    /// The Run's name.
    pub name: Arc<str>,
    /// Its runtime.
    pub runtime: Arc<str>,
    /// Its phase as stored.
    pub phase: String,
    /// Its Pod, if it is placed.
    pub assigned_pod: Option<Arc<str>>,
    /// The configuration this was judged by, in words.
    pub judged_by: String,
    /// Where that comes from, and whether it is what is in force.
    pub rules: Trust,
    /// The profile that places Runs of its runtime.
    pub profile: String,
    /// When this was judged.
    pub judged_at: Timestamp,
    /// One sentence.
    pub verdict: String,
    /// Condition reason and message it would show now, if no Pod fits.
    pub waiting: Option<Shown>,
    /// Condition reason and message it shows, of its last attempt.
    pub shown: Option<Shown>,
    /// Pods by plugin and reason, if none fits.
    pub rejections: Vec<RejectionReport>,
    /// Any one of these would place it, if it is to be placed.
    pub smallest_changes: Vec<String>,
    /// The Pod it would be placed on now, also if it is on one already.
    pub would_take: Option<Arc<str>>,
    /// Every Pod of its runtime, with verdicts and scores.
    pub pods: Vec<ExplainedPod>,
    /// Its standing in the scheduler's queue, if that was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<Queue>,
}

/// A condition's words.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Shown {
    /// Its reason.
    pub reason: String,
    /// Its message.
    pub message: String,
    /// Of a stored condition: since when its status holds. Of a Run that waits, so, since when it waits; not since when for this reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// Of a stored condition: when the attempt was that it tells of, if the server says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_attempt: Option<Timestamp>,
}

/// Judges the Run as if it were to be placed now. `what_if`: Pods were left out, so that what the Run shows says nothing about the rules.
///
/// # Errors
/// The Run can't be judged at all.
pub fn judge(rules: Rules, live: Live, at: Timestamp, what_if: bool) -> anyhow::Result<Answer> {
    let Rules { name: judged_by, profiles, trust } = rules;
    let profile = profiles.of(&live.run.spec.runtime).name.clone();
    let now = Now { wall_ms: at.as_millisecond(), mono_ms: 0 };
    let stored = from_api::run_object(&live.run);
    let mut core = Core::new(profiles);
    for pod in live.pods {
        core.handle(Input::Pod(Delta::Applied(Arc::new(pod))), now);
    }
    for other in live.others {
        core.handle(Input::Run(Delta::Applied(Arc::new(other))), now);
    }
    let bound = live.workspace.as_ref().and_then(|workspace| workspace.bound_pod.clone());
    if let Some(workspace) = live.workspace {
        core.handle(Input::Workspace(Delta::Applied(Arc::new(workspace))), now);
    }
    let asked = RunObject { phase: Phase::Pending, assigned_pod: None, ..stored.clone() };
    core.handle(Input::Run(Delta::Applied(Arc::new(asked))), now);
    let key = stored.key.clone();
    let judgement = core.judge(&key, now).with_context(|| format!("Run {key} cannot be judged"))?;
    let explanation = core.explain(&key).with_context(|| format!("Run {key} cannot be explained"))?;
    let told = Told { run: &live.run, stored: &stored, trust, bound: bound.as_deref(), at, what_if };
    Ok(Answer { judged_by, profile, ..answer(told, judgement, explanation) })
}

/// What an answer is made of besides the judgement.
struct Told<'l> {
    run: &'l Run,
    stored: &'l RunObject,
    trust: Trust,
    bound: Option<&'l str>,
    at: Timestamp,
    what_if: bool,
}

fn answer(told: Told<'_>, judgement: Judgement, explanation: Explanation) -> Answer {
    let Told { run, stored, mut trust, bound, at, what_if } = told;
    // Of any other, nothing has to change and nothing would be shown.
    let to_be_placed = stored.phase == Phase::Pending && !stored.deleting && !stored.cancel_requested && stored.invalid.is_none();
    let gone = stored.phase != Phase::Active && !to_be_placed;
    let changes = judgement.diagnosis.as_ref().filter(|_| to_be_placed).map(|d| change::smallest(&explanation, d, bound)).unwrap_or_default();
    let rejections = judgement.diagnosis.iter().flat_map(|d| &d.rejections);
    let best = judgement.ranked.first().map(|ranked| ranked.pod.clone());
    let waiting = judgement.shown.map(|shown| Shown { reason: shown.reason.to_string(), message: shown.message.to_string(), since: None, last_attempt: None });
    if let Some(shown) = stored.shown.as_ref().filter(|_| to_be_placed && !what_if) {
        trust.compare(&shown.message, waiting.as_ref().map(|waiting| waiting.message.as_str()));
    }
    // Who is placed was placed there; unless that Pod is left out, as after a drain.
    let there = stored.assigned_pod.as_ref().filter(|pod| stored.phase == Phase::Active && explanation.pods.iter().any(|known| known.pod == **pod));
    let chosen = there.or(best.as_ref()).cloned();
    let pods = explanation.pods.into_iter().map(|pod| ExplainedPod {
        fits: pod.fits,
        chosen: chosen.as_ref() == Some(&pod.pod),
        verdicts: pod.verdicts.into_iter().map(VerdictReport::from).collect(),
        score: judgement.ranked.iter().find(|ranked| ranked.pod == pod.pod).map(ScoreReport::from),
        pod: pod.pod,
    });
    Answer {
        namespace: stored.key.namespace.clone(),
        name: stored.key.name.clone(),
        runtime: stored.runtime.clone(),
        phase: run.phase().as_str().to_owned(),
        assigned_pod: stored.assigned_pod.clone(),
        judged_by: String::new(),
        profile: String::new(),
        judged_at: at,
        verdict: verdict(stored, best.as_deref(), at, trust.contradicted),
        rules: trust,
        waiting: waiting.filter(|_| !gone),
        shown: shown(run),
        rejections: rejections.map(|row| RejectionReport { plugin: row.plugin, reason: row.rejection.reason.code, pods: row.pods }).collect(),
        smallest_changes: changes,
        would_take: best,
        pods: pods.collect(),
        queue: None,
    }
}

/// One sentence on where the Run stands and what would become of it now.
fn verdict(run: &RunObject, best: Option<&str>, at: Timestamp, contradicted: bool) -> String {
    if let Some(invalid) = &run.invalid {
        return format!("It can't be placed: {}", invalid.message);
    }
    let now = match best {
        Some(pod) => format!("would be placed on {pod} now"),
        None => "would fit on no Pod now".to_owned(),
    };
    let held = run.retry_not_before_wall_ms.filter(|until| *until > at.as_millisecond()).and_then(|until| Timestamp::from_millisecond(until).ok());
    match (run.phase, &run.assigned_pod) {
        (Phase::Active, Some(pod)) => match best {
            Some(best) if *best == **pod => format!("It is on {pod}, and {now} again"),
            _ => format!("It is on {pod}; placed anew it {now}"),
        },
        (Phase::Terminal, _) => format!("It has ended; a Run like it {now}"),
        _ if run.deleting => "It is being deleted and is not placed any more".to_owned(),
        _ if run.cancel_requested => "It is to be cancelled and is not placed any more".to_owned(),
        _ if contradicted => format!("It waits; by rules that may not be those in force it {now}"),
        _ => held.map_or_else(|| format!("It waits, and {now}"), |until| format!("It waits until {until} for its retry; but for that it {now}")),
    }
}

fn shown(run: &Run) -> Option<Shown> {
    let condition = conditions::find(&run.status.as_ref()?.conditions, run_condition::SCHEDULED)?;
    let since = Some(condition.last_transition_time.0);
    Some(Shown { reason: condition.reason.clone(), message: condition.message.clone(), since, last_attempt: None })
}
