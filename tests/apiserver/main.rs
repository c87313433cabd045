//! The suite on a real kube-apiserver: one control plane for all tests that do not kill it, a namespace for each.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

mod api_rows;
mod binder;
mod binder_life;
mod config_live;
mod endpoint;
mod explain;
mod explain_queue;
mod explain_rules;
mod informer;
mod job_api;
mod job_classes;
mod job_faults;
mod job_hostile;
mod job_kubernetes;
mod job_outside;
mod job_people;
mod job_policies;
mod job_rest;
#[path = "../../controllers/tests/job_rows/mod.rs"]
mod job_rows;
mod job_uninstall;
mod job_world;
mod leader_election;
mod metric_rows;
#[path = "../../framework/api/tests/rows/random.rs"]
mod random;
#[path = "../../framework/api/tests/rows/row.rs"]
mod row;
mod row_server;
#[path = "../../framework/api/tests/rows/mod.rs"]
mod rows;
mod runtimed_faults;
mod runtimed_git;
mod runtimed_life;
mod runtimed_server;
mod runtimed_workspaces;
mod runtimed_world;
mod serve_crash;
mod serve_example;
mod serve_invalid;
mod serve_leader;
mod serve_lifecycle;
mod serve_metrics;
mod serve_plugins;
mod serve_rights;
mod serve_traces;
mod serve_unprepared;
mod serve_wakeups;
mod serve_workspaces;
mod serve_world;
mod serve_writes;
mod smoke;
