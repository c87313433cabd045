#!/usr/bin/env bash
# Looks for the tools that building and testing need and names the fix for each that is missing; as root it installs Debian's.
#
#   prerequisites.sh [rust]     (rust: only what building Berth needs, not what its suites need)
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
missing=()
packages=()

# need TOOL PACKAGE: a tool that Debian has
need() { command -v "$1" >/dev/null || { missing+=("$1"); packages+=("$2"); }; }

# Debian 13 has the docker command apart from the engine.
docker_command() (
  . /etc/os-release 2>/dev/null || true
  if [ "${ID:-}" = debian ] && [ "${VERSION_ID:-13}" -ge 13 ]; then echo docker-cli; else echo docker.io; fi
)

need cc gcc
if [ "${1:-}" != rust ]; then
  need git git
  need flock util-linux
  need unshare util-linux
  need dockerd docker.io
  need docker "$(docker_command)"
  need prometheus prometheus
  need promtool prometheus
  # What the documentation tells people to type.
  need kubectl kubernetes-client
  need chromium chromium
  need chromedriver chromium-driver
  # The venv of opensandbox-server, which PyPI has.
  python3 -c 'import ensurepip, venv' 2>/dev/null || { missing+=("python3 -m venv"); packages+=(python3-venv); }
  # A host to clone from over ssh.
  need ssh-keygen openssh-client
  need dropbear dropbear-bin
  # The node of the e2e suite, and its images.
  need containerd containerd
  need runc runc
  need ip iproute2
  need busybox busybox-static
  [ -x /usr/lib/cni/bridge ] || { missing+=("/usr/lib/cni/bridge"); packages+=(containernetworking-plugins); }
fi
if [ ${#missing[@]} -gt 0 ]; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "prerequisites: installing ${packages[*]}" >&2
    export DEBIAN_FRONTEND=noninteractive
    { apt-get -qq update && apt-get -qq install -y --no-install-recommends "${packages[@]}" libc6-dev; } </dev/null >&2
  else
    echo "prerequisites: missing: ${missing[*]}. Fix: sudo apt-get install ${packages[*]} libc6-dev" >&2
    exit 1
  fi
fi

failed=0
fail() { echo "prerequisites: $*" >&2; failed=1; }

channel=$(sed -n 's/^channel = "\(.*\)"/\1/p' "$here/../rust-toolchain.toml")
if ! command -v cargo >/dev/null; then
  fail "missing: cargo (Rust $channel). Fix: install rustup from https://rustup.rs; it reads rust-toolchain.toml."
elif [ "$(cd "$here" && rustc --version 2>/dev/null | cut -d' ' -f2)" != "$channel" ]; then
  fail "this is not Rust $channel but $(cd "$here" && rustc --version 2>&1 | head -n 1). Fix: rustup toolchain install $channel"
elif [ "${1:-}" != rust ]; then
  for part in fmt clippy; do
    (cd "$here" && cargo "$part" --version >/dev/null 2>&1) ||
      fail "missing: cargo $part. Fix: rustup component add --toolchain $channel rustfmt clippy"
  done
fi
# Go is only needed to build the control plane; build.sh itself checks it when it has something to build.
exit $failed
