//! From the end of a simulation to its report.

use std::sync::Arc;

use berth_api::PersistentWorkspace;
use berth_api::constants::{KIND_RUN, reason};
use berth_framework::model::{ObjectKey, Phase};

use super::binder;
use super::drive::{Explained, Outcome, Outcomes, SimulatedRun};
use super::report::{Decision, ExplainReport, ExplainedPod, RejectionReport, Report, RunReport, ScoreReport, Summary, VerdictReport, WorkspaceReport};
use super::world::Refused;

/// Puts together what is told, in input order.
pub fn assemble(
    outcomes: &Outcomes,
    workspaces: Vec<(usize, PersistentWorkspace)>,
    refused: Vec<Refused>,
    explained: Option<(&ObjectKey, Explained)>,
) -> Report {
    let mut summary = summary_of(outcomes);
    let explain = explained.map(|(key, explained)| explain_report(key, explained));
    let mut runs: Vec<(usize, RunReport)> = outcomes.runs.iter().map(|run| (run.order, run_report(run))).collect();
    let mut spaces: Vec<(usize, WorkspaceReport)> = workspaces.into_iter().map(|(order, workspace)| (order, workspace_report(&workspace))).collect();
    for Refused { kind, key, message, order } in refused {
        if kind == KIND_RUN {
            summary.failed += 1;
            runs.push((order, refused_run(key, &message)));
        } else {
            spaces.push((order, refused_workspace(key, &message)));
        }
    }
    runs.sort_by_key(|(order, _)| *order);
    spaces.sort_by_key(|(order, _)| *order);
    let runs = runs.into_iter().map(|(_, run)| run).collect();
    Report { runs, workspaces: spaces.into_iter().map(|(_, workspace)| workspace).collect(), summary, jobs: Vec::new(), explain }
}

/// Numbers of the whole simulation, without what the API refuses.
pub fn summary_of(outcomes: &Outcomes) -> Summary {
    let mut summary = Summary { cycles: outcomes.times.len(), decision: Decision::of(outcomes.times.clone()), ..Summary::default() };
    for run in &outcomes.runs {
        match run.outcome {
            Outcome::Placed => summary.placed += 1,
            Outcome::Failed => summary.failed += 1,
            Outcome::Cancelled => summary.cancelled += 1,
            Outcome::Untouched => summary.pending += usize::from(run.object.phase == Phase::Pending),
        }
    }
    summary
}

/// One Run at the end.
pub fn run_report(run: &SimulatedRun) -> RunReport {
    RunReport {
        namespace: run.object.key.namespace.clone(),
        name: run.object.key.name.clone(),
        phase: run.phase.clone(),
        assigned_pod: run.object.assigned_pod.clone(),
        reason: run.reason.clone(),
        message: run.message.clone(),
        attempts: run.attempts,
        rejections: run.rejections.iter().map(|row| RejectionReport { plugin: row.plugin, reason: row.rejection.reason.code, pods: row.pods }).collect(),
        scores: run.ranked.iter().map(ScoreReport::from).collect(),
    }
}

fn refused_run(key: ObjectKey, message: &str) -> RunReport {
    RunReport {
        namespace: key.namespace,
        name: key.name,
        phase: "Failed".into(),
        assigned_pod: None,
        reason: reason::INVALID_SPEC.into(),
        message: message.into(),
        attempts: 0,
        rejections: Vec::new(),
        scores: Vec::new(),
    }
}

fn workspace_report(workspace: &PersistentWorkspace) -> WorkspaceReport {
    let shared = |text: Option<&String>| text.filter(|text| !text.is_empty()).map(|text| Arc::from(text.as_str()));
    let status = workspace.status.as_ref();
    WorkspaceReport {
        namespace: workspace.metadata.namespace.as_deref().unwrap_or_default().into(),
        name: workspace.metadata.name.as_deref().unwrap_or_default().into(),
        phase: workspace.phase().as_str().into(),
        bound_pod: shared(status.and_then(|status| status.bound_pod.as_ref())),
        bound_pod_uid: shared(status.and_then(|status| status.bound_pod_uid.as_ref())),
        message: binder::message(workspace),
    }
}

fn refused_workspace(key: ObjectKey, message: &str) -> WorkspaceReport {
    WorkspaceReport {
        namespace: key.namespace,
        name: key.name,
        phase: "Failed".into(),
        bound_pod: None,
        bound_pod_uid: None,
        message: format!("{}: {message}", reason::INVALID_SPEC).into(),
    }
}

fn explain_report(key: &ObjectKey, explained: Explained) -> ExplainReport {
    let Explained { explanation, when, ranked } = explained;
    let chosen = ranked.first().map(|ranked| ranked.pod.clone());
    let pods = explanation.pods.into_iter().map(|pod| ExplainedPod {
        fits: pod.fits,
        chosen: chosen.as_ref() == Some(&pod.pod),
        verdicts: pod.verdicts.into_iter().map(VerdictReport::from).collect(),
        score: ranked.iter().find(|ranked| ranked.pod == pod.pod).map(ScoreReport::from),
        pod: pod.pod,
    });
    ExplainReport { namespace: key.namespace.clone(), name: key.name.clone(), when, runtime: explanation.runtime, pods: pods.collect() }
}
