//! What a request asks for, in Kubernetes' words.

use hyper::{HeaderMap, Method, header};

/// What a request asks for, read from its method and path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Kubernetes' verb: get, list, watch, create, update, patch, delete, deletecollection.
    pub verb: &'static str,
    /// API group, empty for core.
    pub group: String,
    /// Plural resource, empty for a request of no resource.
    pub resource: String,
    /// `status`, … or empty.
    pub subresource: String,
    /// Namespace or empty.
    pub namespace: String,
    /// Object name or empty.
    pub name: String,
    /// Path and query as sent.
    pub uri: String,
    /// `User-Agent` as sent.
    pub user_agent: String,
    /// Status of the API server's answer, whether or not it was passed on; `None` while there is none.
    pub code: Option<u16>,
}

impl Seen {
    /// Whether it asked for a change.
    #[must_use]
    pub fn is_write(&self) -> bool {
        matches!(self.verb, "create" | "update" | "patch" | "delete" | "deletecollection")
    }

    /// Whether it is `verb` of `resource`, the latter as `pods` or `runs/status`.
    #[must_use]
    pub fn is(&self, verb: &str, resource: &str) -> bool {
        let (plural, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        self.verb == verb && self.resource == plural && self.subresource == subresource
    }

    pub(super) fn read(method: &Method, uri: &hyper::Uri, headers: &HeaderMap) -> Self {
        let mut seen =
            Self { uri: uri.path_and_query().map_or_else(String::new, ToString::to_string), user_agent: text(headers, &header::USER_AGENT), ..Self::default() };
        let mut parts = uri.path().split('/').filter(|part| !part.is_empty());
        match parts.next() {
            Some("api") => {}
            Some("apis") => seen.group = parts.next().unwrap_or_default().to_owned(),
            _ => {
                seen.verb = "get";
                return seen;
            }
        }
        let _version = parts.next();
        let mut rest: Vec<&str> = parts.collect();
        // `namespaces/x` alone, or with a subresource, is the Namespace itself.
        let subresource_of_namespace = rest.len() == 3 && matches!(rest[2], "status" | "finalize");
        if rest.len() > 2 && rest[0] == "namespaces" && !subresource_of_namespace {
            seen.namespace = rest[1].to_owned();
            rest.drain(..2);
        }
        let part = |index: usize| rest.get(index).map_or_else(String::new, |part| (*part).to_owned());
        (seen.resource, seen.name, seen.subresource) = (part(0), part(1), part(2));
        let query = uri.query().unwrap_or_default();
        let is_watch = query.split('&').any(|pair| pair == "watch=true" || pair == "watch=1");
        seen.verb = match (method, seen.name.is_empty()) {
            (&Method::GET, _) if is_watch => "watch",
            (&Method::GET, true) => "list",
            (&Method::GET, false) => "get",
            (&Method::POST, _) => "create",
            (&Method::PUT, _) => "update",
            (&Method::PATCH, _) => "patch",
            (&Method::DELETE, true) => "deletecollection",
            (&Method::DELETE, false) => "delete",
            _ => "other",
        };
        seen
    }
}

fn text(headers: &HeaderMap, name: &header::HeaderName) -> String {
    headers.get(name).map_or_else(String::new, |value| String::from_utf8_lossy(value.as_bytes()).into_owned())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn requests_are_classified_as_the_api_server_does() {
        let cases = [
            ("GET", "/api/v1/pods?watch=true", "watch", "", "pods", "", ""),
            ("GET", "/api/v1/namespaces/a/pods/p", "get", "a", "pods", "p", ""),
            ("GET", "/api/v1/namespaces/a", "get", "", "namespaces", "a", ""),
            ("PUT", "/api/v1/namespaces/a/finalize", "update", "", "namespaces", "a", "finalize"),
            ("POST", "/api/v1/namespaces", "create", "", "namespaces", "", ""),
            ("PATCH", "/apis/kruntimes.io/v1alpha1/namespaces/a/runs/r/status?x=1", "patch", "a", "runs", "r", "status"),
            ("DELETE", "/apis/kruntimes.io/v1alpha1/namespaces/a/runs", "deletecollection", "a", "runs", "", ""),
            ("GET", "/apis/kruntimes.io/v1alpha1/runs?limit=5", "list", "", "runs", "", ""),
            ("GET", "/readyz", "get", "", "", "", ""),
        ];
        for (method, uri, verb, namespace, resource, name, subresource) in cases {
            let seen = Seen::read(&method.parse().unwrap(), &uri.parse().unwrap(), &HeaderMap::new());
            let read = (seen.verb, &*seen.namespace, &*seen.resource, &*seen.name, &*seen.subresource);
            assert_eq!(read, (verb, namespace, resource, name, subresource), "{method} {uri}");
        }
    }
}
