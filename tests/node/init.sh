#!/usr/bin/env bash
# Process 1 of a test node: containerd and kubelet in a mount and PID namespace of their own, started again when killed.
#
#   init.sh DIR KUBELET RUN      DIR: configuration, images and data; RUN: a short folder for sockets. A file DIR/hold-kubelet or DIR/hold-containerd keeps
#                                that one down after it was killed.
set -u
dir=$1 kubelet=$2 run=$3

# What is mounted here stays here; but mounts must propagate to containers.
mount --make-rprivate /
mount --make-rshared /
# The kubelet sets six sysctls of the whole machine: it gets files instead.
while read -r fake real; do mount --bind "$fake" "$real"; done <"$dir/fake/list"

again() { # again NAME COMMAND...
  local name=$1
  shift
  while :; do
    "$@" >>"$dir/$name.log" 2>&1
    while [ -e "$dir/hold-$name" ]; do sleep 0.1; done
    sleep 0.5
  done
}

again containerd containerd --config "$dir/containerd.toml" &
for _ in $(seq 200); do
  ctr -a "$run/c.sock" version >/dev/null 2>&1 && break
  sleep 0.1
done
for image in "$dir"/images/*.tar; do
  ctr -a "$run/c.sock" -n k8s.io images import "$image" || exit 1
done
again kubelet "$kubelet" --config "$dir/kubelet.yaml" --kubeconfig "$dir/node.kubeconfig" --hostname-override n1 --root-dir "$dir/kubelet" \
  --cert-dir "$dir/pki" --node-ip "$(cat "$dir/address")" --v=2
