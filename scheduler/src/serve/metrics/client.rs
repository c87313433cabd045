//! What the process does with the API server: requests, informers, the reconcilers' queues, Events. client-go's names and buckets where it has them.

use std::time::Duration;

use berth_controllers::run_lifecycle::Action;
use berth_runtime::apiclient::{Call, Outcome, Verb};
use berth_runtime::informer::InformerStats;
use berth_runtime::workqueue::QueueStats;
use prometheus::{GaugeVec, HistogramVec, IntCounterVec, IntGaugeVec};

use super::define::{Define, Made, exp};
use super::{catch_up, set};

/// The metrics of the client.
pub struct Client {
    requests: IntCounterVec,
    durations: HistogramVec,
    writes: IntCounterVec,
    run_lifecycle: IntCounterVec,
    informer_objects: IntGaugeVec,
    informer_synced: IntGaugeVec,
    informer_errors: IntCounterVec,
    informer_lists: IntCounterVec,
    informer_failing: GaugeVec,
    events: IntCounterVec,
    queue_depth: IntGaugeVec,
    queue_adds: IntCounterVec,
    queue_retries: IntCounterVec,
    queue_unfinished: GaugeVec,
    queue_longest: GaugeVec,
    queue_waited: HistogramVec,
    queue_worked: HistogramVec,
}

impl Client {
    pub(super) fn new(d: &mut Define) -> Made<Self> {
        let client = Self {
            requests: d.counters(
                "rest_client_requests_total",
                "Requests to the API server. method is HTTP's; code is its status, or `<error>` if there was no answer.",
                &["code", "method", "host"],
            )?,
            durations: d.histograms(
                "rest_client_request_duration_seconds",
                "From a request to the headers of its answer. verb is HTTP's method.",
                &["verb", "host"],
                vec![0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0],
            )?,
            writes: d.counters(
                "berth_status_writes_total",
                "Status writes of Runs that came to their end. kind: bind, waiting, terminate; outcome: applied, conflict, gone, failed.",
                &["kind", "outcome"],
            )?,
            run_lifecycle: d.counters(
                "berth_run_lifecycle_total",
                "Runs taken off a Pod that can't run them any more, and finished ones deleted in time. action: unassigned, retried, failed, cancelled, deleted.",
                &["action"],
            )?,
            informer_objects: d.gauges("berth_informer_objects", "Objects in the informer's store.", &["informer"])?,
            informer_synced: d.gauges("berth_informer_synced", "1 once the first list is complete.", &["informer"])?,
            informer_errors: d.counters("berth_informer_errors_total", "Failed lists and broken watches.", &["informer"])?,
            informer_lists: d.counters("berth_informer_lists_total", "Complete lists.", &["informer"])?,
            informer_failing: d.seconds("berth_informer_failing_seconds", "How long list and watch have been failing; 0 while they work.", &["informer"])?,
            events: d.counters("berth_events_total", "Kubernetes Events by what became of them: written, dropped, failed.", &["outcome"])?,
            queue_depth: d.gauges("workqueue_depth", "Objects that are ready to be worked on.", &["name"])?,
            queue_adds: d.counters("workqueue_adds_total", "Objects that became ready.", &["name"])?,
            queue_retries: d.counters("workqueue_retries_total", "Objects that failed and wait their back-off.", &["name"])?,
            queue_unfinished: d.seconds("workqueue_unfinished_work_seconds", "Summed over the objects being worked on.", &["name"])?,
            queue_longest: d.seconds("workqueue_longest_running_processor_seconds", "The longest of the objects being worked on.", &["name"])?,
            queue_waited: d.histograms("workqueue_queue_duration_seconds", "From ready to taken.", &["name"], exp(10e-9, 10.0, 10)?)?,
            queue_worked: d.histograms("workqueue_work_duration_seconds", "From taken to finished.", &["name"], exp(10e-9, 10.0, 10)?)?,
        };
        for kind in ["bind", "waiting", "terminate"] {
            for outcome in ["applied", "conflict", "gone", "failed"] {
                client.writes.with_label_values(&[kind, outcome]);
            }
        }
        for action in Action::ALL {
            client.run_lifecycle.with_label_values(&[action.as_str()]);
        }
        Ok(client)
    }

    /// Something was done to a Run that is past its Pod or its time.
    pub fn run_lifecycle(&self, action: Action) {
        self.run_lifecycle.with_label_values(&[action.as_str()]).inc();
    }

    /// A status write has ended.
    pub fn written(&self, kind: &str, outcome: &str) {
        self.writes.with_label_values(&[kind, outcome]).inc();
    }

    pub(super) fn called(&self, call: &Call<'_>) {
        let method = match call.verb {
            Verb::Get | Verb::List | Verb::Watch => "GET",
            Verb::Create => "POST",
            Verb::Update => "PUT",
            Verb::Patch => "PATCH",
            Verb::Delete | Verb::DeleteCollection => "DELETE",
        };
        let code = match call.outcome {
            Outcome::Status(code) => code.to_string(),
            // client-go's word for no answer.
            Outcome::Error | Outcome::Cancelled => "<error>".to_owned(),
        };
        self.requests.with_label_values(&[code.as_str(), method, call.host]).inc();
        self.durations.with_label_values(&[method, call.host]).observe(call.duration.as_secs_f64());
    }

    pub(super) fn taken(&self, queue: &str, waited: Duration) {
        self.queue_waited.with_label_values(&[queue]).observe(waited.as_secs_f64());
    }

    pub(super) fn finished(&self, queue: &str, worked: Duration) {
        self.queue_worked.with_label_values(&[queue]).observe(worked.as_secs_f64());
    }

    // ---- at a scrape -----------------------------------------------------------------------------

    /// The numbers of an informer.
    pub fn informer(&self, name: &str, stats: &InformerStats) {
        let labels = &[name];
        set(&self.informer_objects.with_label_values(labels), stats.objects);
        set(&self.informer_synced.with_label_values(labels), usize::from(stats.synced));
        catch_up(&self.informer_errors.with_label_values(labels), stats.errors);
        catch_up(&self.informer_lists.with_label_values(labels), stats.lists);
        self.informer_failing.with_label_values(labels).set(stats.failing_for.unwrap_or_default().as_secs_f64());
    }

    /// The numbers of a reconciler's queue.
    pub fn workqueue(&self, name: &str, stats: &QueueStats) {
        let labels = &[name];
        set(&self.queue_depth.with_label_values(labels), stats.depth);
        catch_up(&self.queue_adds.with_label_values(labels), stats.adds);
        catch_up(&self.queue_retries.with_label_values(labels), stats.retries);
        self.queue_unfinished.with_label_values(labels).set(stats.unfinished.as_secs_f64());
        self.queue_longest.with_label_values(labels).set(stats.longest_running.as_secs_f64());
    }

    /// What became of Kubernetes Events, so far.
    pub fn events(&self, written: u64, dropped: u64, failed: u64) {
        for (outcome, total) in [("written", written), ("dropped", dropped), ("failed", failed)] {
            catch_up(&self.events.with_label_values(&[outcome]), total);
        }
    }
}
