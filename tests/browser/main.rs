//! The suite of what people look at: the page of `berth simulate --html` in a real browser, Debian's Chromium.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

mod page;
mod webdriver;
