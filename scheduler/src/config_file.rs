//! `--config FILE`: reads a BerthConfiguration and builds its profile, telling everything that is wrong at once.
