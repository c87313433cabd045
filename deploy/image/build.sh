#!/usr/bin/env bash
# Builds an image with the Docker engine of this machine.
#
#   build.sh [NAME:TAG]          (default: <program>:<version of the workspace>)
#
# PROGRAM is berth (default) or runtimed, whose image also has a busybox (Debian's busybox-static, or BUSYBOX). PROFILE picks Cargo's
# profile (release; the suites take dev, whose crates are built already). The libraries are those of the ordinary build: only the last
# step, which makes a program of them, differs, so it is done here by hand: C's library goes into the file too, and nothing is left to
# look for in an image that has no other library.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$root/Cargo.toml" | head -n 1)
program=${PROGRAM:-berth}
name=${1:-$program:$version}
profile=${PROFILE:-release}
case $program in
  berth) library=berth_scheduler main=scheduler/src/main.rs ;;
  runtimed) library=berth_runtimed main=controllers/runtimed/src/main.rs ;;
  *) echo "image: PROGRAM is berth or runtimed, not $program" >&2; exit 1 ;;
esac

cd "$root"
# A cargo that runs us, as that of the suites does, leaves these; ring's build script looks at them, so that everything would be built anew.
unset "${!CARGO_PKG_@}" "${!CARGO_MANIFEST_@}"
# The whole workspace, as everywhere, so that one set of features and one build serve all.
built=$(cargo build --locked --workspace --bin berth --bin runtimed --profile "$profile" --message-format=json-render-diagnostics)
file=$(grep -o "[^\"]*/lib$library-[0-9a-f]*\.rlib" <<<"$built" | head -n 1)
[ -f "$file" ] || { echo "image: cargo named no lib$library.rlib" >&2; exit 1; }

flags=(-C strip=debuginfo)
[ "$profile" != release ] || flags+=(-C opt-level=3 -C lto=thin) # as the profile in Cargo.toml says
context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
rustc --crate-name "$program" --edition 2024 --crate-type bin "$main" --extern "$library=$file" \
  -L "dependency=${file%/*}" -C target-feature=+crt-static "${flags[@]}" -o "$context/$program"
if ldd "$context/$program" 2>/dev/null | grep -q '=>'; then
  echo "image: the binary is not static" >&2
  exit 1
fi
cp LICENSE "$context"
if [ "$program" = berth ]; then
  cp "$here/Dockerfile" "$context"
else
  cp "$here/runtimed.Dockerfile" "$context/Dockerfile"
  busybox=${BUSYBOX:-/bin/busybox}
  [ -x "$busybox" ] || { echo "image: no $busybox: apt-get install busybox-static, or set BUSYBOX to a static one" >&2; exit 1; }
  mkdir -p "$context/files/bin" "$context/files/etc" "$context/files/workspace"
  install -d -m 1777 "$context/files/tmp"
  install -m 755 "$busybox" "$context/files/bin/busybox"
  for applet in $("$busybox" --list); do
    [ "$applet" = busybox ] || ln -s busybox "$context/files/bin/$applet"
  done
  printf 'root:x:0:0:root:/root:/bin/sh\nrun:x:65532:65532:run:/workspace:/bin/sh\n' >"$context/files/etc/passwd"
fi
docker build --quiet --tag "$name" "$context" >/dev/null
echo "$name"
