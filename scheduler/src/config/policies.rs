//! What a configuration means to the reconcilers: of each Runtime, what the profile that places its Runs says.

use berth_controllers::policy::{Policies, Policy};
use berth_framework::profile::{BerthConfiguration, PluginType as _, ProfileConfiguration};
use berth_plugins::{RuntimeReady, RuntimeReadyArgs, WorkspaceFencing};
use serde::Deserialize as _;

/// The policies of an effective configuration. A profile without RuntimeReady demands nothing of Pods, but a workspace is bound for life: there the
/// heartbeat is required as by default.
pub fn policies(effective: &BerthConfiguration) -> Policies {
    let active = || effective.profiles.iter().filter(|profile| !profile.shadow);
    let rest = active().find(|profile| profile.runtimes.is_empty());
    let by_runtime = active().flat_map(|profile| profile.runtimes.iter().map(|runtime| (runtime.clone(), policy(profile))));
    Policies::new(rest.map_or_else(Policy::default, policy), by_runtime.collect())
}

fn policy(profile: &ProfileConfiguration) -> Policy {
    let config = profile.plugin_config.iter().find(|config| config.name == RuntimeReady::NAME);
    // An effective configuration has been checked; another plugin of this name may have other args.
    let args = config.and_then(|config| RuntimeReadyArgs::deserialize(&config.args).ok());
    let filters = |name: &str| profile.plugins.filter.enabled.iter().any(|plugin| plugin.name == name);
    Policy {
        readiness: filters(RuntimeReady::NAME),
        heartbeat: args.unwrap_or_default().require_heartbeat,
        workspace: filters(WorkspaceFencing::NAME),
        binding: profile.binding.unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use berth_api::persistent_workspace::WorkspaceBinding;
    use berth_controllers::policy::Policy;
    use berth_framework::profile::Registry;
    use berth_plugins::Builtin as _;

    use crate::config::parse;

    #[test]
    fn each_runtime_has_the_policy_of_its_profile() {
        let text = "apiVersion: berth.kruntimes.io/v1alpha1\nkind: BerthConfiguration\nprofiles:\n\
            - {schedulerName: rest}\n\
            - {schedulerName: plain, runtimes: [a, b], pluginConfig: [{name: RuntimeReady, args: {requireHeartbeat: false}}]}\n\
            - {schedulerName: blind, runtimes: [c], plugins: {multiPoint: {disabled: [{name: RuntimeReady}]}}}\n\
            - {schedulerName: spread, runtimes: [d], binding: LeastLoaded, plugins: {filter: {disabled: [{name: WorkspaceFencing}]}}}\n\
            - {schedulerName: shadow, shadow: true, binding: LeastLoaded, pluginConfig: [{name: RuntimeReady, args: {requireHeartbeat: false}}]}\n";
        let policies = parse(text, "test", &Registry::builtin()).unwrap().policies();
        let default = Policy::default();
        let plain = Policy { heartbeat: false, ..default };
        let spread = Policy { workspace: false, binding: WorkspaceBinding::LeastLoaded, ..default };
        let expected = [default, plain, plain, Policy { readiness: false, ..default }, spread];
        assert_eq!(["other", "a", "b", "c", "d"].map(|runtime| policies.of(runtime)), expected);
        assert_eq!(policies.of(""), default);
    }
}
