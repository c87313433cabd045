//! Jobs: one execution with a truthful end (specification "Job API v1alpha1"; design of Jobs).
//!
//! ```text
//! api       types, rules, CRDs                resolve    which class, and whether it allows the Job        pure
//! machine   decide(job, observation, now)     class_plan finalizer and status of a class                   pure
//! adapter   Ensure, Observe, Cancel, Delete   adapter/kubernetes
//! controller  observe → decide → write the status → take one step
//! measure     what the observer of steps is told
//! ```

pub mod adapter;
pub mod api;
pub mod class_plan;
pub mod controller;
pub mod machine;
pub mod measure;
pub mod reason;
pub mod resolve;
