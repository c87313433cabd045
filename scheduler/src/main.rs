//! The `berth` binary: the in-tree plugins and nothing else.

use berth_scheduler::prelude::{Builtin as _, Registry};

fn main() -> std::process::ExitCode {
    berth_scheduler::main_with(Registry::builtin())
}
