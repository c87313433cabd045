//! The harness of Berth's suites: a real control plane, a proxy with faults, the real binary as a child process, the
//! chart rendered by the real helm.

pub mod audit;
pub mod berth;
pub mod controlplane;
pub mod crds;
pub mod engine;
pub mod githttps;
pub mod helm;
pub mod https;
pub mod image;
pub mod job_conformance;
pub mod job_matrix;
pub mod job_oracle;
pub mod kubelet;
pub mod kubelet_logs;
pub mod node;
pub mod opensandbox;
pub mod oracle;
pub mod otlp;
pub mod pki;
pub mod poll;
pub mod process;
pub mod proxy;
pub mod registry;
pub mod release;
pub mod runtimed;
