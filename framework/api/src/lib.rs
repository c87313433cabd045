//! framework/api
