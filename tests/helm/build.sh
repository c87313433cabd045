#!/usr/bin/env bash
# Builds the helm of the suites once into a cache outside the clone; the last line on stdout is the folder of the binary.
#
#   build.sh
#
# HELM_DIR, a folder that holds a helm, wins if set; how it is built and cached: ../gotools.sh.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
kind=helm
recipe=1
all=(helm)
wanted=(helm)
given=${HELM_DIR:-}
given_by=HELM_DIR
takes="about 3 minutes"

package_of() { echo helm.sh/helm/v4/cmd/helm; }

version=$(sed -n 's#^\thelm.sh/helm/v4 ##p' "$here/go.mod" | cut -d' ' -f1)
ldflags="-s -w -X helm.sh/helm/v4/internal/version.version=$version"

. "$here/../gotools.sh"
build_tools
