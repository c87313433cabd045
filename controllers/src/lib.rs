//! The reconcilers of Berth. Each is observe → plan → apply: the plan is a pure function in its own file, which
//! `berth simulate` calls too; the reconciler around it is thin.

pub mod persistent_workspace;
