#!/usr/bin/env bash
# Builds the image with the Docker engine of this machine.
#
#   build.sh [NAME:TAG]          (default: berth:<version of the workspace>)
#
# PROFILE picks Cargo's profile (release; the suites take dev, whose crates are built already). The libraries are those of the
# ordinary build: only the last step, which makes a program of them, differs, so it is done here by hand: C's library goes into
# the file too, and nothing is left to look for in an image that has no other file.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$root/Cargo.toml" | head -n 1)
name=${1:-berth:$version}
profile=${PROFILE:-release}

cd "$root"
# A cargo that runs us, as that of the suites does, leaves these; ring's build script looks at them, so that everything would be built anew.
unset "${!CARGO_PKG_@}" "${!CARGO_MANIFEST_@}"
# The whole workspace, as everywhere, so that one set of features and one build serve all.
built=$(cargo build --locked --workspace --bin berth --profile "$profile" --message-format=json-render-diagnostics)
library=$(grep -o '[^"]*/libberth_scheduler-[0-9a-f]*\.rlib' <<<"$built" | head -n 1)
[ -f "$library" ] || { echo "image: cargo named no libberth_scheduler.rlib" >&2; exit 1; }

flags=(-C strip=debuginfo)
[ "$profile" != release ] || flags+=(-C opt-level=3 -C lto=thin) # as the profile in Cargo.toml says
context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
rustc --crate-name berth --edition 2024 --crate-type bin scheduler/src/main.rs --extern "berth_scheduler=$library" \
  -L "dependency=${library%/*}" -C target-feature=+crt-static "${flags[@]}" -o "$context/berth"
cp "$here/Dockerfile" LICENSE "$context"
if ldd "$context/berth" 2>/dev/null | grep -q '=>'; then
  echo "image: the binary is not static" >&2
  exit 1
fi
docker build --quiet --tag "$name" "$context" >/dev/null
echo "$name"
