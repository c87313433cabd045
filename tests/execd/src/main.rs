//! The stand-in's program: serves on execd's port of all interfaces until it is killed.

fn main() -> std::process::ExitCode {
    execd_standin::main()
}
