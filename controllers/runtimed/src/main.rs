//! The `runtimed` binary.

fn main() -> std::process::ExitCode {
    berth_runtimed::main()
}
