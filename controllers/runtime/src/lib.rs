//! controllers/runtime
