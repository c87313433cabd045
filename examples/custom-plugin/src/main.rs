//! A scheduler of your own: the in-tree plugins and `GpuModel`.

use std::process::ExitCode;

use berth_scheduler::prelude::*;
use custom_plugin::GpuModel;

fn main() -> ExitCode {
    berth_scheduler::main_with(Registry::builtin().with::<GpuModel>())
}
