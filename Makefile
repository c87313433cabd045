# Everything one does with this repository; `make help` lists it. Two commands matter: `make demo` and `make test`.
BERTH_CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/berth
CARGO_TARGET_DIR ?= $(BERTH_CACHE)/target
export BERTH_CACHE CARGO_TARGET_DIR
export PATH := $(PATH):$(HOME)/.cargo/bin:/usr/local/go/bin

BERTH := $(CARGO_TARGET_DIR)/debug/berth
# Always the whole workspace, so that every target shares one set of features and therefore one build.
BUILD := cargo build --locked --workspace --bin berth --bin runtimed
TEST := cargo test --locked --workspace
# Its tests wait for clocks and containers far more than they compute: more of them at once than there are cores. It may take 5 minutes, held to three times that.
SANDBOXED := $(TEST) --package berth-tests --test opensandbox
SANDBOXED_AT_ONCE := $(SANDBOXED) --config 'target."cfg(unix)".runner=["timeout","--foreground","900"]' -- --test-threads=7

.DEFAULT_GOAL := help
.PHONY: help demo run check fmt lint test sim apiserver opensandbox e2e bench-e2e jobs-long bench crds image chart docs controlplane cluster helm prerequisites rust

help: ## Lists the targets
	@sed -n 's/^\([a-z0-9-]*\):[^#]*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

demo: rust ## Places an example job with reasons, then a burst of 10,000 Runs; needs no cluster
	$(BUILD)
	$(BERTH) simulate -f examples/data-sharing --explain ci/ci-build-test
	examples/burst/generate.sh 10000 > $(CARGO_TARGET_DIR)/burst.json
	$(BERTH) simulate -f $(CARGO_TARGET_DIR)/burst.json > $(CARGO_TARGET_DIR)/burst.out
	@echo "Burst of 10,000 Runs (all of it: $(CARGO_TARGET_DIR)/burst.out):" && tail -n 12 $(CARGO_TARGET_DIR)/burst.out

run: rust ## Runs `berth serve` against the cluster of your kubeconfig; ARGS adds flags
	$(BUILD)
	$(BERTH) serve $(ARGS)

# `--all-targets` leaves out what `cargo test` does not run by itself.
check: ## Compiles everything without building it
	cargo check --locked --workspace --all-targets
	cargo check --locked --workspace --test opensandbox

fmt: ## Formats the code
	cargo fmt --all

lint: ## Formatting, clippy and rustdoc, warnings denied
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	cargo clippy --locked --workspace --test opensandbox -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --locked --workspace --no-deps --document-private-items

test: prerequisites controlplane helm lint ## Everything that must hold: lints, every suite, the real control plane
	$(BUILD)
	$(TEST)
	$(SANDBOXED) --no-run
	$(SANDBOXED_AT_ONCE)

sim: rust ## The suite without a cluster; SEEDS=N sets the number of random histories
	$(TEST) --package berth-tests --test sim

apiserver: controlplane helm ## The suite on a real kube-apiserver; ARGS="name" picks tests
	$(BUILD)
	$(TEST) --package berth-tests --test apiserver -- $(ARGS)

opensandbox: prerequisites ## The suite on a real opensandbox-server (PyPI) and Docker engine, as root; EXECD_BINARY=FILE takes the real execd, BERTH_SEED=N other faults
	$(BUILD)
	$(SANDBOXED) --no-run
	$(SANDBOXED_AT_ONCE) $(ARGS)

e2e: prerequisites controlplane helm ## The suite on a real node (kubelet, containerd), as root: examples/ci-data-sharing by the chart; Jobs, and the deaths of the node's services
	$(BUILD)
	$(TEST) --test e2e -- --nocapture $(ARGS)

bench-e2e: controlplane helm ## On such a node: Jobs beside bare batch/v1 Jobs, 100 at once, with and without the limit of the controller manager; rate, latency of the start, own writes
	$(BUILD)
	BERTH_BENCH_JOBS=100 $(TEST) --test e2e -- bench_of_jobs --nocapture
	BERTH_BENCH_JOBS=100 BERTH_BENCH_QPS=1000 $(TEST) --test e2e -- bench_of_jobs --nocapture

jobs-long: controlplane helm ## What takes too long for `make test` about Jobs: 20,000 hostile writes, 100,000 histories, 1,000 Jobs under faults, also on a real node, 10,000 finished ones, 200 on OpenSandbox
	$(BUILD)
	BERTH_HOSTILE_PATCHES=20000 $(TEST) --package berth-tests --test apiserver -- job_hostile --nocapture
	BERTH_JOBS_UNDER_FAULTS=1000 BERTH_CANCELS_UNDER_FAULTS=300 $(TEST) --package berth-tests --test apiserver -- job_faults::two_leaders --nocapture
	BERTH_FINISHED_JOBS=10000 $(TEST) --package berth-tests --test apiserver -- job_rest --nocapture
	BERTH_SANDBOXED_JOBS=200 BERTH_SANDBOXED_AT_ONCE=16 $(SANDBOXED) -- jobs::crowd --nocapture
	BERTH_JOBS_ON_NODE=1000 $(TEST) --test e2e -- jobs_tell --nocapture
	PROPTEST_CASES=100000 $(TEST) --package berth-controllers --lib -- job::machine::tests::properties

bench: rust ## What a placement costs: fails above the promised limits of time and memory; then criterion, one world at a time
	cargo run --locked --profile bench --package berth-benches --bin scaling
	cargo bench --locked --package berth-benches

crds: rust ## Writes deploy/crds from the Rust types
	$(BUILD)
	mkdir -p deploy/crds
	$(BERTH) crds --output deploy/crds

image: rust ## Builds a container image with the local Docker engine: PROGRAM=berth or runtimed; IMAGE names it, PROFILE=dev is quicker
	PROGRAM=$(PROGRAM) deploy/image/build.sh $(IMAGE)

# Helm, and the CRDs of the Prometheus operator: once into the cache (about 3 minutes), then reused.
helm:
	tests/helm/build.sh
	tests/promoperator/crds.sh

chart: ## Packages the Helm chart
	HELM=$$(tests/helm/build.sh)/helm && $$HELM package deploy/chart/berth --destination $(CARGO_TARGET_DIR)

docs: ## The documentation of the crates
	cargo doc --locked --workspace --no-deps

controlplane: ## Builds etcd and Kubernetes once into the cache (about 17 minutes), then reuses them
	tests/controlplane/build.sh

cluster: controlplane ## Runs such a control plane with Berth's CRDs until Ctrl-C, and prints its kubeconfig
	cargo run --locked --package berth-tests --example cluster

prerequisites: ## Looks for the tools that `make test` needs; as root it installs what Debian has
	tests/prerequisites.sh

rust:
	@tests/prerequisites.sh rust
