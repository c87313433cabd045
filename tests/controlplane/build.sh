#!/usr/bin/env bash
# Builds the control plane of the suites once into a cache outside the clone; the last line on stdout is the folder of the binaries.
#
#   build.sh [etcd|kube-apiserver|kube-controller-manager|kube-scheduler|kubelet ...]     (default: all five, in this order)
#
# KUBEBUILDER_ASSETS wins if set; how it is built and cached: ../gotools.sh.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
kind=controlplane
recipe=1
all=(etcd kube-apiserver kube-controller-manager kube-scheduler kubelet)
wanted=("$@")
[ $# -gt 0 ] || wanted=("${all[@]}")
given=${KUBEBUILDER_ASSETS:-}
given_by=KUBEBUILDER_ASSETS
takes="about 17 minutes"

package_of() {
  case $1 in
    etcd) echo go.etcd.io/etcd/server/v3 ;;
    kube-apiserver | kube-controller-manager | kube-scheduler | kubelet) echo "k8s.io/kubernetes/cmd/$1" ;;
    *) return 1 ;;
  esac
}

version=$(sed -n 's#^\tk8s.io/kubernetes ##p' "$here/go.mod" | cut -d' ' -f1)
minor=${version#v1.}
minor=${minor%%.*}
pkg=k8s.io/component-base/version
ldflags="-s -w -X $pkg.gitVersion=$version -X $pkg.gitMajor=1 -X $pkg.gitMinor=$minor"

. "$here/../gotools.sh"
build_tools
