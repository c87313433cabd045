#!/usr/bin/env bash
# Fetches the Prometheus operator's CRDs once into a cache outside the clone; the last line on stdout is their folder.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
module=github.com/prometheus-operator/prometheus-operator
version=$(sed -n "s#^require $module ##p" "$here/go.mod")
out=${BERTH_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/berth}/promoperator/$version

if [ ! -d "$out" ]; then
  [ -n "$(command -v go || true)" ] || PATH=$PATH:/usr/local/go/bin
  # Checked against go.sum by Go itself.
  dir=$(cd "$here" && go mod download -json "$module" | sed -n 's/^\t"Dir": "\(.*\)",\{0,1\}$/\1/p') || dir=
  [ -d "$dir" ] || { echo "promoperator: cannot fetch $module $version; 'go mod download' in tests/promoperator must succeed once." >&2; exit 1; }
  mkdir -p "${out%/*}"
  rm -rf "$out.$$"
  cp -r "$dir/example/prometheus-operator-crd" "$out.$$"
  chmod -R u+w "$out.$$"
  # A parallel run may have been first; both copies are the same.
  mv -T "$out.$$" "$out" 2>/dev/null || rm -rf "$out.$$"
fi
echo "$out"
