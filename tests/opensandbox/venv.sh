#!/usr/bin/env bash
# Installs the real opensandbox-server and the vendor's SDK from PyPI into the cache, once for each content of requirements.txt; prints the folder.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${BERTH_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/berth}/opensandbox
python=${PYTHON:-python3}
key=$({ cat "$here/requirements.txt"; "$python" --version; } | sha256sum | cut -c1-16)
folder=$cache/$key
if [ ! -e "$folder/complete" ]; then
  mkdir -p "$cache"
  exec 9>"$cache/lock"
  flock 9
  if [ ! -e "$folder/complete" ]; then
    echo "opensandbox: installing server and SDK from PyPI into $folder" >&2
    rm -rf "$folder"
    "$python" -m venv "$folder" >&2 || { echo "opensandbox: no venv. Fix: apt-get install python3-venv" >&2; exit 1; }
    "$folder/bin/pip" install --quiet --disable-pip-version-check --no-deps --requirement "$here/requirements.txt" >&2 ||
      { echo "opensandbox: not installed (see above). Fix: let this machine reach PyPI, or name a mirror in PIP_INDEX_URL" >&2; exit 1; }
    touch "$folder/complete"
  fi
fi
echo "$folder"
