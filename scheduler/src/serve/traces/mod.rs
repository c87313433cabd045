//! OpenTelemetry traces, off unless asked for: a span per cycle, and one per write that follows from it.
//!
//! ```text
//! owner ─► cycle ────────────────┐                           ┌─ full: dropped, counted
//! dispatcher ─► dispatch, of it ─┴─► sampler ─► the queue ───┴─► batches ─► OTLP over HTTP, protobuf
//! ```
//! A span is made when what it tells of has ended: nothing is held open, and without traces nothing is done at all. It goes to the
//! exporter by a queue of our own, since the SDK's batch processor wants a blocking client and keeps its count of drops to itself.

mod export;
mod settings;

use std::sync::Arc;
use std::time::SystemTime;

use berth_framework::core::{Attempt, AttemptResult};
use opentelemetry::trace::{Span as _, SpanBuilder, SpanContext, SpanKind, Status, TraceContextExt as _, Tracer as _, TracerProvider as _};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};

pub use self::export::{Exporter, outcomes};
pub use self::settings::Settings;
use super::dispatch::intent::{Intent, What};
use super::metrics::Metrics;

/// Where spans are made. Clones share the queue.
#[derive(Clone, Debug)]
pub struct Traces {
    tracer: SdkTracer,
}

impl Traces {
    /// Traces as `settings` say, and what sends them.
    ///
    /// # Errors
    /// Something in the settings that can't be used.
    pub fn new(settings: &Settings, instance: &str, metrics: &Metrics) -> anyhow::Result<(Self, Exporter)> {
        let resource = settings.resource(instance);
        let (exporter, queue) = Exporter::new(settings, &resource, outcomes(metrics)?)?;
        // The sampler is what OTEL_TRACES_SAMPLER says; all spans without it.
        let provider = SdkTracerProvider::builder().with_span_processor(queue).with_resource(resource).build();
        Ok((Self { tracer: provider.tracer("berth") }, exporter))
    }

    /// A cycle has ended; answers what its writes are children of.
    pub fn cycle(&self, attempt: &Attempt, profile: &Arc<str>, start: SystemTime, end: SystemTime) -> SpanContext {
        let result = match &attempt.result {
            AttemptResult::Placed { .. } => "scheduled",
            AttemptResult::Waits { .. } => "unschedulable",
            AttemptResult::Refused { .. } => "error",
            AttemptResult::Held => "held",
            AttemptResult::Terminates { .. } => "terminated",
        };
        let mut attributes = about(&attempt.key, &attempt.uid, profile, attempt.attempts);
        attributes.push(KeyValue::new("berth.result", result));
        if let Some(cause) = attempt.cause {
            attributes.push(KeyValue::new("berth.wakeup.cause", cause.as_str()));
        }
        match &attempt.result {
            AttemptResult::Placed { ranked, .. } => attributes.extend(ranked.first().map(|first| pod(&first.pod))),
            AttemptResult::Waits { diagnosis } => {
                attributes.push(KeyValue::new("berth.pods", i64::from(diagnosis.pods)));
                let reasons = diagnosis.rejections.iter().map(|charge| charge.rejection.reason.code.into()).collect();
                attributes.push(KeyValue::new("berth.rejections", opentelemetry::Value::Array(opentelemetry::Array::String(reasons))));
            }
            _ => {}
        }
        self.ended(SpanBuilder::from_name("cycle").with_kind(SpanKind::Internal), attributes, &Context::new(), (start, end), Status::Unset)
    }

    /// A write has come to its certain end.
    pub fn dispatch(&self, intent: &Intent, outcome: &'static str, applied: bool, start: SystemTime) {
        let origin = &intent.origin;
        let mut attributes = about(&intent.run.key, &intent.run.uid, &origin.profile, origin.attempts);
        attributes.push(KeyValue::new("berth.write", intent.kind()));
        attributes.push(KeyValue::new("berth.result", outcome));
        if let What::Bind { pod: name, .. } = &intent.what {
            attributes.push(pod(name));
        }
        let parent = origin.trace.clone().map_or_else(Context::new, |cycle| Context::new().with_remote_span_context(cycle));
        let status = if applied { Status::Unset } else { Status::error(outcome) };
        self.ended(SpanBuilder::from_name("dispatch").with_kind(SpanKind::Client), attributes, &parent, (start, SystemTime::now()), status);
    }

    fn ended(&self, builder: SpanBuilder, attributes: Vec<KeyValue>, parent: &Context, (start, end): (SystemTime, SystemTime), status: Status) -> SpanContext {
        let mut span = self.tracer.build_with_context(builder.with_start_time(start).with_attributes(attributes), parent);
        span.set_status(status);
        span.end_with_timestamp(end);
        span.span_context().clone()
    }
}

fn about(key: &berth_framework::model::ObjectKey, uid: &Arc<str>, profile: &Arc<str>, attempts: u32) -> Vec<KeyValue> {
    let mut attributes = vec![
        KeyValue::new("k8s.namespace.name", key.namespace.clone()),
        KeyValue::new("berth.run.name", key.name.clone()),
        KeyValue::new("berth.run.uid", uid.clone()),
    ];
    // A message that is due by time comes of no attempt of now.
    if attempts > 0 {
        attributes.push(KeyValue::new("berth.profile", profile.clone()));
        attributes.push(KeyValue::new("berth.attempt", i64::from(attempts)));
    }
    attributes
}

fn pod(name: &Arc<str>) -> KeyValue {
    KeyValue::new("k8s.pod.name", name.clone())
}
