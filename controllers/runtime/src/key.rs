//! The name of an object within its kind: namespace and name.

use std::fmt;
use std::sync::Arc;

/// Namespace and name of an object. Cheap to clone; ordered by namespace, then name, bytewise.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    /// The namespace; empty for a cluster-scoped object.
    pub namespace: Arc<str>,
    /// The object's name.
    pub name: Arc<str>,
}

impl ObjectKey {
    /// The key of `name` in `namespace` (empty if the kind is cluster-scoped).
    pub fn new(namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() { f.write_str(&self.name) } else { write!(f, "{}/{}", self.namespace, self.name) }
    }
}
