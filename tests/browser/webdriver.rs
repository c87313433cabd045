//! A headless Chromium, driven by the WebDriver protocol through its own chromedriver.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use berth_tests::process::{Guarded, Scratch, free_port};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(20);
/// What WebDriver calls an element, in JSON.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";
/// The Enter and Escape keys in texts that are typed.
pub const ENTER: &str = "\u{e007}";
pub const ESCAPE: &str = "\u{e00c}";

/// A browser with one window.
pub struct Browser {
    driver: Guarded,
    root: String,
    session: String,
}

impl Browser {
    /// Starts one; its profile is in `scratch`.
    pub async fn start(scratch: &Scratch) -> Result<Self> {
        let port = free_port()?;
        let mut command = Command::new("chromedriver");
        command.arg(format!("--port={port}"));
        let driver = Guarded::spawn("chromedriver", command, &scratch.path().join("chromedriver.log"))
            .context("no chromedriver: apt-get install chromium chromium-driver")?;
        let mut browser = Self { driver, root: format!("http://127.0.0.1:{port}"), session: String::new() };
        let start = Instant::now();
        while browser.ask("GET", "/status", &Value::Null).await.is_err() {
            browser.driver.must_run()?;
            ensure!(start.elapsed() < PATIENCE, "chromedriver does not answer");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let profile = format!("--user-data-dir={}", scratch.path().join("profile").display());
        // By the pipe the browser notices when its driver dies, and ends too.
        let args = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--remote-debugging-pipe",
            profile.as_str(),
        ];
        let wanted = json!({"goog:loggingPrefs": {"browser": "ALL"}, "goog:chromeOptions": {"args": args}});
        let session = browser.ask("POST", "/session", &json!({"capabilities": {"alwaysMatch": wanted}})).await?;
        browser.session = format!("/session/{}", session["sessionId"].as_str().context("no session")?);
        Ok(browser)
    }

    /// Ends it.
    pub async fn stop(self) -> Result<()> {
        self.ask("DELETE", &self.session, &Value::Null).await.map(|_| ())
    }

    async fn ask(&self, method: &str, path: &str, body: &Value) -> Result<Value> {
        let body = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
        let request = Request::builder().method(method).uri(format!("{}{path}", self.root)).header("Content-Type", "application/json").body(Full::new(body))?;
        let client: Client<_, Full<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
        let answer = tokio::time::timeout(PATIENCE, client.request(request)).await??;
        let ok = answer.status().is_success();
        let mut answer: Value = serde_json::from_slice(&answer.into_body().collect().await?.to_bytes())?;
        ensure!(ok, "{method} {path}: {}", answer["value"]["message"]);
        Ok(answer["value"].take())
    }

    async fn command(&self, path: &str, body: Value) -> Result<Value> {
        self.ask("POST", &format!("{}{path}", self.session), &body).await
    }

    /// Opens a file.
    pub async fn open(&self, file: &Path) -> Result<()> {
        self.command("/url", json!({"url": format!("file://{}", file.display())})).await.map(|_| ())
    }

    /// Runs a script in the page; answers what it returns.
    pub async fn run(&self, script: &str) -> Result<Value> {
        self.command("/execute/sync", json!({"script": script, "args": []})).await
    }

    /// Waits until a script returns something true.
    pub async fn wait(&self, script: &str) -> Result<()> {
        let start = Instant::now();
        while !self.run(script).await?.as_bool().unwrap_or(false) {
            ensure!(start.elapsed() < PATIENCE, "not within {PATIENCE:?}: {script}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    async fn find(&self, selector: &str) -> Result<String> {
        let found = self.command("/element", json!({"using": "css selector", "value": selector})).await?;
        Ok(found[ELEMENT].as_str().context("no element")?.to_owned())
    }

    /// Clicks what a CSS selector finds, as a person with a mouse.
    pub async fn click(&self, selector: &str) -> Result<()> {
        let element = self.find(selector).await?;
        self.command(&format!("/element/{element}/click"), json!({})).await.map(|_| ())
    }

    /// Types into what a CSS selector finds.
    pub async fn write(&self, selector: &str, text: &str) -> Result<()> {
        let element = self.find(selector).await?;
        self.command(&format!("/element/{element}/value"), json!({"text": text})).await.map(|_| ())
    }

    /// Moves the mouse to a point in what a CSS selector finds, from its top left corner.
    pub async fn point(&self, selector: &str, x: i32, y: i32) -> Result<()> {
        let at = self.run(&format!("const b = document.querySelector({selector:?}).getBoundingClientRect(); return [b.left, b.top]")).await?;
        #[expect(clippy::cast_possible_truncation, reason = "pixels of a window")]
        let pixel = |i: usize| at[i].as_f64().unwrap_or_default() as i32;
        let step = json!({"type": "pointerMove", "duration": 0, "x": pixel(0) + x, "y": pixel(1) + y});
        self.command("/actions", json!({"actions": [{"type": "pointer", "id": "mouse", "actions": [step]}]})).await.map(|_| ())
    }

    /// Gives the page this size and these colours.
    pub async fn look(&self, width: u32, height: u32, colours: &str) -> Result<()> {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.command("/goog/cdp/execute", json!({"cmd": "Emulation.setDeviceMetricsOverride", "params": size})).await?;
        let media = json!({"features": [{"name": "prefers-color-scheme", "value": colours}]});
        self.command("/goog/cdp/execute", json!({"cmd": "Emulation.setEmulatedMedia", "params": media})).await.map(|_| ())
    }

    /// Writes a picture of the window.
    pub async fn screenshot(&self, file: &Path) -> Result<()> {
        // Two frames, so that everything is drawn.
        self.command(
            "/execute/async",
            json!({"script": "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => done()))", "args": []}),
        )
        .await?;
        let picture = self.ask("GET", &format!("{}/screenshot", self.session), &Value::Null).await?;
        std::fs::write(file, base64(picture.as_str().context("no picture")?)).with_context(|| file.display().to_string())
    }

    /// What the console says since the last time.
    pub async fn console(&self) -> Result<Vec<String>> {
        let entries = self.command("/se/log", json!({"type": "browser"})).await?;
        Ok(entries.as_array().context("no list")?.iter().map(|entry| entry["message"].to_string()).collect())
    }
}

fn base64(text: &str) -> Vec<u8> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits: Vec<usize> = text.bytes().filter_map(|byte| DIGITS.iter().position(|digit| *digit == byte)).collect();
    let bytes = digits.chunks(4).flat_map(|four| {
        let bits = four.iter().fold(0, |bits, digit| bits << 6 | digit) << (6 * (4 - four.len()));
        [(bits >> 16) as u8, (bits >> 8) as u8, bits as u8].into_iter().take(four.len() - 1)
    });
    bytes.collect()
}

#[test]
fn base64_is_read() {
    for (text, bytes) in [("", &b""[..]), ("YQ==", b"a"), ("YWI=", b"ab"), ("YWJj", b"abc"), ("/+8AAQ==", &[0xff, 0xef, 0, 1])] {
        assert_eq!(base64(text), bytes, "{text}");
    }
}
