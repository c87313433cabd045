#!/usr/bin/env bash
# Sourced by the build.sh of each Go module below tests/: builds the module's tools once into a cache outside the clone.
#
# The caller sets `here` (its folder), `kind` (its name in the cache and in messages), `recipe` (raised when its flags change: the
# key of the cache folder holds it), `all` and `wanted` (names of the binaries), `given` (a folder of the user's that wins, or
# empty, and `given_by`, the variable it came from), `ldflags`, `takes` (how long, in words), and defines `package_of NAME`. The
# last line on stdout is the folder of the binaries: ${BERTH_CACHE}/<kind>/<key of go.mod, go.sum and recipe>/. Each binary is
# built beside its place and renamed, so whatever is in the folder is complete; parallel runs wait for each other.

say() { echo "$kind: $*" >&2; }
die() { say "$*"; exit 1; }

missing_in() {
  local dir=$1 name
  for name in "${wanted[@]}"; do [ -x "$dir/$name" ] || echo "$name"; done
}

progress() { # a line every 15 s until it is killed
  local name=$1 at=$2 start=$SECONDS
  while sleep 15 && kill -0 $$ 2>/dev/null; do say "building $name ($at), $((SECONDS - start)) s"; done
}

build_tools() {
  local name gone cache key out need have oldest todo i start ticker
  for name in "${wanted[@]}"; do
    package_of "$name" >/dev/null || die "no such binary: $name (there are: ${all[*]})"
  done

  if [ -n "$given" ]; then
    gone=$(missing_in "$given" | paste -sd' ')
    [ -z "$gone" ] || die "$given_by=$given has no: $gone. Put them there, or unset the variable and let this script build them."
    echo "$given"
    return
  fi

  cache=${BERTH_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/berth}/$kind
  key=$({ cat "$here/go.mod" "$here/go.sum"; echo "recipe $recipe"; } | sha256sum | cut -c1-16)
  out=$cache/$key
  if [ -z "$(missing_in "$out")" ]; then
    echo "$out"
    return
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

  mapfile -t todo < <(missing_in "$out")
  [ ${#todo[@]} -eq 0 ] || say "building ${todo[*]} with Go $have; $takes on two cores the first time, then never again"
  i=0
  for name in "${todo[@]}"; do
    i=$((i + 1))
    start=$SECONDS
    progress "$name" "$i of ${#todo[@]}" 9>&- &
    ticker=$!
    trap "kill $ticker 2>/dev/null || true; rm -f '$out/.$name.$$'" EXIT
    (cd "$here" && CGO_ENABLED=0 go build -mod=readonly -trimpath -buildvcs=false -ldflags "$ldflags" -o "$out/.$name.$$" "$(package_of "$name")") >&2 9>&- ||
      die "go could not build $name; its own message is above. No network? 'go mod download' in ${here##*/} must succeed once."
    mv "$out/.$name.$$" "$out/$name"
    kill $ticker 2>/dev/null || true
    wait $ticker 2>/dev/null || true
    trap - EXIT
    say "$name is ready after $((SECONDS - start)) s ($i of ${#todo[@]})"
  done
  echo "$out"
}
