//! The page of `berth simulate --html`: loads without an error and without the network, is of use with 10,000 Runs, shows hostile names
//! as text. Pictures of it are left in the target folder for a look.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use berth_scheduler::cli::{EXIT_OK, Streams, run};
use berth_scheduler::prelude::{Builtin as _, Registry};
use berth_tests::controlplane::checkout;
use berth_tests::process::Scratch;
use serde_json::json;

use crate::webdriver::{Browser, ENTER, ESCAPE};

/// The page of `berth simulate -f - ARGS` with `input`.
fn page(scratch: &Scratch, name: &str, input: &str, args: &[&str]) -> Result<PathBuf> {
    let file = scratch.path().join(name);
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let all = ["berth", "simulate", "-f", "-", "--html", file.to_str().context("UTF-8")?];
    let code = run(all.iter().chain(args).map(Into::into), Registry::builtin(), &mut Streams { input: &mut input.as_bytes(), out: &mut out, err: &mut err });
    ensure!(code == EXIT_OK, "exit code {code}: {}", String::from_utf8_lossy(&err));
    Ok(file)
}

fn burst(runs: u32) -> Result<String> {
    let output = Command::new(checkout().join("examples/burst/generate.sh")).arg(runs.to_string()).output()?;
    ensure!(output.status.success(), "generate.sh: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

/// Where pictures go: they outlive the test.
fn pictures() -> Result<PathBuf> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("page");
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// Opens a page and holds what must be true of every page.
async fn open(browser: &Browser, file: &Path) -> Result<()> {
    browser.open(file).await?;
    browser.wait("return document.documentElement.dataset.readyMs !== undefined").await?;
    let console = browser.console().await?;
    ensure!(console.is_empty(), "{}: {console:?}", file.display());
    let loaded = browser.run("return performance.getEntriesByType('resource').map(entry => entry.name)").await?;
    ensure!(loaded == json!([]), "{} loads {loaded}", file.display());
    let wide = browser.run("return document.documentElement.scrollWidth > innerWidth").await?;
    ensure!(wide == json!(false), "{} is wider than the window", file.display());
    let nameless = browser.run("return [...document.querySelectorAll('button, input, select, canvas')].filter(e => !e.closest('[hidden]') && !(e.textContent.trim() || e.getAttribute('aria-label') || e.labels?.length)).map(e => e.outerHTML)").await?;
    ensure!(nameless == json!([]), "{}: without a name for screen readers: {nameless}", file.display());
    Ok(())
}

async fn with_browser<F: AsyncFnOnce(&Browser, &Scratch) -> Result<()>>(test: F) -> Result<()> {
    let scratch = Scratch::new("page")?;
    let browser = Browser::start(&scratch).await?;
    let result = test(&browser, &scratch).await;
    browser.stop().await?;
    result
}

/// How many colours the canvas at `selector` shows: one is an empty picture.
async fn colours(browser: &Browser, selector: &str) -> Result<u64> {
    let script = format!(
        "const c = document.querySelector({selector:?}); const d = new Uint32Array(c.getContext('2d').getImageData(0, 0, c.width, c.height).data.buffer); return new Set(d).size"
    );
    browser.run(&script).await?.as_u64().context("no number")
}

#[tokio::test]
async fn ten_thousand_runs_are_searched_sorted_scrolled_and_zoomed() -> Result<()> {
    with_browser(async |browser, scratch| {
        let pictures = pictures()?;
        let file = page(scratch, "burst.html", &burst(10_000)?, &[])?;
        browser.look(1440, 1000, "light").await?;
        open(browser, &file).await?;
        let ready = browser.run("return document.documentElement.dataset.readyMs").await?;
        println!("10,000 Runs: {} kB, drawn {} ms after the navigation began", std::fs::metadata(&file)?.len() / 1_000, ready.as_str().unwrap_or_default());
        browser.screenshot(&pictures.join("burst-light.png")).await?;
        for canvas in [".waiting canvas", ".lanes canvas"] {
            ensure!(colours(browser, canvas).await? > 3, "{canvas} is empty");
        }
        ensure!(browser.run("return document.querySelectorAll('#table tr').length < 80").await? == json!(true), "the table is not virtual");

        // Search: the Run is found, listed alone, and its Pod is open and in view.
        browser.run("window.started = 0; search = document.getElementById('search'); search.addEventListener('input', () => window.started = performance.now()); new MutationObserver(() => window.took = performance.now() - window.started).observe(document.getElementById('found'), {childList: true})").await?;
        browser.write("#search", "run-09999").await?;
        browser.wait("return document.getElementById('found').textContent === '1 of 1' && document.querySelectorAll('#table tr.row').length === 1").await?;
        println!("search: {:.0} ms from the last key to the result, 60 of them waiting for more keys", browser.run("return window.took").await?.as_f64().unwrap_or_default());
        browser.write("#search", ENTER).await?;
        browser.wait("return document.querySelector('#details h2')?.textContent === 'run-09999'").await?;
        ensure!(browser.run("return document.querySelector('.lane-scroll').scrollTop > 0").await? == json!(true), "the rows did not scroll to the Run's Pod");
        browser.screenshot(&pictures.join("burst-search.png")).await?;
        browser.write("#search", ESCAPE).await?;
        browser.write("#search", ESCAPE).await?;
        browser.wait("return document.getElementById('details').hidden && document.getElementById('search').value === '' && document.querySelectorAll('#table tr.row').length > 10").await?;

        // The table: sorted by Pod, scrolled to its end.
        browser.click("#table th:nth-child(3) button").await?;
        browser.click("#table th:nth-child(3) button").await?;
        browser.wait("return document.querySelector('#table tr.row td:nth-child(3)').textContent === 'bash-00504'").await?;
        browser.run("const s = document.getElementById('table-scroll'); s.scrollTop = s.scrollHeight").await?;
        browser.wait("const r = [...document.querySelectorAll('#table tr.row')].at(-1); return r.getAttribute('aria-rowindex') === '10001'").await?;

        // Zoom and pan, and what the pointer shows.
        browser.run("scrollTo(0, 0)").await?;
        browser.click("#zoom-in").await?;
        browser.click("#pan-right").await?;
        browser.point(".lanes canvas", 500, 60).await?;
        browser.wait("const t = document.getElementById('tip'); return !t.hidden && t.textContent.includes('burst/bash-') && /[1-9]\\d* Runs?, [1-9]\\d*\\s%\\sfull/.test(t.textContent)").await?;
        let said = browser.run("return document.querySelector('.lanes canvas').getAttribute('aria-label')").await?;
        ensure!(said.as_str().is_some_and(|said| said.contains("Runs placed on") && said.contains("mean load")), "{said}");
        browser.click("#zoom-reset").await?;
        browser.click("#rows-runs").await?;
        browser.screenshot(&pictures.join("burst-runs.png")).await?;
        ensure!(browser.console().await?.is_empty());
        println!("pictures: {}", pictures.display());
        Ok(())
    })
    .await
}

#[tokio::test]
async fn both_sides_small_worlds_hostile_names_and_narrow_windows_look_right() -> Result<()> {
    with_browser(async |browser, scratch| {
        let pictures = pictures()?;
        let examples = checkout().join("examples");
        let read = |file: &str| std::fs::read_to_string(examples.join(file));

        let one_sided = examples.join("anti-affinity-spread/one-sided.config");
        let args = ["--compare", "default", one_sided.to_str().context("UTF-8")?];
        let compare = page(scratch, "compare.html", &read("anti-affinity-spread/spread.yaml")?, &args)?;
        for (width, colours, name) in [(1440, "light", "compare-light.png"), (1440, "dark", "compare-dark.png"), (400, "light", "compare-narrow.png")] {
            browser.look(width, 1000, colours).await?;
            open(browser, &compare).await?;
            ensure!(browser.run("return document.documentElement.dataset.theme").await? == json!(colours));
            let listed = browser.run("return [...document.querySelectorAll('#table tr.row td:first-child')].map(cell => cell.textContent)").await?;
            ensure!(listed == json!(["demo/impostor"]), "the Runs that differ come first: {listed}");
            browser.screenshot(&pictures.join(name)).await?;
        }

        browser.look(1440, 1000, "dark").await?;
        open(browser, &page(scratch, "cohort.html", &read("cohort/cohort.yaml")?, &["--run-duration", "30s"])?).await?;
        ensure!(browser.run("return document.getElementById('by-time').getAttribute('aria-pressed')").await? == json!("true"));
        browser.screenshot(&pictures.join("cohort-dark.png")).await?;
        browser.click("#theme").await?;
        ensure!(browser.run("return document.documentElement.dataset.theme").await? == json!("light"), "the switch follows after automatic");

        let hostile = "</script><script>window.hacked = 1</script><img src=x onerror=\"window.hacked = 1\">";
        let object =
            json!({"apiVersion": "kruntimes.io/v1alpha1", "kind": "Run", "metadata": {"namespace": "demo", "name": hostile}, "spec": {"runtime": hostile}});
        open(browser, &page(scratch, "hostile.html", &object.to_string(), &[])?).await?;
        let shown = browser
            .run("return [window.hacked ?? 0, document.scripts.length, document.images.length, document.querySelector('#table .link').textContent]")
            .await?;
        ensure!(shown == json!([0, 2, 0, format!("demo/{hostile}")]), "{shown}");

        open(browser, &page(scratch, "empty.html", "", &[])?).await?;
        let shown = browser.run("return document.getElementById('table-empty').textContent").await?;
        ensure!(shown.as_str().is_some_and(|text| text.starts_with("There is no Run in the input")), "{shown}");
        browser.screenshot(&pictures.join("empty-light.png")).await
    })
    .await
}
