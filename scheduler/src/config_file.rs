//! `--config FILE`, where [`crate::config`] is more than is needed.

pub use crate::config::{Refused as ConfigFileError, load};
