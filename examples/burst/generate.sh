#!/usr/bin/env bash
# Prints a world for `berth simulate`: N Runs (10,000 unless told) that arrive within a second, and enough Runtime Pods for all.
#
# Every tenth Run belongs to a cohort that wants one Pod, every tenth keeps away from its like, the others just want room.
set -euo pipefail
n=${1:-10000}
exec awk -v n="$n" 'BEGIN {
  pods = int(n / 20) + 5
  print "{\"apiVersion\":\"v1\",\"kind\":\"List\",\"items\":["
  for (i = 0; i < pods; i++)
    printf "{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"metadata\":{\"namespace\":\"burst\",\"name\":\"bash-%05d\",\"labels\":{\"runtime\":\"bash\"},\"annotations\":{\"kruntimes.io/capacity.runs\":\"%d\"}},\"spec\":{\"containers\":[{\"name\":\"runtime\",\"image\":\"bash\"}]}},\n", i, 28 + i % 3 * 4
  for (i = 0; i < n; i++) {
    labels = "\"burst\":\"yes\""; affinity = ""
    term = "{\"labelSelector\":{\"matchLabels\":{\"%s\":\"%d\"}},\"topologyKey\":\"kruntimes.io/runtime-pod\"}"
    if (i % 10 == 0) {
      labels = sprintf("\"cohort\":\"%d\"", i / 100)
      affinity = sprintf(",\"affinity\":{\"runAffinity\":{\"requiredDuringSchedulingIgnoredDuringExecution\":[" term "]}}", "cohort", i / 100)
    } else if (i % 10 == 5) {
      labels = sprintf("\"spread\":\"%d\"", i / 1000)
      affinity = sprintf(",\"affinity\":{\"runAntiAffinity\":{\"requiredDuringSchedulingIgnoredDuringExecution\":[" term "]}}", "spread", i / 1000)
    }
    printf "{\"apiVersion\":\"kruntimes.io/v1alpha1\",\"kind\":\"Run\",\"metadata\":{\"namespace\":\"burst\",\"name\":\"run-%05d\",\"labels\":{%s}},\"spec\":{\"runtime\":\"bash\",\"mode\":{\"task\":{}}%s}}%s\n", i, labels, affinity, (i < n - 1 ? "," : "")
  }
  print "]}"
}'
