//! The CEL rules, each beside the same rule in Rust.
//!
//! A rule sees the object after nulls and unknown fields are gone and defaults are in. Messages are those a client of the
//! neighbour knows (reference §1.1), and ours where the reference gives none. Every check is total.

use serde_json::Value;

use crate::duration;

/// A rule for the API server, and its twin for here.
#[derive(Debug)]
pub struct CelRule {
    /// CEL; unique within its kind, so that it finds its check.
    pub rule: &'static str,
    /// What the user reads.
    pub message: &'static str,
    /// The same rule in Rust: true if it holds.
    pub check: Check,
}

/// A rule in Rust.
#[derive(Clone, Copy, Debug)]
pub enum Check {
    /// Of the value alone.
    State(fn(&Value) -> bool),
    /// Of a change, `(new, old)`; not asked when there is no old value.
    Transition(fn(&Value, &Value) -> bool),
}

/// Whether there is something at `path`.
pub fn has(value: &Value, path: &[&str]) -> bool {
    at(value, path).is_some()
}

/// What is at `path`, a member of a member.
pub fn at<'a>(value: &'a Value, path: &[&str]) -> Option<&'a Value> {
    path.iter().try_fold(value, |at, key| at.get(key))
}

/// Whether these members are the same on both sides, absent ones included.
pub fn same(new: &Value, old: &Value, fields: &[&str]) -> bool {
    fields.iter().all(|field| new.get(field) == old.get(field))
}

/// Without this rule, taking `spec` away and adding another one would get around every immutable field (ours).
pub const RUN_SPEC_STAYS: CelRule = CelRule {
    rule: "has(self.spec) || !has(oldSelf.spec)",
    message: "spec may not be removed after Run creation",
    check: Check::Transition(|new, old| has(new, &["spec"]) || !has(old, &["spec"])),
};

/// Reference §1.1, `mode.task.entrypoint`.
pub const ENTRYPOINT_IS_RELATIVE: CelRule = CelRule {
    rule: "(has(self.source) && has(self.source.inline)) || !has(self.mode.task) || !has(self.mode.task.entrypoint) || \
           !self.mode.task.entrypoint.matches('^/|(^|/)[.][.](/|$)')",
    message: "mode.task.entrypoint must be a relative path that does not contain '..'",
    check: Check::State(|spec| {
        has(spec, &["source", "inline"])
            || at(spec, &["mode", "task", "entrypoint"])
                .and_then(Value::as_str)
                .is_none_or(|entrypoint| !entrypoint.starts_with('/') && entrypoint.split('/').all(|segment| segment != ".."))
    }),
};

/// Reference §1.1, `source.inlinePath`.
pub const INLINE_PATH_NEEDS_FUNCTION: CelRule = CelRule {
    rule: "!has(self.source) || !has(self.source.inlinePath) || (has(self.source.inline) && has(self.mode.function))",
    message: "source.inlinePath is only valid for function mode with inline source",
    check: Check::State(|spec| !has(spec, &["source", "inlinePath"]) || has(spec, &["source", "inline"]) && has(spec, &["mode", "function"])),
};

/// Reference §1.1, `source.inlinePath`.
pub const FUNCTION_NEEDS_INLINE_PATH: CelRule = CelRule {
    rule: "!has(self.mode.function) || !has(self.source) || !has(self.source.inline) || has(self.source.inlinePath)",
    message: "function mode inline source requires source.inlinePath",
    check: Check::State(|spec| !has(spec, &["mode", "function"]) || !has(spec, &["source", "inline"]) || has(spec, &["source", "inlinePath"])),
};

/// Reference §1.1, column "Mutable".
pub const EXECUTION_IS_IMMUTABLE: CelRule = CelRule {
    rule: "self.runtime == oldSelf.runtime && self.mode == oldSelf.mode && \
           (has(self.source) ? has(oldSelf.source) && self.source == oldSelf.source : !has(oldSelf.source)) && \
           (has(self.env) ? has(oldSelf.env) && self.env == oldSelf.env : !has(oldSelf.env)) && \
           (has(self.timeout) ? has(oldSelf.timeout) && self.timeout == oldSelf.timeout : !has(oldSelf.timeout)) && \
           (has(self.retryPolicy) ? has(oldSelf.retryPolicy) && self.retryPolicy == oldSelf.retryPolicy : \
           !has(oldSelf.retryPolicy)) && \
           (has(self.resources) ? has(oldSelf.resources) && self.resources == oldSelf.resources : \
           !has(oldSelf.resources))",
    message: "runtime, source, mode, env, timeout, retryPolicy, and resources are immutable after Run creation",
    check: Check::Transition(|new, old| same(new, old, &["runtime", "mode", "source", "env", "timeout", "retryPolicy", "resources"])),
};

/// Spec, "Validation and Transition Rules".
pub const PLACEMENT_IS_IMMUTABLE: CelRule = CelRule {
    rule: "(has(self.workspace) ? has(oldSelf.workspace) && self.workspace == oldSelf.workspace : \
           !has(oldSelf.workspace)) && \
           (has(self.affinity) ? has(oldSelf.affinity) && self.affinity == oldSelf.affinity : !has(oldSelf.affinity))",
    message: "workspace and affinity are immutable after Run creation",
    check: Check::Transition(|new, old| same(new, old, &["workspace", "affinity"])),
};

/// Reference §1.1, `cancelRequested`.
pub const CANCEL_IS_ONE_WAY: CelRule = CelRule {
    rule: "!oldSelf.?cancelRequested.orValue(false) || self.?cancelRequested.orValue(false)",
    message: "cancelRequested may not transition from true to false",
    check: Check::Transition(|new, old| {
        let requested = |spec: &Value| spec.get("cancelRequested") == Some(&Value::Bool(true));
        !requested(old) || requested(new)
    }),
};

/// Reference §1.1, `mode`.
pub const ONE_MODE: CelRule = CelRule {
    rule: "has(self.task) != has(self.function)",
    message: "exactly one of task or function must be set",
    check: Check::State(|mode| has(mode, &["task"]) != has(mode, &["function"])),
};

/// Reference §1.1, `source.inline`.
pub const ONE_SOURCE: CelRule = CelRule {
    rule: "!has(self.inline) || !has(self.repoURL)",
    message: "inline and repoURL are mutually exclusive",
    check: Check::State(|source| !has(source, &["inline"]) || !has(source, &["repoURL"])),
};

/// Reference §1.1, `source.commitSHA`.
pub const COMMIT_NEEDS_REPO: CelRule = CelRule {
    rule: "has(self.repoURL) || !has(self.commitSHA)",
    message: "commitSHA requires repoURL",
    check: Check::State(|source| has(source, &["repoURL"]) || !has(source, &["commitSHA"])),
};

/// Reference §1.1, `source.inlinePath`.
pub const INLINE_PATH_IS_RELATIVE: CelRule = CelRule {
    rule: "!self.matches('(^|/)[.]{0,2}(/|$)')",
    message: "inlinePath must be a relative file path without empty, '.' or '..' segments",
    check: Check::State(|path| path.as_str().is_none_or(|path| path.split('/').all(|segment| !matches!(segment, "" | "." | "..")))),
};

/// Spec, "Validation and Transition Rules".
pub const SELECTOR_IS_NOT_EMPTY: CelRule = CelRule {
    rule: "(has(self.labelSelector.matchLabels) && size(self.labelSelector.matchLabels) > 0) || \
           (has(self.labelSelector.matchExpressions) && size(self.labelSelector.matchExpressions) > 0)",
    message: "labelSelector must not be empty",
    check: Check::State(|term| {
        at(term, &["labelSelector", "matchLabels"]).and_then(Value::as_object).is_some_and(|map| !map.is_empty())
            || at(term, &["labelSelector", "matchExpressions"]).and_then(Value::as_array).is_some_and(|list| !list.is_empty())
    }),
};

/// A duration out of Go's range fails the neighbour's whole list (ours). CEL's `duration` is Go's parser.
pub const DURATION_IN_RANGE: CelRule = CelRule {
    rule: "string(duration(self)) != ''",
    message: "must be a Go duration of at most 2562047h47m16.854775807s",
    check: Check::State(|text| text.as_str().is_none_or(|text| duration::parse_go_nanos(text).is_ok())),
};

/// Reference §1.2, artifactRef.
pub const ONE_LOCATION: CelRule = CelRule {
    rule: "has(self.filesystem) != has(self.s3)",
    message: "exactly one of filesystem and s3 must be set",
    check: Check::State(|location| has(location, &["filesystem"]) != has(location, &["s3"])),
};

/// Reference §1.2, artifactRef.
pub const ARTIFACT_MATCHES_DRIVER: CelRule = CelRule {
    rule: "self.driver == 's3' ? has(self.location.s3) : has(self.location.filesystem)",
    message: "location must match driver",
    check: Check::State(|artifact| {
        let s3 = artifact.get("driver").and_then(Value::as_str) == Some("s3");
        has(artifact, &["location", if s3 { "s3" } else { "filesystem" }])
    }),
};

/// Reference §1.6, artifactStore.
pub const STORE_MATCHES_DRIVER: CelRule = CelRule {
    rule: "has(self.s3) == (self.driver == 's3') && has(self.filesystem) == (self.driver == 'filesystem')",
    message: "exactly the configuration that matches driver must be set",
    check: Check::State(|store| {
        let driver = store.get("driver").and_then(Value::as_str);
        has(store, &["s3"]) == (driver == Some("s3")) && has(store, &["filesystem"]) == (driver == Some("filesystem"))
    }),
};

/// As [`RUN_SPEC_STAYS`].
pub const WORKSPACE_SPEC_STAYS: CelRule = CelRule {
    rule: "!has(oldSelf.spec) || has(self.spec)",
    message: "spec may not be removed after PersistentWorkspace creation",
    check: Check::Transition(|new, old| has(new, &["spec"]) || !has(old, &["spec"])),
};

/// Decisions, "Wire".
pub const WORKSPACE_RUNTIME_IS_IMMUTABLE: CelRule =
    CelRule { rule: "self == oldSelf", message: "runtime is immutable after PersistentWorkspace creation", check: Check::Transition(|new, old| new == old) };
