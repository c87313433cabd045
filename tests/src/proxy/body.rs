//! The answers' bodies on their way through the proxy: passed on chunk by chunk, held back, or cut.

use std::collections::HashSet;

use anyhow::{Result, anyhow};
use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Frame;
use hyper::{Response, StatusCode, header};
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// A body that ends with an error when the stream behind it breaks; the client then sees a broken connection.
pub(super) type Passed = UnsyncBoxBody<Bytes, anyhow::Error>;

/// What a watch's stream obeys.
pub(super) struct Watch {
    pub(super) resource: String,
    pub(super) cut: CancellationToken,
    pub(super) held: watch::Receiver<HashSet<String>>,
}

/// Passes `inner` on.
pub(super) fn pass(inner: kube::client::Body, watch: Option<Watch>) -> Passed {
    let Some(watch) = watch else {
        return inner.map_err(anyhow::Error::from).boxed_unsync();
    };
    let Watch { resource, cut, held } = watch;
    let ended = cut.clone().drop_guard(); // a stream that is gone counts as cut, so that it is forgotten
    let chunks = inner.into_data_stream().map_err(anyhow::Error::from).then(move |chunk| {
        let (mut held, resource) = (held.clone(), resource.clone());
        async move {
            let _ = held.wait_for(|held| !held.contains(&resource)).await;
            chunk
        }
    });
    let broken = futures::stream::once(async { Err(anyhow!("watch cut by the test")) });
    let token = cut.clone();
    let stream = chunks.take_until(cut.cancelled_owned()).chain(broken.take_while(move |_| std::future::ready(token.is_cancelled()))).map_ok(move |chunk| {
        let _ = &ended;
        Frame::data(chunk)
    });
    StreamBody::new(stream).boxed_unsync()
}

/// A Kubernetes `Status` of failure.
pub(super) fn status(code: StatusCode) -> Result<Response<Passed>> {
    let reason = match code {
        StatusCode::CONFLICT => "Conflict",
        StatusCode::NOT_FOUND => "NotFound",
        StatusCode::FORBIDDEN => "Forbidden",
        StatusCode::TOO_MANY_REQUESTS => "TooManyRequests",
        StatusCode::GONE => "Expired",
        StatusCode::SERVICE_UNAVAILABLE => "ServiceUnavailable",
        StatusCode::GATEWAY_TIMEOUT => "Timeout",
        _ => "InternalError",
    };
    let status = json!({
        "apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code.as_u16(), "reason": reason,
        "message": "made up by the test's proxy", "metadata": {},
    });
    let body = Full::new(Bytes::from(status.to_string())).map_err(|never| match never {}).boxed_unsync();
    Ok(Response::builder().status(code).header(header::CONTENT_TYPE, "application/json").body(body)?)
}
