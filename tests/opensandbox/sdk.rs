//! The vendor's own SDK drives the same server and execd, and notices nothing.

use std::process::Command;

use anyhow::{Result, ensure};
use berth_tests::controlplane::checkout;
use berth_tests::opensandbox::{API_KEY, BUSYBOX, python};

use crate::world::server;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_vendor_s_sdk_notices_nothing() -> Result<()> {
    let server = server().await?;
    for access in ["direct", "proxy"] {
        let mut command = Command::new(python()?);
        command.arg(checkout().join("tests/opensandbox/sdk.py")).args([access, &server.domain(), BUSYBOX]).env("OPEN_SANDBOX_API_KEY", API_KEY);
        let output = tokio::task::spawn_blocking(move || command.output()).await??;
        let (told, complained) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        ensure!(output.status.success() && told.trim().ends_with("noticed nothing"), "{access}: {told}\n{complained}");
    }
    Ok(())
}
