//! The objects of the input as an API server would hold them: checked, decoded, completed with what manifests leave out.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use berth_api::constants::{API_VERSION, GROUP, KIND_PERSISTENT_WORKSPACE, KIND_RUN, LABEL_RUNTIME, POD_CONDITION_RUNTIMED_READY};
use berth_api::persistent_workspace::PersistentWorkspaceStatus;
use berth_api::rules::{self, FieldError};
use berth_api::run::{RunPhase, RunStatus};
use berth_api::{PersistentWorkspace, Run, decode};
use berth_controllers::job::api::names;
use berth_controllers::runs::Stage;
use berth_framework::from_api::{self, ReadRun};
use berth_framework::model::{InvalidReason, InvalidRun, ObjectKey};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodCondition, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use rustc_hash::{FxHashMap, FxHashSet};
use serde_json::Value;

use crate::printable::one_line;

use super::jobs::{self, Jobs, Taken};
use super::read::{Found, Place, Unreadable};
use super::times::Newest;

/// How many problems of one object are told.
const PROBLEMS_MAX: usize = 3;
/// How many warnings are kept; the rest is counted.
const WARNINGS_MAX: usize = 50;

/// An object that the API would refuse.
#[derive(Debug)]
pub struct Refused {
    /// `Run` or `PersistentWorkspace`.
    pub kind: &'static str,
    /// Namespace and name.
    pub key: ObjectKey,
    /// `file:line: field: what is wrong`.
    pub message: String,
    /// How many objects of any kind came before it.
    pub order: usize,
}

/// An object and how many objects came before it.
#[derive(Debug)]
pub struct Placed<T> {
    /// The object.
    pub object: T,
    /// Order in the input.
    pub order: usize,
    /// Where a Run has what the API accepts and the scheduler can't use.
    pub fault: Option<Place>,
    place: Place,
}

/// Everything that was read.
#[derive(Debug)]
pub struct World {
    /// Pods with a `runtime` label.
    pub pods: Vec<Placed<Pod>>,
    /// Pods without one: no Run can go there, but a workspace may be bound to one that had it.
    pub unlabelled_pods: Vec<Pod>,
    /// Runs that the API accepts.
    pub runs: Vec<Placed<Run>>,
    /// PersistentWorkspaces that the API accepts.
    pub workspaces: Vec<Placed<PersistentWorkspace>>,
    /// Runs and PersistentWorkspaces that it refuses.
    pub refused: Vec<Refused>,
    /// Objects left alone, by kind.
    pub left_alone: BTreeMap<String, usize>,
    /// What the user should know, at most [`WARNINGS_MAX`].
    pub warnings: Vec<String>,
    /// Warnings beyond that.
    pub more_warnings: usize,
    /// Jobs, and what they are resolved by.
    pub jobs: Jobs,
    newest: Newest,
    known: FxHashMap<(&'static str, ObjectKey), usize>,
    generated: usize,
    seen: usize,
}

impl World {
    /// An empty world; `today` is the real time, which tells future heartbeats.
    pub fn new(today: Timestamp) -> Self {
        Self {
            pods: Vec::new(),
            unlabelled_pods: Vec::new(),
            runs: Vec::new(),
            workspaces: Vec::new(),
            refused: Vec::new(),
            left_alone: BTreeMap::new(),
            warnings: Vec::new(),
            more_warnings: 0,
            jobs: Jobs::default(),
            newest: Newest::new(today),
            known: FxHashMap::default(),
            generated: 0,
            seen: 0,
        }
    }

    /// How many objects were taken.
    pub fn len(&self) -> usize {
        self.seen
    }

    /// Takes an object of the input; what is none is left out.
    pub fn take_or_leave(&mut self, found: Result<Found<'_>, Unreadable>) {
        match found {
            Ok(found) => self.take(found),
            Err(stray) => self.warn(format!("{stray}; left out")),
        }
    }

    fn take(&mut self, mut found: Found<'_>) {
        self.seen += 1;
        let text = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (kind, api_version) = (text(&found.value, "kind"), text(&found.value, "apiVersion"));
        let group = api_version.split_once('/').map_or("", |(group, _)| group);
        let ours = group == GROUP || api_version.is_empty();
        match kind.as_str() {
            "Pod" if api_version == "v1" || api_version.is_empty() => {
                self.complete_name(&mut found.value);
                self.take_pod(&found);
            }
            KIND_RUN if ours => self.take_ours(found, KIND_RUN, &api_version),
            KIND_PERSISTENT_WORKSPACE if ours => self.take_ours(found, KIND_PERSISTENT_WORKSPACE, &api_version),
            "Namespace" if api_version == "v1" => {
                let name = found.value.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default().to_owned();
                self.jobs.take_namespace(&name, std::mem::take(&mut found.value));
            }
            kind if jobs::definition(kind, group).is_some() => self.take_of_jobs(found, &api_version),
            _ => {
                let name = if group.is_empty() { kind } else { format!("{kind}.{group}") };
                *self.left_alone.entry(one_line(&name).into_owned()).or_default() += 1;
            }
        }
    }

    /// The namespace is `default` if absent, and a `generateName` gets its end.
    fn complete_name(&mut self, value: &mut Value) {
        let Some(meta) = value.as_object_mut().map(|object| object.entry("metadata").or_insert_with(|| Value::Object(Default::default()))) else { return };
        let Some(meta) = meta.as_object_mut() else { return };
        let empty = |member: Option<&Value>| member.is_none_or(|v| v.is_null() || v.as_str() == Some(""));
        if empty(meta.get("namespace")) {
            meta.insert("namespace".into(), "default".into());
        }
        if empty(meta.get("name"))
            && let Some(prefix) = meta.get("generateName").and_then(Value::as_str).filter(|prefix| !prefix.is_empty())
        {
            self.generated += 1;
            let name = format!("{prefix}{:05}", self.generated);
            meta.insert("name".into(), name.into());
        }
    }

    fn take_pod(&mut self, found: &Found<'_>) {
        let pod: Pod = match serde_path_to_error::deserialize(&found.value) {
            Ok(pod) => pod,
            Err(error) => {
                let place = found.place_of(&error.path().to_string());
                let key = key_of(&found.value);
                return self.warn(format!("{place}: Pod {key} can't be read and is left out: {}: {}", error.path(), error.inner()));
            }
        };
        if pod.metadata.name.as_deref().unwrap_or_default().is_empty() {
            return self.warn(format!("{}: a Pod without a name is left out", found.place_of("metadata")));
        }
        if !pod.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(LABEL_RUNTIME)) {
            *self.left_alone.entry(format!("Pod without label {LABEL_RUNTIME}")).or_default() += 1;
            self.unlabelled_pods.push(pod);
            return;
        }
        for path in found.twice() {
            self.warn(format!("{}: Pod {}: {path} stands twice, the later one counts", found.place_of(path), key_of(&found.value)));
        }
        self.newest.see(&found.value);
        let order = self.seen;
        let twin = keep(&mut self.pods, &mut self.known, "Pod", Placed { object: pod, order, fault: None, place: found.place.clone() });
        self.warn_of_twin("Pod", found, twin);
    }

    fn take_of_jobs(&mut self, mut found: Found<'_>, api_version: &str) {
        let kind = found.value.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
        let Some(definition) = jobs::definition(&kind, names::GROUP) else { return };
        if kind == jobs::KIND_JOB {
            self.complete_name(&mut found.value);
        }
        let value = &found.value;
        let mut key = key_of(value);
        let mut problems = name_problems(value);
        // Only Jobs have a namespace.
        if kind != jobs::KIND_JOB {
            key.namespace = "".into();
            problems.retain(|(path, _)| path != "metadata.namespace");
        }
        let name = if key.namespace.is_empty() { key.name.to_string() } else { key.to_string() };
        if api_version != names::API_VERSION {
            problems.push(("apiVersion".into(), format!("must be {}, not {api_version:?}", names::API_VERSION)));
        }
        problems.extend(found.twice().map(|path| (path.to_owned(), "stands twice".to_owned())));
        problems.extend(definition.validate(value).into_iter().map(|FieldError { path, message, .. }| (path, message)));
        for field in definition.unknown_fields(value) {
            self.warn(format!("{}: {kind} {name}: unknown field {} has no effect", found.place_of(&field.path), field.path));
        }
        if problems.is_empty() {
            match self.jobs.take(&kind, definition, value, &found.place) {
                Ok(Taken::First) => {}
                Ok(Taken::Over(twin)) => self.warn(format!("{}: {kind} {name} is applied over the one of {twin}", found.place)),
                Ok(Taken::Unchanged(twin, refused)) => {
                    let problems: Vec<_> = refused.into_iter().map(|FieldError { path, message, .. }| (path, message)).collect();
                    self.warn(format!("{}; the API would refuse this change of {kind} {name}, and the one of {twin} counts", told(&found, &problems)));
                }
                Err(error) => problems.push((error.path, error.reason)),
            }
        }
        if problems.is_empty() {
            return;
        }
        let text = told(&found, &problems);
        if !self.jobs.refuse(&kind, &key, &text) {
            self.warn(format!("{text}; the API would refuse this {kind}, and it is left out"));
        }
    }

    fn take_ours(&mut self, mut found: Found<'_>, kind: &'static str, api_version: &str) {
        self.complete_name(&mut found.value);
        let mut problems = name_problems(&found.value);
        if api_version != API_VERSION {
            problems.push(("apiVersion".into(), format!("must be {API_VERSION}, not {api_version:?}")));
        }
        problems.extend(found.twice().map(|path| (path.to_owned(), "stands twice".to_owned())));
        let is_run = kind == KIND_RUN;
        let value = &found.value;
        let definition = if is_run { &rules::RUN } else { &rules::WORKSPACE };
        let errors = definition.validate(value);
        problems.extend(errors.into_iter().map(|FieldError { path, message, .. }| (path, message)));
        let unknown = definition.unknown_fields(value);
        for field in unknown {
            self.warn(format!("{}: {kind} {}: unknown field {} has no effect", found.place_of(&field.path), key_of(value), field.path));
        }
        let decoded = if is_run {
            from_api::read_run(definition.stored(value)).map(|read| Ours::Run(Box::new(read)))
        } else {
            decode::persistent_workspace(definition.stored(value)).map(|workspace| Ours::Workspace(Box::new(workspace)))
        };
        let undecodable = match &decoded {
            Ok(Ours::Run(read)) => read.undecodable.as_ref(),
            Ok(Ours::Workspace(_)) => None,
            Err(error) => Some(error),
        };
        if undecodable.is_some_and(|error| error.without_spec) {
            *self.left_alone.entry(format!("{kind} without spec")).or_default() += 1;
            return;
        }
        if let Some(error) = undecodable.filter(|_| problems.is_empty()) {
            problems.push((error.path.clone(), error.reason.clone()));
        }
        let accepted = match decoded {
            Ok(ours) if problems.is_empty() => Some(ours),
            // What holds a Pod goes on holding it, whatever our rules and types say: an API server checks only what is written.
            Ok(Ours::Run(read)) if *read.run.phase() != RunPhase::Pending => {
                let text = told(&found, &problems);
                self.warn(format!("{text}; Run {} is {} and stays so", key_of(value), read.run.phase().as_str()));
                Some(Ours::Run(read))
            }
            _ => None,
        };
        match accepted {
            Some(ours) => self.keep_ours(ours, &found),
            None => self.refused.push(Refused { kind, key: key_of(value), message: told(&found, &problems), order: self.seen }),
        }
    }

    fn keep_ours(&mut self, ours: Ours, found: &Found<'_>) {
        self.newest.see(&found.value);
        let (order, place) = (self.seen, found.place.clone());
        match ours {
            Ours::Run(read) => {
                let fault = fault_of(&read.run).map(|path| found.place_of(&path));
                let twin = keep(&mut self.runs, &mut self.known, KIND_RUN, Placed { object: read.run, order, fault, place });
                self.warn_of_twin(KIND_RUN, found, twin);
            }
            Ours::Workspace(object) => {
                let twin = keep(&mut self.workspaces, &mut self.known, KIND_PERSISTENT_WORKSPACE, Placed { object: *object, order, fault: None, place });
                self.warn_of_twin(KIND_PERSISTENT_WORKSPACE, found, twin);
            }
        }
    }

    fn warn_of_twin(&mut self, kind: &str, found: &Found<'_>, twin: Option<Place>) {
        if let Some(twin) = twin {
            self.warn(format!("{}: {kind} {} is applied over the one of {twin}", found.place, key_of(&found.value)));
        }
    }

    fn warn(&mut self, text: String) {
        if self.warnings.len() < WARNINGS_MAX { self.warnings.push(text) } else { self.more_warnings += 1 }
    }

    /// When the clock starts and why: `now`, else the newest time, else 2000-01-01.
    pub fn start(&self, now: Option<Timestamp>) -> (Timestamp, String) {
        match (now, self.newest.get()) {
            (Some(now), _) => (now, "--now".into()),
            (None, Some((newest, of))) => (newest, of.to_owned()),
            (None, None) => (Timestamp::constant(946_684_800, 0), "no time in the input".into()),
        }
    }

    /// Completes what manifests leave out: UIDs, resource versions, creation times, the status of Pods.
    pub fn complete(&mut self, start: Timestamp) {
        for pod in &mut self.pods {
            complete(&mut pod.object.metadata, pod.order, start);
            if pod.object.status.as_ref().is_none_or(|status| *status == PodStatus::default()) {
                pod.object.status = Some(ready(start));
            }
        }
        self.runs.iter_mut().for_each(|run| complete(&mut run.object.metadata, run.order, start));
        self.tell_runs_apart();
        self.workspaces.iter_mut().for_each(|workspace| complete(&mut workspace.object.metadata, workspace.order, start));
    }

    /// Forgets where active Runs are.
    pub fn place_again(&mut self) {
        for run in self.runs.iter_mut().filter(|run| Stage::of(run.object.phase()).is_active()) {
            run.object.status = None;
        }
    }

    /// The queue knows a Run by its UID: a second one with the UID of another (a copied manifest) gets one of its own.
    fn tell_runs_apart(&mut self) {
        let mut uids = FxHashSet::default();
        let mut warnings = Vec::new();
        for run in &mut self.runs {
            let meta = &mut run.object.metadata;
            let given = meta.uid.clone().unwrap_or_default();
            if uids.insert(given.clone()) {
                continue;
            }
            let own = (0..=u16::MAX).map(|n| format!("{n:08x}-0000-4000-8000-{:012x}", run.order)).find(|own| uids.insert(own.clone()));
            meta.uid = own.or(Some(given));
            let text = |text: &Option<String>| text.clone().unwrap_or_default();
            let key = ObjectKey::new(text(&meta.namespace), text(&meta.name));
            warnings.push(format!("{}: Run {key} has the UID of another Run; it gets one of its own", run.place));
        }
        warnings.into_iter().for_each(|warning| self.warn(warning));
    }
}

enum Ours {
    Run(Box<ReadRun>),
    Workspace(Box<PersistentWorkspace>),
}

/// The first problems of an object in one text that begins with file, line and field.
fn told(found: &Found<'_>, problems: &[(String, String)]) -> String {
    let mut text = String::new();
    for (i, (path, message)) in problems.iter().take(PROBLEMS_MAX).enumerate() {
        let place = found.place_of(path);
        let separator = if i == 0 { "" } else { "; " };
        let _ = match path.as_str() {
            "" | "." => write!(text, "{separator}{place}: {message}"),
            path => write!(text, "{separator}{place}: {path}: {message}"),
        };
    }
    if problems.len() > PROBLEMS_MAX {
        let _ = write!(text, "; and {} more", problems.len() - PROBLEMS_MAX);
    }
    text
}

/// The field for which the scheduler will end a Run that the API accepts: the beginning of what it will say.
fn fault_of(run: &Run) -> Option<String> {
    let InvalidRun { reason, message } = from_api::run_object(run).invalid?;
    Some(match (reason, run.spec.requests()) {
        (InvalidReason::InvalidResources, Err(error)) => format!("spec.resources.requests.{}", error.name),
        _ => message.split(": ").next().unwrap_or_default().to_owned(),
    })
}

/// Name and namespace must be there, as texts; the rules check the rest.
fn name_problems(value: &Value) -> Vec<(String, String)> {
    let missing = |field: &str| match value.get("metadata").and_then(|meta| meta.get(field)) {
        None | Some(Value::Null) => Some((format!("metadata.{field}"), "is required".to_owned())),
        Some(Value::String(_)) => None,
        Some(_) => Some((format!("metadata.{field}"), "must be a string".to_owned())),
    };
    ["name", "namespace"].into_iter().filter_map(missing).collect()
}

/// Namespace and name; empty where there is none.
pub fn key_of(value: &Value) -> ObjectKey {
    let text = |key: &str| value.get("metadata").and_then(|meta| meta.get(key)).and_then(Value::as_str).unwrap_or_default();
    ObjectKey::new(text("namespace"), text("name"))
}

/// An object with metadata and a status.
trait Stored {
    /// Type of its status.
    type Status;
    /// Its metadata and its status.
    fn parts(&mut self) -> (&mut ObjectMeta, &mut Option<Self::Status>);
}

impl Stored for Pod {
    type Status = PodStatus;
    fn parts(&mut self) -> (&mut ObjectMeta, &mut Option<PodStatus>) {
        (&mut self.metadata, &mut self.status)
    }
}

impl Stored for Run {
    type Status = RunStatus;
    fn parts(&mut self) -> (&mut ObjectMeta, &mut Option<RunStatus>) {
        (&mut self.metadata, &mut self.status)
    }
}

impl Stored for PersistentWorkspace {
    type Status = PersistentWorkspaceStatus;
    fn parts(&mut self) -> (&mut ObjectMeta, &mut Option<PersistentWorkspaceStatus>) {
        (&mut self.metadata, &mut self.status)
    }
}

/// Adds an object, or applies it over the one of the same name, which keeps who it is; answers the place of that one.
fn keep<T: Stored>(
    list: &mut Vec<Placed<T>>,
    known: &mut FxHashMap<(&'static str, ObjectKey), usize>,
    kind: &'static str,
    mut new: Placed<T>,
) -> Option<Place> {
    let (meta, status) = new.object.parts();
    let key = ObjectKey::new(meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default());
    let Some(old) = known.get(&(kind, key.clone())).and_then(|at| list.get_mut(*at)) else {
        known.insert((kind, key), list.len());
        list.push(new);
        return None;
    };
    let (old_meta, old_status) = old.object.parts();
    let some = |text: &mut Option<String>| text.take().filter(|text| !text.is_empty());
    meta.uid = some(&mut meta.uid).or_else(|| old_meta.uid.take());
    meta.resource_version = some(&mut meta.resource_version).or_else(|| old_meta.resource_version.take());
    meta.creation_timestamp = meta.creation_timestamp.take().or_else(|| old_meta.creation_timestamp.take());
    *status = status.take().or_else(|| old_status.take());
    (old.object, old.fault) = (new.object, new.fault);
    Some(std::mem::replace(&mut old.place, new.place))
}

fn complete(meta: &mut ObjectMeta, order: usize, start: Timestamp) {
    if meta.uid.as_deref().unwrap_or_default().is_empty() {
        // Sorts as the input does, because the queue goes by creation and then by UID.
        meta.uid = Some(format!("00000000-0000-4000-8000-{order:012x}"));
    }
    if meta.creation_timestamp.is_none() {
        meta.creation_timestamp = Some(Time(Timestamp::from_second(start.as_second()).unwrap_or_default()));
    }
    if meta.resource_version.as_deref().unwrap_or_default().is_empty() {
        meta.resource_version = Some(order.to_string());
    }
}

/// The status of a Pod that runs, is ready and has just beaten.
fn ready(start: Timestamp) -> PodStatus {
    let condition = |kind: &str, probe| PodCondition { type_: kind.into(), status: "True".into(), last_probe_time: probe, ..Default::default() };
    PodStatus {
        phase: Some("Running".into()),
        conditions: Some(vec![condition("Ready", None), condition(POD_CONDITION_RUNTIMED_READY, Some(Time(start)))]),
        ..Default::default()
    }
}
