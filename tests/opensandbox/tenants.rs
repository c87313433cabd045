//! Tenants in front of a server that has none: server 1.1.1 has them on Kubernetes only ("[tenants] configured but runtime.type='docker'" ends it at once).
//! Each key is a tenant's; what a tenant did not make is not there for it, and the server itself says so, of an id that nobody has.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use berth_tests::opensandbox::API_KEY;
use hyper::Method;
use hyper::header::HeaderValue;
use hyper::http::request::Parts;
use serde_json::Value;

const KEY_HEADER: &str = "open-sandbox-api-key";
/// An id that no sandbox has.
const NOBODY: &str = "00000000-1111-4222-8333-444444444444";

/// Who is who, and whose is what.
#[derive(Default)]
pub struct Tenants(Mutex<Registers>);

#[derive(Default)]
struct Registers {
    /// Name of the tenant by key; without any there are no tenants.
    keys: BTreeMap<String, String>,
    /// Name of the tenant by id of the sandbox.
    owners: BTreeMap<String, String>,
}

/// What becomes of an answer.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is passed on.
    AsItIs,
    /// It is of a create: the sandbox in it is that tenant's.
    New(String),
    /// It is a list: that tenant sees its own.
    Own(String),
}

impl Tenants {
    fn lock(&self) -> MutexGuard<'_, Registers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on that key is that tenant's.
    pub fn admit(&self, key: &str, tenant: &str) {
        self.lock().keys.insert(key.to_owned(), tenant.to_owned());
    }

    /// From now on nobody has that key.
    pub fn revoke(&self, key: &str) {
        self.lock().keys.remove(key);
    }

    /// Makes of a tenant's request one for the server: with its one key, and with nobody's id in the place of another tenant's.
    pub fn enter(&self, parts: &mut Parts) -> (String, Answer) {
        let target = parts.uri.path_and_query().map_or("/", |target| target.as_str()).to_owned();
        let registers = self.lock();
        if registers.keys.is_empty() {
            return (target, Answer::AsItIs);
        }
        let key = parts.headers.get(KEY_HEADER).and_then(|key| key.to_str().ok()).unwrap_or_default();
        let Some(tenant) = registers.keys.get(key).cloned() else {
            // The server turns the key away, on this path in any case.
            return (format!("/v1/sandboxes/{NOBODY}"), Answer::AsItIs);
        };
        parts.headers.insert(KEY_HEADER, HeaderValue::from_static(API_KEY));
        let below = parts.uri.path().strip_prefix("/v1/sandboxes").unwrap_or_default().trim_start_matches('/');
        match (below.split('/').next().filter(|id| !id.is_empty()), &parts.method) {
            (None, &Method::POST) => (target, Answer::New(tenant)),
            (None, _) => (target, Answer::Own(tenant)),
            (Some(id), _) if registers.owners.get(id) == Some(&tenant) => (target, Answer::AsItIs),
            (Some(id), _) => (target.replacen(id, NOBODY, 1), Answer::AsItIs),
        }
    }

    /// Makes of the server's answer the tenant's. What is no JSON is an error's, and passed on.
    pub fn leave(&self, answer: &Answer, body: &[u8]) -> Option<Vec<u8>> {
        let mut told: Value = serde_json::from_slice(body).ok()?;
        let mut registers = self.lock();
        match answer {
            Answer::AsItIs => return None,
            Answer::New(tenant) => drop(registers.owners.insert(told["id"].as_str()?.to_owned(), tenant.clone())),
            Answer::Own(tenant) => {
                let items = told["items"].as_array_mut()?;
                items.retain(|item| item["id"].as_str().is_some_and(|id| registers.owners.get(id) == Some(tenant)));
            }
        }
        Some(told.to_string().into_bytes())
    }
}
