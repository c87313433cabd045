//! Metrics of Jobs: steps are counted as they are made, standings are read at a scrape. Labels are classes and adapters, which administrators make,
//! and closed sets; never a name, namespace or UID of a Job.

use std::sync::Arc;

use berth_controllers::job::controller::{Age, Tally};
use berth_controllers::job::measure::{Group, JobObserver, Operation, Outcome, Request, Step};
use berth_runtime::ServerTime;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Gauge, GaugeVec, HistogramVec, IntCounter, IntCounterVec, IntGaugeVec, Opts};

use super::define::{Define, Made, exp};

const OF: &[&str] = &["class", "adapter"];

/// Steps of Jobs.
pub struct Jobs {
    queue: HistogramVec,
    scheduling: HistogramVec,
    startup: HistogramVec,
    execution: HistogramVec,
    stop: HistogramVec,
    overshoot: HistogramVec,
    delete: HistogramVec,
    ttl_lag: HistogramVec,
    started: IntCounterVec,
    finished: IntCounterVec,
    duplicates: IntCounterVec,
    swept: IntCounterVec,
    doubles: IntCounterVec,
    ambiguous: IntCounter,
    conflicts: IntCounter,
    reattached: IntCounterVec,
    requests: HistogramVec,
    writes: IntCounterVec,
}

impl Jobs {
    pub(super) fn new(d: &mut Define) -> Made<Self> {
        // From 10 ms to a good hour; executions to a week.
        let short = || exp(0.01, 3.0, 13);
        let long = || exp(0.1, 3.0, 15);
        // One request: from 2 ms to half a minute.
        let request = || exp(0.002, 5.0, 7);
        Ok(Self {
            queue: d.histograms("berth_job_queue_duration_seconds", "From a Job's creation to Accepted=True.", OF, short()?)?,
            scheduling: d.histograms("berth_job_scheduling_duration_seconds", "From Accepted=True to Scheduled=True.", OF, short()?)?,
            startup: d.histograms("berth_job_startup_duration_seconds", "From Scheduled=True to the start of the process.", OF, short()?)?,
            execution: d.histograms("berth_job_execution_duration_seconds", "From the start of the process to the end of the Job.", OF, long()?)?,
            stop: d.histograms(
                "berth_job_stop_confirm_duration_seconds",
                "From the decision to stop a Job (cancel, deadline, trouble) to its end.",
                OF,
                short()?,
            )?,
            overshoot: d.histograms("berth_job_deadline_overshoot_seconds", "From a deadline to the confirmed end of the Job that it ended.", OF, short()?)?,
            delete: d.histograms("berth_job_delete_duration_seconds", "From a Job's deletion to the removal of its finalizer.", OF, short()?)?,
            ttl_lag: d.histograms("berth_job_ttl_lag_seconds", "From the end of a time to live to the deletion of the Job.", OF, short()?)?,
            started: d.counters("berth_job_started_total", "Jobs whose process was seen to begin, or to have begun.", OF)?,
            finished: d.counters(
                "berth_job_finished_total",
                "Jobs that came to their end. reason: that of Succeeded, Completed or a failure.",
                &["class", "adapter", "reason"],
            )?,
            duplicates: d.counters(
                "berth_job_duplicate_execution_total",
                "Processes that a node began a second time in the same Pod, which nothing outside the node can prevent.",
                OF,
            )?,
            swept: d.counters("berth_job_orphans_swept_total", "Jobs that are gone and whose backend was still there and was removed.", &["adapter"])?,
            doubles: d.counters(
                "berth_job_doubles_removed_total",
                "Sandboxes and Pods that a Job had beside the recorded one, which never ran its process, and that were removed.",
                &["adapter"],
            )?,
            ambiguous: d.counter("berth_job_ambiguous_total", "Writes about Jobs that had no answer; each was read before anything else was done.")?,
            conflicts: d.counter("berth_job_conflicts_total", "Steps that were refused since the Job, or what belongs to it, had changed or was gone.")?,
            reattached: d.counters("berth_job_reattached_total", "Executions that were seen again after nothing certain was known of them.", &["adapter"])?,
            requests: d.histograms(
                "berth_job_adapter_request_duration_seconds",
                "Requests to execution backends. op: ensure, observe, cancel, delete. outcome: definite (it took effect or was refused), retry (it had no \
                 effect), ambiguous (it may have had).",
                &["adapter", "op", "outcome"],
                request()?,
            )?,
            writes: d.counters(
                "berth_job_api_writes_total",
                "Writes about Jobs that took effect, Events apart. kind: Job is ours, batch/Job the native one. verb: create, patch, delete.",
                &["kind", "verb"],
            )?,
        })
    }
}

impl JobObserver for Jobs {
    fn stepped(&self, group: &Group, step: &Step) {
        let of = &[group.class.as_str(), group.adapter];
        let took = |histogram: &HistogramVec, time: std::time::Duration| histogram.with_label_values(of).observe(time.as_secs_f64());
        match *step {
            Step::Accepted(time) => {
                took(&self.queue, time);
                // At zero before the first: increase() does not see a series that begins at 1.
                self.duplicates.with_label_values(of).inc_by(0);
            }
            Step::Scheduled(time) => took(&self.scheduling, time),
            Step::Started(time) => {
                self.started.with_label_values(of).inc();
                took(&self.startup, time);
            }
            Step::Finished { reason, ran, stopped, overshot } => {
                self.finished.with_label_values(&[of[0], of[1], reason]).inc();
                for (histogram, time) in [(&self.execution, ran), (&self.stop, stopped), (&self.overshoot, overshot)] {
                    time.into_iter().for_each(|time| took(histogram, time));
                }
            }
            Step::CleanedUp(time) => took(&self.delete, time),
            Step::Expired(time) => took(&self.ttl_lag, time),
            Step::StartedTwice => self.duplicates.with_label_values(of).inc(),
            Step::Swept => self.swept.with_label_values(&of[1..]).inc(),
            Step::DoubleRemoved => self.doubles.with_label_values(&of[1..]).inc(),
            Step::AnswerLost => self.ambiguous.inc(),
            Step::Conflict => self.conflicts.inc(),
            Step::Reattached => self.reattached.with_label_values(&of[1..]).inc(),
        }
    }

    fn requested(&self, request: &Request) {
        let op = match request.operation {
            Operation::Ensure => "ensure",
            Operation::Observe => "observe",
            Operation::Cancel => "cancel",
            Operation::Delete => "delete",
        };
        let outcome = match request.outcome {
            Outcome::Definite => "definite",
            Outcome::Retry => "retry",
            Outcome::Ambiguous => "ambiguous",
        };
        self.requests.with_label_values(&[request.adapter, op, outcome]).observe(request.took.as_secs_f64());
    }

    fn wrote(&self, kind: &'static str, verb: &'static str) {
        self.writes.with_label_values(&[kind, verb]).inc();
    }
}

/// Where Jobs stand, read when Prometheus asks.
pub struct JobsCollector {
    tally: Arc<Tally>,
    time: Arc<ServerTime>,
    classes: Box<dyn Fn() -> [i64; 2] + Send + Sync>,
    shape: Shape,
}

/// The families of one scrape: made anew each time, so that what is gone leaves no series.
struct Shape {
    states: IntGaugeVec,
    ages: GaugeVec,
    classes: IntGaugeVec,
    skew: Gauge,
}

impl Shape {
    fn new() -> Made<Self> {
        let states = "Jobs by state, which follows from conditions and times (design/job-states.md).";
        let ages = "How long the longest has lasted, 0 if there is none. of: unknown (nothing certain is known of the execution), stopping (a stop was decided and is not \
            confirmed), deleting (deleted, and held by our finalizer).";
        let classes = "JobClasses of ours by whether they can be used.";
        let skew = "How far the API server's clock is ahead of this process's; deadlines go by the former.";
        Ok(Self {
            states: IntGaugeVec::new(Opts::new("berth_job_states", states), &["state", "class", "adapter"])?,
            ages: GaugeVec::new(Opts::new("berth_job_oldest_seconds", ages), &["of"])?,
            classes: IntGaugeVec::new(Opts::new("berth_job_classes", classes), &["accepted"])?,
            skew: Gauge::new("berth_job_clock_skew_seconds", skew)?,
        })
    }

    fn all(&self) -> [&dyn Collector; 4] {
        [&self.states, &self.ages, &self.classes, &self.skew]
    }
}

impl JobsCollector {
    /// `classes` tells how many classes are not accepted, and are.
    ///
    /// # Errors
    /// A definition is wrong: a mistake in the code.
    pub fn new(tally: Arc<Tally>, time: Arc<ServerTime>, classes: impl Fn() -> [i64; 2] + Send + Sync + 'static) -> Made<Self> {
        Ok(Self { tally, time, classes: Box::new(classes), shape: Shape::new()? })
    }
}

impl Collector for JobsCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.shape.all().into_iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        // It was made once; the same again can't fail.
        let Ok(shape) = Shape::new() else { return Vec::new() };
        for ((group, state), count) in self.tally.standing() {
            let labels = [state.name(), group.class.as_str(), group.adapter];
            shape.states.with_label_values(&labels).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        let now = self.time.now();
        for age in Age::ALL {
            let word = match age {
                Age::Unknown => "unknown",
                Age::Stopping => "stopping",
                Age::Deleting => "deleting",
            };
            shape.ages.with_label_values(&[word]).set(self.tally.longest(age, now).unwrap_or_default().as_secs_f64());
        }
        for (accepted, count) in ["false", "true"].into_iter().zip((self.classes)()) {
            shape.classes.with_label_values(&[accepted]).set(count);
        }
        // Milliseconds of one clock against another: exact as a float.
        shape.skew.set(self.time.offset_ms() as f64 / 1_000.0);
        shape.all().into_iter().flat_map(Collector::collect).collect()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::time::Duration;

    use berth_runtime::SystemClock;

    use super::*;

    #[test]
    fn steps_and_standings_are_told() {
        let mut define = Define::default();
        let jobs = Jobs::new(&mut define).unwrap();
        let group = Group { class: "small".to_owned(), adapter: "kubernetes" };
        let second = Duration::from_secs(1);
        jobs.stepped(&group, &Step::Started(second));
        jobs.stepped(&group, &Step::Finished { reason: "Completed", ran: Some(second), stopped: None, overshot: None });
        jobs.stepped(&group, &Step::Swept);
        jobs.stepped(&group, &Step::DoubleRemoved);
        jobs.wrote("Pod", "patch");
        jobs.requested(&Request { adapter: "kubernetes", operation: Operation::Cancel, outcome: Outcome::Retry, took: second });
        assert_eq!(jobs.writes.with_label_values(&["Pod", "patch"]).get(), 1);
        assert_eq!(jobs.requests.with_label_values(&["kubernetes", "cancel", "retry"]).get_sample_count(), 1);
        assert_eq!(jobs.finished.with_label_values(&["small", "kubernetes", "Completed"]).get(), 1);
        assert_eq!((jobs.started.with_label_values(&["small", "kubernetes"]).get(), jobs.swept.with_label_values(&["kubernetes"]).get()), (1, 1));
        assert_eq!(jobs.doubles.with_label_values(&["kubernetes"]).get(), 1);
        assert_eq!(jobs.execution.with_label_values(&["small", "kubernetes"]).get_sample_count(), 1);
        assert_eq!(jobs.stop.with_label_values(&["small", "kubernetes"]).get_sample_count(), 0);

        let time = Arc::new(ServerTime::new(Arc::new(SystemClock::new()), Arc::new(())));
        let collector = JobsCollector::new(Arc::default(), time, || [1, 2]).unwrap();
        let names: Vec<String> = collector.collect().iter().map(|family| family.name().to_owned()).collect();
        assert_eq!(names, ["berth_job_states", "berth_job_oldest_seconds", "berth_job_classes", "berth_job_clock_skew_seconds"]);
    }
}
