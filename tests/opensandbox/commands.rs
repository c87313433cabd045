//! The execd API: commands, in both framings, directly and through the server.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result};
use berth_opensandbox::{Access, Certainty, Code, Command, Execd, Interrupted, Outcome};
use berth_tests::poll::{PATIENCE, until};
use futures::TryStreamExt as _;
use serde_json::json;

use crate::world::{TOKEN, World, command, has_standin, run, tell};

/// Reads the whole output from a cursor; the next cursor and the text.
async fn read(execd: &Execd, id: &str, cursor: Option<&str>) -> Result<(String, String)> {
    let logs = execd.logs(id, cursor).await?;
    let next = logs.cursor.clone().context("no cursor")?;
    let pieces: Vec<_> = logs.bytes().try_collect().await?;
    Ok((next, String::from_utf8(pieces.concat())?))
}

async fn ended(execd: &Execd, id: &str) -> Result<Option<i32>> {
    let status = until("the command to end", PATIENCE, || async {
        let status = execd.status(id).await?;
        Ok((!status.running).then_some(status))
    });
    Ok(status.await?.exit_code)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_runs_is_watched_read_and_interrupted_by_either_way_and_framing() -> Result<()> {
    let world = World::new().await?;
    let (sandbox, direct) = world.sandbox().await?;
    let proxied = world.client.execd(&sandbox.id, Access::ServerProxy, Some(TOKEN.into())).await?;
    let framings: &[&str] = if has_standin() { &["bare", "data"] } else { &["as it is"] };
    for framing in framings {
        if has_standin() {
            tell(&direct, &json!({"framing": framing})).await?;
        }
        for execd in [&direct, &proxied] {
            foreground(execd).await?;
            background(execd).await?;
        }
    }
    world.end().await
}

async fn foreground(execd: &Execd) -> Result<()> {
    let text = r#"echo one; echo; printf 'data: {"type":"error"}\nno newline'; echo err >&2"#;
    assert_eq!(run(execd, text).await?, "one\n\ndata: {\"type\":\"error\"}\nno newline\n");
    assert_eq!(execd.run(&command("exit 7"), 100).await?.outcome, Outcome::Exited(7));
    assert_eq!(execd.run(&command("kill -9 $$"), 100).await?.outcome, Outcome::Exited(-1));
    let killed = Command { kill_after: Some(Duration::from_millis(300)), ..command("sleep 1000") };
    assert_eq!(execd.run(&killed, 100).await?.outcome, Outcome::Exited(-1));
    let within = Command { cwd: Some("/etc".into()), envs: BTreeMap::from([("A".to_owned(), "b c".into())]), ..command("pwd; echo $A") };
    assert_eq!(execd.run(&within, 100).await?.stdout, "/etc\nb c\n");
    for wrong in [Command { cwd: Some("/absent".into()), ..command("true") }, command("")] {
        let error = execd.run(&wrong, 100).await.unwrap_err();
        assert_eq!((error.code(), error.certainty()), (Some(Code::InvalidRequestBody), Certainty::Definite), "{error}");
    }
    Ok(())
}

async fn background(execd: &Execd) -> Result<()> {
    // The status is there as soon as the start is.
    let id = execd.start(&command("echo out; echo err >&2; while [ ! -e /tmp/go ]; do sleep 0.05; done; rm /tmp/go; echo more; exit 3")).await?;
    let status = execd.status(&id).await?;
    assert!(status.running && status.exit_code.is_none() && status.started_at.is_some(), "{status:?}");
    let (cursor, text) = until("its first output", PATIENCE, || async {
        let (cursor, text) = read(execd, &id, None).await?;
        Ok((text.len() == 8).then_some((cursor, text)))
    })
    .await?;
    assert_eq!(text, "out\nerr\n", "both, as they came");
    assert_eq!(read(execd, &id, Some(&cursor)).await?, (cursor.clone(), String::new()), "nothing new");
    run(execd, "touch /tmp/go").await?;
    assert_eq!(ended(execd, &id).await?, Some(3));
    assert_eq!(read(execd, &id, Some(&cursor)).await?.1, "more\n", "from where it was left");
    assert!(matches!(execd.interrupt(&id).await?, Interrupted::Ended(status) if status.exit_code == Some(3)), "a finished one");

    let id = execd.start(&command("exec sleep 1000")).await?;
    assert_eq!(execd.interrupt(&id).await?, Interrupted::Signalled);
    assert_eq!(ended(execd, &id).await?, Some(-1));
    let id = execd.start(&command("trap '' TERM; while :; do sleep 0.1; done")).await?;
    assert_eq!(execd.interrupt(&id).await?, Interrupted::Signalled);
    assert_eq!(ended(execd, &id).await?, Some(-1), "killed in the end");

    assert!(execd.status("00000000000000000000000000000000").await.unwrap_err().is_command_not_found());
    assert!(execd.interrupt("00000000000000000000000000000000").await.unwrap_err().is_command_not_found());
    assert_eq!(execd.logs("00000000000000000000000000000000", None).await.err().and_then(|error| error.code()), Some(Code::InvalidRequestBody));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_megabytes_of_output_pass_by_pieces() -> Result<()> {
    let world = World::new().await?;
    let (sandbox, _) = world.sandbox().await?;
    let execd = world.client.execd(&sandbox.id, Access::ServerProxy, Some(TOKEN.into())).await?;
    let id = execd.start(&command("dd if=/dev/zero bs=1048576 count=50 2>/dev/null | tr '\\0' x")).await?;
    assert_eq!(ended(&execd, &id).await?, Some(0));
    let (mut bytes, mut longest) = (0, 0);
    let mut pieces = std::pin::pin!(execd.logs(&id, None).await?.bytes());
    while let Some(piece) = pieces.try_next().await? {
        bytes += piece.len();
        longest = longest.max(piece.len());
    }
    assert_eq!(bytes, 50 << 20);
    assert!(longest < 4 << 20, "a piece of {longest}");
    world.end().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_token_execd_says_nothing_and_a_dead_one_is_not_a_missing_sandbox() -> Result<()> {
    let world = World::new().await?;
    let (sandbox, execd) = world.sandbox().await?;
    for (access, token) in [(Access::Direct, None), (Access::ServerProxy, Some("canary-wrong".into()))] {
        let error = world.client.execd(&sandbox.id, access, token).await?.ping().await.unwrap_err();
        assert_eq!((error.code(), error.certainty()), (Some(Code::ExecdUnauthorized), Certainty::Definite));
    }
    let proxied = world.client.execd(&sandbox.id, Access::ServerProxy, Some(TOKEN.into())).await?;
    let id = execd.start(&command("kill -9 $(pidof execd)")).await;
    drop(id); // it may have died before it answered
    let error = until("execd to be gone", PATIENCE, || async { Ok(proxied.ping().await.err()) }).await?;
    assert_eq!((error.code(), error.certainty()), (Some(Code::ExecdUnreachable), Certainty::Retryable), "{error}");
    world.client.get(&sandbox.id).await?;
    world.end().await
}

/// Faults that only the stand-in has on demand; the client's own tests have them without any execd.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_whose_answer_is_lost_is_ambiguous_and_one_that_is_known_can_be_asked_for() -> Result<()> {
    let world = World::new().await?;
    let (_, execd) = world.sandbox().await?;
    if has_standin() {
        let fault = |kind: serde_json::Value| json!({"faults": [{"method": "POST", "path": "/command", "kind": kind, "times": 1}]});
        for (number, kind) in [json!("endAfterInit"), json!({"statusAfter": 502}), json!({"statusAfter": 500})].into_iter().enumerate() {
            tell(&execd, &fault(kind.clone())).await?;
            let error = execd.start(&command(&format!("touch /tmp/ran-{number}"))).await.unwrap_err();
            assert_eq!(error.certainty(), Certainty::Ambiguous, "{kind}: {error}");
            until("it to have run all the same", PATIENCE, || async { Ok(Some(run(&execd, &format!("[ -e /tmp/ran-{number} ]")).await?)) }).await?;
        }
        tell(&execd, &json!({"knownAfterMillis": 500})).await?;
    }
    let id = execd.start(&command("true")).await?;
    execd.status(&id).await?;
    world.end().await
}
