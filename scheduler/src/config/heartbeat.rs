//! What RuntimeReady's arg `requireHeartbeat` means to the workspace binder.

use berth_controllers::persistent_workspace::HeartbeatPolicy;
use berth_framework::profile::{BerthConfiguration, PluginType as _, ProfileConfiguration};
use berth_plugins::{RuntimeReady, RuntimeReadyArgs};
use serde::Deserialize as _;

/// The policy of an effective configuration: of each Runtime, what the profile that places its Runs demands. A profile without
/// RuntimeReady demands nothing of Pods, but a workspace is bound for life: there the default holds.
pub fn heartbeat_policy(effective: &BerthConfiguration) -> HeartbeatPolicy {
    let active = || effective.profiles.iter().filter(|profile| !profile.shadow);
    let rest = active().find(|profile| profile.runtimes.is_empty());
    let by_runtime = active().flat_map(|profile| profile.runtimes.iter().map(|runtime| (runtime.clone(), required(profile))));
    HeartbeatPolicy::new(rest.is_none_or(required), by_runtime.collect())
}

fn required(profile: &ProfileConfiguration) -> bool {
    let config = profile.plugin_config.iter().find(|config| config.name == RuntimeReady::NAME);
    // An effective configuration has been checked; another plugin of this name may have other args.
    let args = config.and_then(|config| RuntimeReadyArgs::deserialize(&config.args).ok());
    args.unwrap_or_default().require_heartbeat
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use berth_api::runtime_ready::{Availability, Verdict};
    use berth_framework::profile::Registry;
    use berth_plugins::Builtin as _;

    use crate::config::parse;

    #[test]
    fn each_runtime_is_judged_by_the_args_of_its_profile() {
        let text = "apiVersion: berth.kruntimes.io/v1alpha1\nkind: BerthConfiguration\nprofiles:\n\
            - {schedulerName: rest}\n\
            - {schedulerName: plain, runtimes: [a, b], pluginConfig: [{name: RuntimeReady, args: {requireHeartbeat: false}}]}\n\
            - {schedulerName: blind, runtimes: [c], plugins: {multiPoint: {disabled: [{name: RuntimeReady}]}}}\n\
            - {schedulerName: shadow, shadow: true, pluginConfig: [{name: RuntimeReady, args: {requireHeartbeat: false}}]}\n";
        let policy = parse(text, "test", &Registry::builtin()).unwrap().heartbeat_policy();
        let silent = Availability { verdict: Verdict::HeartbeatMissing, stale_at_mono_ms: None };
        let available = ["a", "b", "c", "other"].map(|runtime| policy.judge(runtime, silent).is_ready());
        assert_eq!(available, [true, true, false, false]);
    }
}
