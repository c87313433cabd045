//! The suite without a cluster: the core against the exhaustive oracle, in seeded worlds.
