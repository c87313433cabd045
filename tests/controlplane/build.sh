#!/usr/bin/env bash
# Builds the control plane of the suites once into a cache outside the clone; the last line on stdout is the folder of the binaries.
#
#   build.sh [etcd|kube-apiserver|kube-controller-manager|kube-scheduler|kubelet ...]     (default: all five, in this order)
#
# KUBEBUILDER_ASSETS wins if set. Otherwise: ${BERTH_CACHE}/controlplane/<key of go.mod, go.sum and this recipe>/. Each binary is
# built beside its place and renamed, so whatever is in the folder is complete; parallel runs wait for each other.
set -euo pipefail

recipe=1 # raise when the flags below change: the key of the cache folder holds it
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
all=(etcd kube-apiserver kube-controller-manager kube-scheduler kubelet)
wanted=("$@")
[ $# -gt 0 ] || wanted=("${all[@]}")

say() { echo "controlplane: $*" >&2; }
die() { say "$*"; exit 1; }

package_of() {
  case $1 in
    etcd) echo go.etcd.io/etcd/server/v3 ;;
    kube-apiserver | kube-controller-manager | kube-scheduler | kubelet) echo "k8s.io/kubernetes/cmd/$1" ;;
    *) die "no such binary: $1 (there are: ${all[*]})" ;;
  esac
}

missing_in() {
  local dir=$1 name
  for name in "${wanted[@]}"; do [ -x "$dir/$name" ] || echo "$name"; done
}

for name in "${wanted[@]}"; do package_of "$name" >/dev/null; done

if [ -n "${KUBEBUILDER_ASSETS:-}" ]; then
  gone=$(missing_in "$KUBEBUILDER_ASSETS" | paste -sd' ')
  [ -z "$gone" ] || die "KUBEBUILDER_ASSETS=$KUBEBUILDER_ASSETS has no: $gone. Put them there, or unset the variable and let this script build them."
  echo "$KUBEBUILDER_ASSETS"
  exit 0
fi

cache=${BERTH_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/berth}/controlplane
key=$({ cat "$here/go.mod" "$here/go.sum"; echo "recipe $recipe"; } | sha256sum | cut -c1-16)
out=$cache/$key
if [ -z "$(missing_in "$out")" ]; then
  echo "$out"
  exit 0
fi

[ -n "$(command -v go || true)" ] || PATH=$PATH:/usr/local/go/bin
need=$(sed -n 's/^go //p' "$here/go.mod")
command -v go >/dev/null || die "needs Go $need or newer, and there is none: install it (https://go.dev/dl, unpacked to /usr/local/go) and run again."
have=$(cd "$here" && go env GOVERSION 2>/dev/null | sed 's/^go//')
oldest=$(printf '%s\n' "$need" "${have:-0}" | sort -V | head -n 1)
[ "$oldest" = "$need" ] || die "needs Go $need or newer, and $(command -v go) is ${have:-too old}: install a newer one (https://go.dev/dl) and run again."
command -v flock >/dev/null || die "needs flock: apt-get install util-linux"

mkdir -p "$out"
exec 9>"$cache/lock"
if ! flock -n 9; then
  say "another build is running; waiting for it"
  flock 9
fi

version=$(sed -n 's#^\tk8s.io/kubernetes ##p' "$here/go.mod" | cut -d' ' -f1)
minor=${version#v1.}
minor=${minor%%.*}
pkg=k8s.io/component-base/version
ldflags="-s -w -X $pkg.gitVersion=$version -X $pkg.gitMajor=1 -X $pkg.gitMinor=$minor"

progress() { # a line every 15 s until it is killed
  local name=$1 at=$2 start=$SECONDS
  while sleep 15 && kill -0 $$ 2>/dev/null; do say "building $name ($at), $((SECONDS - start)) s"; done
}

mapfile -t todo < <(missing_in "$out")
[ ${#todo[@]} -eq 0 ] || say "building ${todo[*]} with Go $have; about 17 minutes on two cores the first time, then never again"
i=0
for name in "${todo[@]}"; do
  i=$((i + 1))
  start=$SECONDS
  progress "$name" "$i of ${#todo[@]}" 9>&- &
  ticker=$!
  trap 'kill $ticker 2>/dev/null || true; rm -f "$out/.$name.$$"' EXIT
  (cd "$here" && CGO_ENABLED=0 go build -mod=readonly -trimpath -buildvcs=false -ldflags "$ldflags" -o "$out/.$name.$$" "$(package_of "$name")") >&2 9>&- ||
    die "go could not build $name; its own message is above. No network? 'go mod download' in tests/controlplane must succeed once."
  mv "$out/.$name.$$" "$out/$name"
  kill $ticker 2>/dev/null || true
  wait $ticker 2>/dev/null || true
  trap - EXIT
  say "$name is ready after $((SECONDS - start)) s ($i of ${#todo[@]})"
done
echo "$out"
