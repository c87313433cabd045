//! Makes Rust of the protocol's text, without a protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = protox::compile(["proto/executor.proto"], ["proto"])?;
    // The server's half is what the tests speak with.
    tonic_prost_build::configure().compile_fds(files)?;
    println!("cargo::rerun-if-changed=proto");
    Ok(())
}
