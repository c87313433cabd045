//! Plugins of somebody else at Reserve and Bind: a refused placement holds nothing and backs off, and remarks are bounded.

use std::sync::Arc;

use berth_framework::core::{AttemptResult, Standing};
use berth_framework::model::PodObject;
use berth_framework::plugin::{Bind, BindNote, Plugin, Reason, Rejection, Reserve, State, WakeCause};
use berth_framework::profile::{PluginType, Registry};
use berth_framework::views::{PodView, RunView};
use berth_plugins::Builtin as _;

use crate::stage::{Stage, key, pod, run};

static REASONS: [Reason; 1] = [Reason { code: "Closed", text: "closed by {}" }];

/// Lets nothing be placed on a Pod labelled `closed`; looks only at the end.
struct Gate;

impl PluginType for Gate {
    const NAME: &'static str = "Gate";
    type Args = ();
    fn new((): ()) -> Result<Self, String> {
        Ok(Self)
    }
}

impl Plugin for Gate {
    fn name(&self) -> &'static str {
        Self::NAME
    }
    fn reasons(&self) -> &'static [Reason] {
        &REASONS
    }
    fn events(&self) -> &'static [WakeCause] {
        &[WakeCause::PodDeletedOrRelabelled]
    }
    fn as_reserve(&self) -> Option<&dyn Reserve> {
        Some(self)
    }
    fn as_bind(&self) -> Option<&dyn Bind> {
        Some(self)
    }
}

impl Reserve for Gate {
    fn reserve(&self, _: &State, _: RunView<'_>, pod: PodView<'_>) -> Result<(), Rejection> {
        match pod.labels().get("closed") {
            Some(by) => Err(Rejection::about(&REASONS[0], by.as_str())),
            None => Ok(()),
        }
    }
}

impl Bind for Gate {
    fn bind(&self, run: RunView<'_>, pod: PodView<'_>, note: &mut BindNote) {
        note.remarks.push(format!("{} may pass to {}", run.object().key.name, pod.name()));
        note.remarks.extend((0..20).map(|_| "é".repeat(1_000)));
    }
}

fn stage() -> Stage {
    Stage::of(Registry::builtin().with::<Gate>().default_profile().expect("a profile").into())
}

fn closed(name: &str) -> PodObject {
    PodObject { labels: Arc::new([("closed".to_owned(), "night".to_owned())].into()), ..pod(name, 1) }
}

#[test]
fn a_placement_refused_at_reserve_holds_nothing_and_is_tried_again_with_back_off() {
    let mut stage = stage();
    stage.pod(closed("p"));
    stage.run(run("a"));
    for (refusals, wait) in [(1, 1_000), (2, 2_000), (3, 4_000)] {
        let attempts = stage.work();
        let [attempt] = &attempts[..] else { panic!("{attempts:?}") };
        let AttemptResult::Refused { by: (plugin, rejection) } = &attempt.result else { panic!("{attempt:?}") };
        assert_eq!((*plugin, rejection.to_string().as_str()), ("Gate", "closed by night"));
        assert_eq!((stage.core.standing(&key("a")), stage.core.counted_on(&key("a"))), (Some(Standing::Backoff), None));
        assert_eq!((stage.core.stats().reserve_conflicts, stage.core.counts().assumed), (refusals, 0));
        assert!(stage.binds().is_empty(), "nothing is written");
        assert_eq!(stage.core.next_event_ms(), Some(stage.now.mono_ms + wait));
        stage.pass(wait);
        stage.pod(PodObject { probe_ms: Some(stage.now.wall_ms), ..closed("p") });
    }
    stage.pod(PodObject { probe_ms: Some(stage.now.wall_ms), ..pod("p", 1) });
    assert_eq!(stage.placed(), ["a@p"]);
}

#[test]
fn remarks_on_a_placement_are_few_and_short() {
    let mut stage = stage();
    stage.pod(pod("p", 1));
    stage.run(run("a"));
    stage.work();
    let remarks = stage.binds().remove(0).note.remarks;
    assert_eq!((remarks.len(), remarks[0].as_str()), (8, "a may pass to p"));
    assert!(remarks.iter().all(|remark| remark.len() <= 128), "{remarks:?}");
    assert_eq!(remarks[1], "é".repeat(64));
}
