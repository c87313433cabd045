//! What a configuration may say, row by row: accepted, or everything that is wrong with line, column and field.

use berth_framework::plugin::{Filter, Plugin, Reason, Rejection, State, WakeCause};
use berth_framework::profile::{PluginType, Registry};
use berth_framework::views::{PodView, RunView};
use berth_plugins::Builtin as _;
use berth_scheduler::config::{self, Loaded};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

const HEADER: &str = "apiVersion: berth.kruntimes.io/v1alpha1\nkind: BerthConfiguration\n";

/// A plugin of a third party, with args that are required, bounded, listed and compared.
struct Zone;

#[derive(Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ZoneArgs {
    zone: String,
    #[serde(default)]
    #[schemars(range(min = 0, max = 10))]
    low: u8,
    #[serde(default = "ten")]
    #[schemars(range(min = 0, max = 10))]
    high: u8,
    #[serde(default)]
    only: Vec<String>,
}

fn ten() -> u8 {
    10
}

impl PluginType for Zone {
    const NAME: &'static str = "Zone";
    type Args = ZoneArgs;

    fn new(args: ZoneArgs) -> Result<Self, String> {
        match args {
            ZoneArgs { zone, .. } if zone.is_empty() => Err("zone: must not be empty".to_owned()),
            ZoneArgs { low, high, .. } if low > high => Err(format!("low: must not be above high ({high}), is {low}")),
            _ => Ok(Self),
        }
    }
}

static REASONS: [Reason; 1] = [Reason { code: "WrongZone", text: "in another zone" }];

impl Plugin for Zone {
    fn name(&self) -> &'static str {
        Self::NAME
    }
    fn reasons(&self) -> &'static [Reason] {
        &REASONS
    }
    fn events(&self) -> &'static [WakeCause] {
        &[WakeCause::PodDeletedOrRelabelled]
    }
    fn as_filter(&self) -> Option<&dyn Filter> {
        Some(self)
    }
}

impl Filter for Zone {
    fn filter(&self, _: &State, _: RunView<'_>, _: PodView<'_>) -> Result<(), Rejection> {
        Ok(())
    }
}

pub fn registry() -> Registry {
    Registry::builtin().with_optional::<Zone>()
}

/// With the header, unless the text begins with `!` and is taken as it is.
pub fn text_of(body: &str) -> String {
    body.strip_prefix('!').map_or_else(|| format!("{HEADER}{body}"), str::to_owned)
}

pub fn load(body: &str) -> Result<Loaded, Vec<String>> {
    config::parse(&text_of(body), "f", &registry()).map_err(|refused| {
        let text = refused.to_string();
        let lines = if refused.problems.len() == 1 { text.lines().collect::<Vec<_>>() } else { text.lines().skip(1).map(str::trim).collect() };
        lines.into_iter().map(|line| line.strip_prefix("f:").unwrap_or(line).to_owned()).collect()
    })
}

/// Name, text, and every problem as `line:column: path: message`.
type Row = (&'static str, &'static str, &'static [&'static str]);

pub const ROWS: &[Row] = &[
    ("nothing but the header", "", &[]),
    ("an empty list of profiles", "profiles: []\n", &[]),
    (
        "fields without a value are not set",
        r#"profiles:
bindWorkers:
leaderElection: {leaseDuration: }
"#,
        &[],
    ),
    ("json", "!{\"apiVersion\": \"berth.kruntimes.io/v1alpha1\", \"kind\": \"BerthConfiguration\", \"bindWorkers\": 4}", &[]),
    (
        "everything at once",
        r#"leaderElection: {leaderElect: true, leaseDuration: 3s, renewDeadline: 2s, retryPeriod: 500ms, resourceName: a.b, resourceNamespace: ns}
runInitialBackoffSeconds: 2
runMaxBackoffSeconds: 86400
bindWorkers: 1024
profiles:
- schedulerName: a
  plugins:
    multiPoint: {enabled: [{name: RunAffinity, weight: 1000000}], disabled: [{name: "*"}]}
    preFilter: {disabled: [{name: RunAffinity}]}
    filter: {enabled: [{name: RuntimeReady}, {name: Capacity}]}
    score: {enabled: [{name: Capacity, weight: 1}]}
    reserve: {}
    bind: {}
  pluginConfig:
  - {name: Capacity, args: {strategy: MostAllocated}}
  - {name: Zone, args: {zone: a, high: 7}}
- {schedulerName: b, runtimes: [x, y]}
- {schedulerName: c, runtimes: [x], shadow: true}
"#,
        &[],
    ),
    ("a whole number with a point", "bindWorkers: 2.0\n", &[]),
    (
        "a weight for a plugin that is off otherwise",
        "profiles: [{plugins: {multiPoint: {enabled: [{name: RunAffinity, weight: 2}], disabled: [{name: RunAffinity}]}}}]\n",
        &[],
    ),
    ("a shadow of every runtime beside the default", "profiles: [{schedulerName: a}, {schedulerName: b, shadow: true}]\n", &[]),
    (
        "anchors and aliases",
        r#"profiles:
- {schedulerName: a, plugins: &p {multiPoint: {enabled: [{name: Capacity, weight: 2}]}}}
- {schedulerName: b, runtimes: [x], plugins: *p}
"#,
        &[],
    ),
    ("args that are not set", "profiles: [{pluginConfig: [{name: Capacity}, {name: RunAffinity, args: }]}]\n", &[]),
    ("no text", "!", &["1:1: must be a mapping that begins with apiVersion and kind, not nothing"]),
    ("only a comment", "!# nothing\n", &["1:1: must be a mapping that begins with apiVersion and kind, not nothing"]),
    ("no YAML", "profiles: [\n", &["3:11: unclosed bracket '['"]),
    (
        "a tab",
        r#"profiles:
	- x
"#,
        &["4:2: tabs disallowed within this context (block indentation)"],
    ),
    ("a list", "!- a\n", &["1:1: must be a mapping that begins with apiVersion and kind, not a list"]),
    ("a word", "!words\n", &["1:1: must be a mapping that begins with apiVersion and kind, not a single value"]),
    (
        "two documents",
        r#"---
apiVersion: v1
"#,
        &["4:1: a second document begins here; a configuration is one"],
    ),
    ("an unknown alias", "profiles: *nobody\n", &["3:11: alias references unknown anchor"]),
    (
        "a key set twice",
        r#"bindWorkers: 1
bindWorkers: 2
"#,
        &["4:1: bindWorkers: is set twice in this mapping"],
    ),
    (
        "keys set twice deep down, and more",
        r#"profiles:
- schedulerName: a
  schedulerName: b
  plugins: {score: {enabled: [{name: Capacity, name: Capacity}]}}
bindWorker: 1
"#,
        &[
            "5:3: profiles[0].schedulerName: is set twice in this mapping",
            "6:48: profiles[0].plugins.score.enabled[0].name: is set twice in this mapping",
            "7:1: bindWorker: unknown field; did you mean bindWorkers?",
        ],
    ),
    ("no apiVersion", "!kind: BerthConfiguration\n", &["1:1: apiVersion: is required"]),
    ("no kind", "!apiVersion: berth.kruntimes.io/v1alpha1\n", &["1:1: kind: is required"]),
    (
        "another version",
        r#"!apiVersion: berth.kruntimes.io/v2
kind: BerthConfiguration
"#,
        &[r#"1:13: apiVersion: must be berth.kruntimes.io/v1alpha1, not "berth.kruntimes.io/v2""#],
    ),
    (
        "an apiVersion that is no text",
        r#"!apiVersion: 1
kind: BerthConfiguration
"#,
        &["1:13: apiVersion: must be a text, not 1"],
    ),
    (
        "another kind",
        r#"!apiVersion: berth.kruntimes.io/v1alpha1
kind: Configuration
"#,
        &[r#"2:7: kind: must be BerthConfiguration, not "Configuration""#],
    ),
    (
        "kube-scheduler's",
        r#"!apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles: []
"#,
        &[r#"2:7: kind: must be BerthConfiguration of berth.kruntimes.io/v1alpha1, not "KubeSchedulerConfiguration""#],
    ),
    (
        "a ConfigMap",
        r#"!apiVersion: v1
kind: ConfigMap
data: {config.yaml: x}
"#,
        &[
            r"2:7: kind: this is a ConfigMap; what is checked is the text in its data, as `kubectl get configmap NAME -o jsonpath='{.data.config\.yaml}'` prints it",
        ],
    ),
    ("an unknown field, near", "profile: []\n", &["3:1: profile: unknown field; did you mean profiles?"]),
    (
        "an unknown field, near nothing",
        "frobnicate: 1\n",
        &["3:1: frobnicate: unknown field; known are apiVersion, bindWorkers, kind, leaderElection, profiles, runInitialBackoffSeconds, runMaxBackoffSeconds"],
    ),
    (
        "a field of kube-scheduler",
        "percentageOfNodesToScore: 50\n",
        &[
            "3:1: percentageOfNodesToScore: unknown field; known are apiVersion, bindWorkers, kind, leaderElection, profiles, runInitialBackoffSeconds, runMaxBackoffSeconds",
        ],
    ),
    ("a field one level too high", "leaderElect: true\n", &["3:1: leaderElect: unknown field; leaderElect belongs to leaderElection"]),
    (
        "a field one level too deep",
        "profiles: [{multiPoint: {}}]\n",
        &["3:13: profiles[0].multiPoint: unknown field; multiPoint belongs to profiles[].plugins"],
    ),
    ("a field in another case", "bindworkers: 4\n", &["3:1: bindworkers: unknown field; did you mean bindWorkers?"]),
    (
        "an unknown point",
        "profiles: [{plugins: {permit: {}}}]\n",
        &["3:23: profiles[0].plugins.permit: unknown field; known are bind, filter, multiPoint, preFilter, reserve, score"],
    ),
    ("profiles as a mapping", "profiles: {a: 1}\n", &["3:1: profiles: must be a list, not a mapping"]),
    ("a profile that is a name", "profiles: [default]\n", &[r#"3:12: profiles[0]: must be a mapping, not the text "default""#]),
    ("plugins as a list", "profiles: [{plugins: [Capacity]}]\n", &["3:13: profiles[0].plugins: must be a mapping, not a list"]),
    ("a point as a list", "profiles: [{plugins: {score: [Capacity]}}]\n", &["3:23: profiles[0].plugins.score: must be a mapping, not a list"]),
    (
        "a plugin that is a name",
        "profiles: [{plugins: {score: {enabled: [Capacity]}}}]\n",
        &[r#"3:41: profiles[0].plugins.score.enabled[0]: must be a mapping, not the text "Capacity""#],
    ),
    (
        "a plugin without a name",
        "profiles: [{plugins: {score: {enabled: [{weight: 2}]}}}]\n",
        &["3:41: profiles[0].plugins.score.enabled[0].name: is required"],
    ),
    ("a name that is a number", "profiles: [{schedulerName: 5}]\n", &["3:28: profiles[0].schedulerName: must be a text, not 5"]),
    (
        "runtimes as one text",
        "profiles: [{schedulerName: a}, {schedulerName: b, runtimes: x}]\n",
        &[r#"3:61: profiles[1].runtimes: must be a list, not the text "x""#],
    ),
    (
        "a runtime that is nothing",
        "profiles: [{schedulerName: a}, {schedulerName: b, runtimes: [x, null]}]\n",
        &["3:65: profiles[1].runtimes[1]: must be a text, not nothing"],
    ),
    ("a binding", "profiles: [{schedulerName: a, binding: LeastLoaded}, {schedulerName: b, runtimes: [x], binding: FirstByName}]\n", &[]),
    (
        "a binding that is none",
        "profiles: [{binding: LeastLoded}]\n",
        &[r#"3:22: profiles[0].binding: must be FirstByName or LeastLoaded, not the text "LeastLoded"; did you mean LeastLoaded?"#],
    ),
    (
        "a binding of a plugin",
        "profiles: [{pluginConfig: [{name: Capacity, binding: LeastLoaded}]}]\n",
        &["3:45: profiles[0].pluginConfig[0].binding: unknown field; binding belongs to profiles[]"],
    ),
    (
        "shadow as a text",
        "profiles: [{schedulerName: a}, {schedulerName: b, shadow: \"true\"}]\n",
        &[r#"3:59: profiles[1].shadow: must be true or false, not the text "true""#],
    ),
    (
        "args as a list",
        "profiles: [{pluginConfig: [{name: Capacity, args: [LeastAllocated]}]}]\n",
        &["3:45: profiles[0].pluginConfig[0].args: must be a mapping, not a list"],
    ),
    (
        "a long text where a number belongs",
        "bindWorkers: \"0123456789012345678901234567890123456789x\"\n",
        &[r#"3:14: bindWorkers: must be a whole number, not the text "0123456789012345678901234567890123456789"…"#],
    ),
    ("no workers", "bindWorkers: 0\n", &["3:14: bindWorkers: must be 1 to 1024, not 0"]),
    ("too many workers", "bindWorkers: 1025\n", &["3:14: bindWorkers: must be 1 to 1024, not 1025"]),
    ("fewer than no workers", "bindWorkers: -1\n", &["3:14: bindWorkers: must be 1 to 1024, not -1"]),
    ("half a worker", "bindWorkers: 0.5\n", &["3:14: bindWorkers: must be a whole number, not 0.5"]),
    ("more than fits", "bindWorkers: 99999999999999999999\n", &["3:14: bindWorkers: must be 1 to 1024, not 1e+20"]),
    ("no back-off", "runInitialBackoffSeconds: 0\n", &["3:27: runInitialBackoffSeconds: must be 1 to 86400, not 0"]),
    (
        "a back-off above the longest",
        r#"runInitialBackoffSeconds: 20
runMaxBackoffSeconds: 10
"#,
        &["4:23: runMaxBackoffSeconds: must not be below runInitialBackoffSeconds (20), is 10"],
    ),
    (
        "a first back-off above the longest by default",
        "runInitialBackoffSeconds: 100\n",
        &["3:27: runInitialBackoffSeconds: must not be above runMaxBackoffSeconds, which is 10 unless it is set; is 100"],
    ),
    ("a back-off above a day", "runMaxBackoffSeconds: 86401\n", &["3:23: runMaxBackoffSeconds: must be 1 to 86400, not 86401"]),
    ("a back-off as a duration", "runMaxBackoffSeconds: 10s\n", &[r#"3:23: runMaxBackoffSeconds: must be a whole number, not the text "10s""#]),
    ("a duration without a unit", "leaderElection: {leaseDuration: 15}\n", &["3:33: leaderElection.leaseDuration: must be a text, not 15"]),
    (
        "a text without a unit",
        "leaderElection: {leaseDuration: \"15\"}\n",
        &[r#"3:33: leaderElection.leaseDuration: missing unit in duration: "15"; write it as 15s or 1m30s"#],
    ),
    (
        "an unknown unit",
        "leaderElection: {renewDeadline: 10sec}\n",
        &[r#"3:33: leaderElection.renewDeadline: unknown unit in duration: "10sec"; write it as 15s or 1m30s"#],
    ),
    ("below zero", "leaderElection: {retryPeriod: -2s}\n", &[r#"3:31: leaderElection.retryPeriod: negative duration: "-2s"; write it as 15s or 1m30s"#]),
    ("no duration", "leaderElection: {retryPeriod: \"\"}\n", &[r#"3:31: leaderElection.retryPeriod: not a Go duration: ""; write it as 15s or 1m30s"#]),
    (
        "a lease not above the deadline",
        r#"leaderElection:
  leaseDuration: 10s
  renewDeadline: 10s
"#,
        &["4:18: leaderElection.leaseDuration: must be longer than renewDeadline (10s), not 10s: a leader must give up before others may take over"],
    ),
    (
        "a lease below the default deadline",
        "leaderElection: {leaseDuration: 5s}\n",
        &["3:33: leaderElection.leaseDuration: must be longer than renewDeadline (10s), not 5s: a leader must give up before others may take over"],
    ),
    (
        "a deadline not above 1.2 tries",
        "leaderElection: {renewDeadline: 2400ms, retryPeriod: 2s}\n",
        &["3:33: leaderElection.renewDeadline: must be longer than 1.2 times retryPeriod (2s), not 2.4s: there must be time for a renewal"],
    ),
    (
        "part of a second",
        "leaderElection: {leaseDuration: 15500ms}\n",
        &["3:33: leaderElection.leaseDuration: must be whole seconds, at least 1s, since a Lease holds such, not 15.5s"],
    ),
    ("tries too close", "leaderElection: {retryPeriod: 1ms}\n", &["3:31: leaderElection.retryPeriod: must be at least 10ms, not 1ms"]),
    (
        "a name that is none",
        "leaderElection: {resourceName: Berth_1, resourceNamespace: a.b}\n",
        &[
            r#"3:32: leaderElection.resourceName: "Berth_1" is no name of a Lease: lower-case letters, digits, '-' and '.'"#,
            r#"3:60: leaderElection.resourceNamespace: "a.b" is no name of a namespace: lower-case letters, digits and '-'"#,
        ],
    ),
    ("yes is a text", "leaderElection: {leaderElect: yes}\n", &[r#"3:31: leaderElection.leaderElect: must be true or false, not the text "yes""#]),
    (
        "an unknown plugin, near",
        "profiles: [{plugins: {multiPoint: {enabled: [{name: RunAfinity}]}}}]\n",
        &[r#"3:53: profiles[0].plugins.multiPoint.enabled[0].name: unknown plugin "RunAfinity"; did you mean RunAffinity?"#],
    ),
    (
        "an unknown plugin, near nothing",
        "profiles: [{plugins: {multiPoint: {enabled: [{name: NodeName}]}}}]\n",
        &[
            r#"3:53: profiles[0].plugins.multiPoint.enabled[0].name: unknown plugin "NodeName"; known are Capacity, RunAffinity, RuntimeReady, WorkspaceFencing, Zone"#,
        ],
    ),
    (
        "an unknown plugin to disable",
        "profiles: [{plugins: {multiPoint: {disabled: [{name: capacity}]}}}]\n",
        &[r#"3:54: profiles[0].plugins.multiPoint.disabled[0].name: unknown plugin "capacity"; did you mean Capacity?"#],
    ),
    (
        "a plugin with an empty name",
        "profiles: [{plugins: {multiPoint: {enabled: [{name: \"\"}]}}}]\n",
        &[r#"3:53: profiles[0].plugins.multiPoint.enabled[0].name: unknown plugin ""; known are Capacity, RunAffinity, RuntimeReady, WorkspaceFencing, Zone"#],
    ),
    (
        "all enabled",
        "profiles: [{plugins: {multiPoint: {enabled: [{name: \"*\"}]}}}]\n",
        &[r#"3:53: profiles[0].plugins.multiPoint.enabled[0].name: unknown plugin "*"; known are Capacity, RunAffinity, RuntimeReady, WorkspaceFencing, Zone"#],
    ),
    (
        "enabled twice",
        "profiles: [{plugins: {filter: {enabled: [{name: Capacity}, {name: RunAffinity}, {name: Capacity}]}}}]\n",
        &["3:88: profiles[0].plugins.filter.enabled[2].name: Capacity is listed twice"],
    ),
    (
        "disabled twice",
        "profiles: [{plugins: {filter: {disabled: [{name: \"*\"}, {name: \"*\"}]}}}]\n",
        &["3:63: profiles[0].plugins.filter.disabled[1].name: * is listed twice"],
    ),
    (
        "a plugin at a point it does not have",
        "profiles: [{plugins: {score: {enabled: [{name: RuntimeReady}]}}}]\n",
        &["3:48: profiles[0].plugins.score.enabled[0].name: RuntimeReady has nothing to do at score"],
    ),
    (
        "a plugin at bind",
        "profiles: [{plugins: {bind: {enabled: [{name: Capacity}]}}}]\n",
        &["3:47: profiles[0].plugins.bind.enabled[0].name: Capacity has nothing to do at bind"],
    ),
    (
        "weight 0",
        "profiles: [{plugins: {score: {enabled: [{name: Capacity, weight: 0}]}}}]\n",
        &["3:66: profiles[0].plugins.score.enabled[0].weight: must be 1 to 1000000, not 0"],
    ),
    (
        "weight below 0",
        "profiles: [{plugins: {multiPoint: {enabled: [{name: Capacity, weight: -3}]}}}]\n",
        &["3:71: profiles[0].plugins.multiPoint.enabled[0].weight: must be 1 to 1000000, not -3"],
    ),
    (
        "weight above the most",
        "profiles: [{plugins: {multiPoint: {enabled: [{name: Capacity, weight: 1000001}]}}}]\n",
        &["3:71: profiles[0].plugins.multiPoint.enabled[0].weight: must be 1 to 1000000, not 1000001"],
    ),
    (
        "weight 1.5",
        "profiles: [{plugins: {multiPoint: {enabled: [{name: Capacity, weight: 1.5}]}}}]\n",
        &["3:71: profiles[0].plugins.multiPoint.enabled[0].weight: must be a whole number, not 1.5"],
    ),
    (
        "weight as a text",
        "profiles: [{plugins: {multiPoint: {enabled: [{name: Capacity, weight: \"2\"}]}}}]\n",
        &[r#"3:71: profiles[0].plugins.multiPoint.enabled[0].weight: must be a whole number, not the text "2""#],
    ),
    (
        "a weight on a plugin that does not score",
        "profiles: [{plugins: {multiPoint: {enabled: [{name: WorkspaceFencing, weight: 2}]}}}]\n",
        &["3:79: profiles[0].plugins.multiPoint.enabled[0].weight: WorkspaceFencing does not score, so it takes no weight"],
    ),
    (
        "a weight at filter",
        "profiles: [{plugins: {filter: {enabled: [{name: Capacity, weight: 2}]}}}]\n",
        &["3:67: profiles[0].plugins.filter.enabled[0].weight: a weight belongs to score or multiPoint, not to filter"],
    ),
    (
        "a weight to disable",
        "profiles: [{plugins: {score: {disabled: [{name: Capacity, weight: 2}]}}}]\n",
        &["3:59: profiles[0].plugins.score.disabled[0].weight: unknown field; known are name"],
    ),
    (
        "an unknown arg, near",
        "profiles: [{pluginConfig: [{name: RunAffinity, args: {symetricAntiAffinity: false}}]}]\n",
        &["3:55: profiles[0].pluginConfig[0].args.symetricAntiAffinity: unknown field; did you mean symmetricAntiAffinity?"],
    ),
    (
        "an unknown choice, near",
        "profiles: [{pluginConfig: [{name: Capacity, args: {strategy: MostAlocated}}]}]\n",
        &[
            r#"3:62: profiles[0].pluginConfig[0].args.strategy: must be LeastAllocated or MostAllocated, not the text "MostAlocated"; did you mean MostAllocated?"#,
        ],
    ),
    (
        "a choice of another type",
        "profiles: [{pluginConfig: [{name: Capacity, args: {strategy: 3}}]}]\n",
        &["3:62: profiles[0].pluginConfig[0].args.strategy: must be LeastAllocated or MostAllocated, not 3"],
    ),
    (
        "an arg of another type",
        "profiles: [{pluginConfig: [{name: RuntimeReady, args: {requireHeartbeat: 1}}]}]\n",
        &["3:74: profiles[0].pluginConfig[0].args.requireHeartbeat: must be true or false, not 1"],
    ),
    (
        "args of an unknown plugin",
        "profiles: [{pluginConfig: [{name: Capasity, args: {strategy: x}}]}]\n",
        &[r#"3:35: profiles[0].pluginConfig[0].name: unknown plugin "Capasity"; did you mean Capacity?"#],
    ),
    ("args without a name", "profiles: [{pluginConfig: [{args: {strategy: MostAllocated}}]}]\n", &["3:28: profiles[0].pluginConfig[0].name: is required"]),
    ("args twice", "profiles: [{pluginConfig: [{name: Capacity}, {name: Capacity}]}]\n", &["3:53: profiles[0].pluginConfig[1].name: Capacity is listed twice"]),
    (
        "an arg beside args",
        "profiles: [{pluginConfig: [{name: Capacity, strategy: MostAllocated}]}]\n",
        &["3:45: profiles[0].pluginConfig[0].strategy: unknown field; strategy belongs to profiles[].pluginConfig[].args"],
    ),
    ("a required arg", "profiles: [{pluginConfig: [{name: Zone, args: {}}]}]\n", &["3:41: profiles[0].pluginConfig[0].args.zone: is required"]),
    (
        "an arg that the plugin refuses",
        "profiles: [{pluginConfig: [{name: Zone, args: {zone: a, low: 9, high: 3}}]}]\n",
        &["3:62: profiles[0].pluginConfig[0].args.low: must not be above high (3), is 9"],
    ),
    (
        "an arg that the plugin refuses, beside one that is unknown",
        "profiles: [{pluginConfig: [{name: Zone, args: {zone: '', hihg: 3}}]}]\n",
        &["3:54: profiles[0].pluginConfig[0].args.zone: must not be empty", "3:58: profiles[0].pluginConfig[0].args.hihg: unknown field; did you mean high?"],
    ),
    (
        "an arg out of its bounds",
        "profiles: [{pluginConfig: [{name: Zone, args: {zone: a, low: -1, high: 11}}]}]\n",
        &["3:62: profiles[0].pluginConfig[0].args.low: must be 0 to 10, not -1", "3:72: profiles[0].pluginConfig[0].args.high: must be 0 to 10, not 11"],
    ),
    (
        "a list of args",
        "profiles: [{pluginConfig: [{name: Zone, args: {zone: a, only: [a, 5, {b: 1}]}}]}]\n",
        &[
            "3:67: profiles[0].pluginConfig[0].args.only[1]: must be a text, not 5",
            "3:70: profiles[0].pluginConfig[0].args.only[2]: must be a text, not a mapping",
        ],
    ),
    (
        "a plugin that needs args",
        "profiles: [{plugins: {multiPoint: {enabled: [{name: Zone}]}}}]\n",
        &["3:12: profiles[0].pluginConfig: Zone needs args: zone: must not be empty"],
    ),
    (
        "two profiles without names",
        "profiles: [{}, {runtimes: [x]}]\n",
        &[
            "3:12: profiles[0].schedulerName: must be set where there is more than one profile",
            "3:16: profiles[1].schedulerName: must be set where there is more than one profile",
        ],
    ),
    (
        "names that nothing can have",
        "profiles: [{schedulerName: \"a\\nb\"}, {schedulerName: b, runtimes: [\"bad name!\", \"x\\ny\"]}]\n",
        &[
            r#"3:28: profiles[0].schedulerName: must be a DNS subdomain (lower-case letters, digits, '-' and '.'), not "a\nb""#,
            r#"3:67: profiles[1].runtimes[0]: no Pod can have label runtime="bad name!": it is no label value"#,
            r#"3:80: profiles[1].runtimes[1]: no Pod can have label runtime="x\ny": it is no label value"#,
        ],
    ),
    ("an empty name", "profiles: [{schedulerName: \"\"}]\n", &["3:28: profiles[0].schedulerName: must not be empty"]),
    (
        "a name twice",
        "profiles: [{schedulerName: a}, {schedulerName: a, runtimes: [x]}]\n",
        &["3:48: profiles[1].schedulerName: a is the name of another profile"],
    ),
    (
        "a shadow of the same name",
        "profiles: [{schedulerName: a}, {schedulerName: a, shadow: true}]\n",
        &["3:48: profiles[1].schedulerName: a is the name of another profile"],
    ),
    (
        "two defaults",
        "profiles: [{schedulerName: a}, {schedulerName: b}]\n",
        &["3:32: profiles[1].runtimes: profiles[0] already serves every runtime that no profile names; name this one's runtimes"],
    ),
    (
        "no default",
        "profiles: [{schedulerName: a, runtimes: [x]}]\n",
        &["3:1: profiles: one profile that is not a shadow must be without runtimes: the default"],
    ),
    (
        "only a shadow",
        "profiles: [{schedulerName: a, shadow: true}]\n",
        &["3:1: profiles: one profile that is not a shadow must be without runtimes: the default"],
    ),
    (
        "a runtime in two profiles",
        "profiles: [{schedulerName: a}, {schedulerName: b, runtimes: [x]}, {schedulerName: c, runtimes: [y, x]}]\n",
        &["3:100: profiles[2].runtimes[1]: x is served by another profile"],
    ),
    (
        "two defaults, beside what has nothing to do with it",
        "profiles: [{schedulerName: a, plugins: {score: {enabled: [x]}}}, {schedulerName: b}]\n",
        &[
            r#"3:59: profiles[0].plugins.score.enabled[0]: must be a mapping, not the text "x""#,
            "3:66: profiles[1].runtimes: profiles[0] already serves every runtime that no profile names; name this one's runtimes",
        ],
    ),
    (
        "who is the default is not guessed from runtimes that can't be read",
        "profiles: [{schedulerName: a}, {schedulerName: b, runtimes: 5}]\n",
        &["3:61: profiles[1].runtimes: must be a list, not 5"],
    ),
    (
        "a runtime twice",
        "profiles: [{schedulerName: a}, {schedulerName: b, runtimes: [x, x, '']}]\n",
        &["3:65: profiles[1].runtimes[1]: x is listed twice", "3:68: profiles[1].runtimes[2]: must not be empty"],
    ),
    (
        "many things at once",
        r#"leaseDuration: 15s
leaderElection:
  leaderElect: yes
  leaseDuration: 10s
  renewDeadline: 10x
bindWorkers: 0
runInitialBackoffSeconds: 20
profiles:
  - schedulerName: a
    plugins:
      multiPoint:
        enabled:
          - {name: RunAfinity, weight: 1.5}
          - name: RuntimeReady
            weight: 2
          - Capacity
          - weigth: 3
      filter:
        enabled: [{name: Capacity, weight: 7}]
      score:
        enabled: [{name: Capacity, weight: 0}, {name: Capacity, weight: 1000001}]
    pluginConfig:
      - name: Capacity
        strategy: x
        args: {strategy: MostAlocated, foo: 1}
      - name: RunAffinity
        args: {symmetricAntiAffinity: "true"}
      - name: RunAffinity
  - schedulerName: a
    runtimes: [x, x, 5]
    shadow: maybe
    schedulerName: b
"#,
        &[
            "3:1: leaseDuration: unknown field; leaseDuration belongs to leaderElection",
            r#"5:16: leaderElection.leaderElect: must be true or false, not the text "yes""#,
            r#"7:18: leaderElection.renewDeadline: unknown unit in duration: "10x"; write it as 15s or 1m30s"#,
            "8:14: bindWorkers: must be 1 to 1024, not 0",
            "9:27: runInitialBackoffSeconds: must not be above runMaxBackoffSeconds, which is 10 unless it is set; is 20",
            r#"15:20: profiles[0].plugins.multiPoint.enabled[0].name: unknown plugin "RunAfinity"; did you mean RunAffinity?"#,
            "15:40: profiles[0].plugins.multiPoint.enabled[0].weight: must be a whole number, not 1.5",
            "17:21: profiles[0].plugins.multiPoint.enabled[1].weight: RuntimeReady does not score, so it takes no weight",
            r#"18:13: profiles[0].plugins.multiPoint.enabled[2]: must be a mapping, not the text "Capacity""#,
            "19:13: profiles[0].plugins.multiPoint.enabled[3].name: is required",
            "19:13: profiles[0].plugins.multiPoint.enabled[3].weigth: unknown field; did you mean weight?",
            "21:44: profiles[0].plugins.filter.enabled[0].weight: a weight belongs to score or multiPoint, not to filter",
            "23:44: profiles[0].plugins.score.enabled[0].weight: must be 1 to 1000000, not 0",
            "23:55: profiles[0].plugins.score.enabled[1].name: Capacity is listed twice",
            "23:73: profiles[0].plugins.score.enabled[1].weight: must be 1 to 1000000, not 1000001",
            "26:9: profiles[0].pluginConfig[0].strategy: unknown field; strategy belongs to profiles[].pluginConfig[].args",
            r#"27:26: profiles[0].pluginConfig[0].args.strategy: must be LeastAllocated or MostAllocated, not the text "MostAlocated"; did you mean MostAllocated?"#,
            "27:40: profiles[0].pluginConfig[0].args.foo: unknown field; known are strategy",
            r#"29:39: profiles[0].pluginConfig[1].args.symmetricAntiAffinity: must be true or false, not the text "true""#,
            "30:15: profiles[0].pluginConfig[2].name: RunAffinity is listed twice",
            "31:20: profiles[1].schedulerName: a is the name of another profile",
            "32:19: profiles[1].runtimes[1]: x is listed twice",
            "32:22: profiles[1].runtimes[2]: must be a text, not 5",
            r#"33:13: profiles[1].shadow: must be true or false, not the text "maybe""#,
            "34:5: profiles[1].schedulerName: is set twice in this mapping",
        ],
    ),
];

#[test]
fn every_row_is_accepted_or_refused_with_everything_that_is_wrong() {
    assert!(ROWS.len() >= 100, "{} rows", ROWS.len());
    let mut wrong = Vec::new();
    for (name, body, expected) in ROWS {
        let problems = load(body).err().unwrap_or_default();
        if problems != *expected {
            wrong.push(format!("{name}: {body}\n    got {problems:#?}\n    not {expected:#?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
