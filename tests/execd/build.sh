#!/usr/bin/env bash
# Builds the stand-in as one static file, whose libraries are those of the ordinary build, as deploy/image/build.sh does; prints its path.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here/../.."
unset "${!CARGO_PKG_@}" "${!CARGO_MANIFEST_@}"
built=$(cargo build --locked --workspace --bin execd-standin --message-format=json-render-diagnostics)
file=$(grep -o '[^"]*/libexecd_standin-[0-9a-f]*\.rlib' <<<"$built" | head -n 1)
[ -f "$file" ] || { echo "execd: cargo named no libexecd_standin.rlib" >&2; exit 1; }
target=${file%/*}/..
out=$target/execd-standin-static
partial=$out.$$
rustc --crate-name execd_standin_main --edition 2024 --crate-type bin tests/execd/src/main.rs --extern "execd_standin=$file" \
  -L "dependency=${file%/*}" -L "dependency=$target/deps" -C target-feature=+crt-static -C strip=debuginfo -o "$partial"
if ldd "$partial" 2>/dev/null | grep -q '=>'; then
  echo "execd: the binary is not static" >&2
  exit 1
fi
mv "$partial" "$out"
realpath "$out"
