//! An object as the server sent it: a list of these can't fail over one of them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

/// JSON of kind K. Unlike kube's `DeserializeGuard` it buffers once, keeps numbers as they are, and lets the reader say in
/// its own words what is wrong.
pub(super) struct Raw<K> {
    /// Namespace, name, UID and resource version; nothing else.
    meta: ObjectMeta,
    pub value: Value,
    kind: PhantomData<fn() -> K>,
}

// By hand, since derived ones would ask them of K.
impl<K> Clone for Raw<K> {
    fn clone(&self) -> Self {
        Self { meta: self.meta.clone(), value: self.value.clone(), kind: PhantomData }
    }
}

impl<K> fmt::Debug for Raw<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.value, f)
    }
}

impl<'de, K> Deserialize<'de> for Raw<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let text = |field: &str| value.get("metadata").and_then(|meta| meta.get(field)).and_then(Value::as_str).map(str::to_owned);
        let meta = ObjectMeta {
            namespace: text("namespace"),
            name: text("name"),
            uid: text("uid"),
            resource_version: text("resourceVersion"),
            ..ObjectMeta::default()
        };
        Ok(Self { meta, value, kind: PhantomData })
    }
}

impl<K: Resource> Resource for Raw<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(dt: &K::DynamicType) -> Cow<'_, str> {
        K::kind(dt)
    }

    fn group(dt: &K::DynamicType) -> Cow<'_, str> {
        K::group(dt)
    }

    fn version(dt: &K::DynamicType) -> Cow<'_, str> {
        K::version(dt)
    }

    fn plural(dt: &K::DynamicType) -> Cow<'_, str> {
        K::plural(dt)
    }

    fn meta(&self) -> &ObjectMeta {
        &self.meta
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.meta
    }
}
