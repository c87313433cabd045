//! `executor.v1`, as generated from `proto/executor.proto`.
#![allow(missing_docs, clippy::pedantic, clippy::allow_attributes_without_reason, reason = "generated; the text of the protocol has the words")]

tonic::include_proto!("executor.v1");
