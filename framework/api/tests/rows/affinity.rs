//! Rows about `Run.spec.affinity` (spec, "Run Affinity API" and "Validation"; reference §1.1).

use serde_json::json;

use super::*;

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
const EMPTY: &str = "labelSelector must not be empty";

pub fn rows() -> Vec<Row> {
    [shape_rows(), selector_rows(), topology_rows(), bound_rows(), weight_rows(), absent_field_rows()].concat()
}

fn term(selector: Value) -> Value {
    json!({"labelSelector": selector, "topologyKey": "kruntimes.io/runtime-pod"})
}

fn labels() -> Value {
    json!({"matchLabels": {"app": "x"}})
}

fn required(terms: Value) -> Value {
    run(json!({"affinity": {"runAffinity": {REQUIRED: terms}}}))
}

fn preferred(terms: Value) -> Value {
    run(json!({"affinity": {"runAffinity": {PREFERRED: terms}}}))
}

fn weighted(weight: Value) -> Value {
    preferred(json!([{"weight": weight, "runAffinityTerm": term(labels())}]))
}

/// Path below the first required term of runAffinity.
fn in_required(rest: &str) -> String {
    format!("spec.affinity.runAffinity.{REQUIRED}[0]{rest}")
}

fn in_preferred(rest: &str) -> String {
    format!("spec.affinity.runAffinity.{PREFERRED}[0]{rest}")
}

fn shape_rows() -> Vec<Row> {
    vec![
        accept(
            "the specification's example",
            json!({
            "metadata": {"labels": {
                "workflows.kruntimes.io/workflow": "ci-data-sharing-demo", "workflows.kruntimes.io/job": "build"}},
            "spec": {
                "runtime": "bash",
                "workspace": {"name": "ci-build-workspace"},
                "affinity": {"runAffinity": {REQUIRED: [{
                    "labelSelector": {"matchLabels": {
                        "workflows.kruntimes.io/workflow": "ci-data-sharing-demo", "workflows.kruntimes.io/job": "build"}},
                    "topologyKey": "kruntimes.io/runtime-pod"}]}},
                "mode": {"task": {}}}}),
        ),
        accept("affinity empty", run(json!({"affinity": {}}))),
        accept("runAffinity empty", run(json!({"affinity": {"runAffinity": {}, "runAntiAffinity": {}}}))),
        accept("lists of terms empty", run(json!({"affinity": {"runAffinity": {REQUIRED: [], PREFERRED: []}}}))),
        accept(
            "all four lists",
            run(json!({"affinity": {
            "runAffinity": {REQUIRED: [term(labels())], PREFERRED: [{"weight": 5, "runAffinityTerm": term(labels())}]},
            "runAntiAffinity": {REQUIRED: [term(labels())], PREFERRED: [{"weight": 5, "runAffinityTerm": term(labels())}]}}})),
        ),
        refuse("a list that is an object", required(json!({})), format!("spec.affinity.runAffinity.{REQUIRED}"), ""),
        refuse("a term that is a text", required(json!(["x"])), in_required(""), ""),
        refuse("a term that is null", required(json!([null])), in_required(""), ""),
        refuse("a preferred entry without term", preferred(json!([{"weight": 5}])), in_preferred(".runAffinityTerm"), ""),
    ]
}

fn selector_rows() -> Vec<Row> {
    let expression = |fields: Value| required(json!([term(json!({"matchExpressions": [fields]}))]));
    let key = "kruntimes.io/runtime-pod";
    let mut rows = vec![
        refuse("term without selector", required(json!([{"topologyKey": key}])), in_required(".labelSelector"), ""),
        refuse("selector null", required(json!([{"topologyKey": key, "labelSelector": null}])), in_required(".labelSelector"), ""),
        refuse("selector a text", required(json!([term(json!("app=x"))])), in_required(".labelSelector"), ""),
        refuse("selector {}", required(json!([term(json!({}))])), in_required(""), EMPTY),
        refuse("matchLabels {}", required(json!([term(json!({"matchLabels": {}}))])), in_required(""), EMPTY),
        refuse("matchExpressions []", required(json!([term(json!({"matchExpressions": []}))])), in_required(""), EMPTY),
        refuse("both empty", required(json!([term(json!({"matchLabels": {}, "matchExpressions": []}))])), in_required(""), EMPTY),
        refuse("matchLabels null", required(json!([term(json!({"matchLabels": null}))])), in_required(""), EMPTY),
        refuse("second term empty", required(json!([term(labels()), term(json!({}))])), format!("spec.affinity.runAffinity.{REQUIRED}[1]"), EMPTY),
        refuse("selector {} preferred", preferred(json!([{"weight": 5, "runAffinityTerm": term(json!({}))}])), in_preferred(".runAffinityTerm"), EMPTY),
        refuse(
            "selector {} in required anti-affinity",
            run(json!({"affinity": {"runAntiAffinity": {REQUIRED: [term(json!({}))]}}})),
            format!("spec.affinity.runAntiAffinity.{REQUIRED}[0]"),
            EMPTY,
        ),
        refuse(
            "selector {} in preferred anti-affinity",
            run(json!({"affinity": {"runAntiAffinity": {PREFERRED: [{"weight": 1, "runAffinityTerm": term(json!({}))}]}}})),
            format!("spec.affinity.runAntiAffinity.{PREFERRED}[0].runAffinityTerm"),
            EMPTY,
        ),
        accept("labels beside no expressions", required(json!([term(json!({"matchLabels": {"a": "1"}, "matchExpressions": []}))]))),
        accept("a label with an empty value", required(json!([term(json!({"matchLabels": {"a": ""}}))]))),
        refuse("a label with a number", required(json!([term(json!({"matchLabels": {"a": 1}}))])), in_required(".labelSelector.matchLabels.a"), ""),
        refuse("an expression without key", expression(json!({"operator": "Exists"})), in_required(".labelSelector.matchExpressions[0].key"), ""),
        refuse("an expression without operator", expression(json!({"key": "a"})), in_required(".labelSelector.matchExpressions[0].operator"), ""),
        refuse(
            "a value that is a number",
            expression(json!({"key": "a", "operator": "In", "values": [1]})),
            in_required(".labelSelector.matchExpressions[0].values[0]"),
            "",
        ),
        accept("In without values", expression(json!({"key": "a", "operator": "In"}))).ends("InvalidSpec"),
        accept("NotIn with no values", expression(json!({"key": "a", "operator": "NotIn", "values": []}))).ends("InvalidSpec"),
        accept("Exists with values", expression(json!({"key": "a", "operator": "Exists", "values": ["x"]}))).ends("InvalidSpec"),
        accept("a key with a space", expression(json!({"key": "a b", "operator": "Exists"}))).ends("InvalidSpec"),
        accept("an empty key", required(json!([term(json!({"matchLabels": {"": "x"}}))]))).ends("InvalidSpec"),
        accept("a key of 64 characters", required(json!([term(json!({"matchLabels": {"a".repeat(64): "x"}}))]))).ends("InvalidSpec"),
        accept("a value that no label can have", required(json!([term(json!({"matchLabels": {"a": "-"}}))]))).ends("InvalidSpec"),
    ];
    for (operator, values) in [("In", json!(["x"])), ("NotIn", json!(["x", "y"])), ("Exists", json!([])), ("DoesNotExist", json!([]))] {
        rows.push(accept(format!("operator {operator}"), expression(json!({"key": "a", "operator": operator, "values": values}))));
    }
    for operator in ["in", "Gt", "Lt", "Equals", "=", "", "exists"] {
        rows.push(refuse(
            format!("operator {operator:?}"),
            expression(json!({"key": "a", "operator": operator, "values": ["x"]})),
            in_required(".labelSelector.matchExpressions[0].operator"),
            "",
        ));
    }
    rows
}

fn topology_rows() -> Vec<Row> {
    let mut rows = vec![
        refuse("topologyKey missing", required(json!([{"labelSelector": labels()}])), in_required(".topologyKey"), ""),
        refuse("topologyKey null", required(json!([{"labelSelector": labels(), "topologyKey": null}])), in_required(".topologyKey"), ""),
    ];
    for key in ["", "kubernetes.io/hostname", "topology.kubernetes.io/zone", "runtime-pod", "kruntimes.io/Runtime-Pod"] {
        rows.push(refuse(format!("topologyKey {key:?}"), required(json!([{"labelSelector": labels(), "topologyKey": key}])), in_required(".topologyKey"), ""));
    }
    let elsewhere = json!({"labelSelector": labels(), "topologyKey": "kubernetes.io/hostname"});
    rows.push(refuse(
        "topologyKey preferred",
        preferred(json!([{"weight": 1, "runAffinityTerm": elsewhere.clone()}])),
        in_preferred(".runAffinityTerm.topologyKey"),
        "",
    ));
    rows.push(refuse(
        "topologyKey in anti-affinity",
        run(json!({"affinity": {"runAntiAffinity": {REQUIRED: [elsewhere]}}})),
        format!("spec.affinity.runAntiAffinity.{REQUIRED}[0].topologyKey"),
        "",
    ));
    rows
}

fn bound_rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for side in ["runAffinity", "runAntiAffinity"] {
        for (count, fits) in [(32, true), (33, false)] {
            let lists = [(REQUIRED, many(count, |_| term(labels()))), (PREFERRED, many(count, |_| json!({"weight": 1, "runAffinityTerm": term(labels())})))];
            for (list, terms) in lists {
                let name = format!("{count} terms in {side}.{list}");
                let object = run(json!({"affinity": {side: {list: terms}}}));
                rows.push(if fits { accept(name, object) } else { refuse(name, object, format!("spec.affinity.{side}.{list}"), "") });
            }
        }
    }
    let expressions = |count| term(json!({"matchExpressions": many(count, |i| json!({"key": format!("k{i}"), "operator": "Exists"}))}));
    let values = |count| term(json!({"matchExpressions": [{"key": "a", "operator": "In", "values": many(count, |i| json!(format!("v{i}")))}]}));
    let pairs = |count| term(json!({"matchLabels": map_of(count, json!("v"))}));
    rows.extend([
        accept("64 expressions", required(json!([expressions(64)]))),
        refuse("65 expressions", required(json!([expressions(65)])), in_required(".labelSelector.matchExpressions"), ""),
        accept("64 values", required(json!([values(64)]))),
        refuse("65 values", required(json!([values(65)])), in_required(".labelSelector.matchExpressions[0].values"), ""),
        accept("64 labels", required(json!([pairs(64)]))),
        refuse("65 labels", required(json!([pairs(65)])), in_required(".labelSelector.matchLabels"), ""),
        accept(
            "full lists of full selectors",
            run(json!({"affinity": {"runAffinity": {REQUIRED: many(32, |_| values(64))},
            "runAntiAffinity": {REQUIRED: many(32, |_| expressions(64))}}})),
        ),
    ]);
    rows
}

fn weight_rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for weight in [json!(1), json!(50), json!(100)] {
        rows.push(accept(format!("weight {weight}"), weighted(weight)));
    }
    let stored_at = "/spec/affinity/runAffinity/preferredDuringSchedulingIgnoredDuringExecution/0/weight";
    rows.push(store("weight 7.0 is 7", weighted(json!(7.0)), stored_at, json!(7)));
    for weight in [json!(0), json!(-1), json!(101), json!(1.5), json!(2_147_483_648_u32), json!("5"), json!(true)] {
        rows.push(refuse(format!("weight {weight}"), weighted(weight), in_preferred(".weight"), ""));
    }
    rows.push(refuse("weight null", weighted(Value::Null), in_preferred(".weight"), ""));
    rows.push(refuse("weight missing", preferred(json!([{"runAffinityTerm": term(labels())}])), in_preferred(".weight"), ""));
    rows.push(refuse(
        "weight 101 in anti-affinity",
        run(json!({"affinity": {"runAntiAffinity": {PREFERRED: [{"weight": 101, "runAffinityTerm": term(labels())}]}}})),
        format!("spec.affinity.runAntiAffinity.{PREFERRED}[0].weight"),
        "",
    ));
    rows
}

/// Fields that must not exist (spec, last paragraph of "Validation").
fn absent_field_rows() -> Vec<Row> {
    let mut rows = Vec::new();
    let plain = term(labels());
    let in_term = |name: &str, value: &Value| {
        let mut term = plain.clone();
        term[name] = value.clone();
        required(json!([term]))
    };
    for (name, value) in [
        ("namespaceSelector", json!({"matchLabels": {"a": "b"}})),
        ("namespaces", json!(["other"])),
        ("podName", json!("p")),
        ("matchLabelKeys", json!(["app"])),
    ] {
        rows.push(refuse(format!("{name} in a term, strictly"), in_term(name, &value), in_required(&format!(".{name}")), "unknown field").strictly());
        rows.push(store(
            format!("{name} in a term has no effect"),
            in_term(name, &value),
            "/spec/affinity/runAffinity/requiredDuringSchedulingIgnoredDuringExecution",
            json!([plain]),
        ));
    }
    for (name, value) in [
        ("podName", json!("p")),
        ("nodeName", json!("n")),
        ("nodeSelector", json!({"a": "b"})),
        ("topologySpreadConstraints", json!([])),
        ("stickyKey", json!("k")),
    ] {
        rows.push(refuse(format!("spec.{name}, strictly"), run(json!({name: value})), format!("spec.{name}"), "unknown field").strictly());
        rows.push(store(format!("spec.{name} has no effect"), run(json!({name: value})), "/spec", json!({"runtime": "bash", "mode": {"task": {}}})));
    }
    for name in ["nodeAffinity", "podAffinity", "podAntiAffinity"] {
        let object = run(json!({"affinity": {name: {"x": 1}}}));
        rows.push(refuse(format!("affinity.{name}, strictly"), object.clone(), format!("spec.affinity.{name}"), "unknown field").strictly());
        rows.push(store(format!("affinity.{name} has no effect"), object, "/spec/affinity", json!({})));
    }
    rows
}
