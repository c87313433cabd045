{{/* Names and labels that more than one template uses. */}}

{{- define "berth.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Who a Pod of this release is; never changes, as a Deployment's selector can't. */}}
{{- define "berth.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "berth.labels" -}}
{{ include "berth.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: scheduler
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "berth.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "berth.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* The release's name among objects of no namespace: another release of that name elsewhere must not claim them. */}}
{{- define "berth.clusterName" -}}
{{- $name := include "berth.fullname" . -}}
{{- if eq $name .Release.Namespace -}}
{{- $name -}}
{{- else -}}
{{- printf "%s-%s" .Release.Namespace $name -}}
{{- end -}}
{{- end -}}

{{/* Of a duration as values.schema.json lets it through: a whole number of ms, s or m. */}}
{{- define "berth.milliseconds" -}}
{{- if hasSuffix "ms" . -}}
{{- trimSuffix "ms" . -}}
{{- else if hasSuffix "s" . -}}
{{- mul 1000 (trimSuffix "s" . | int64) -}}
{{- else -}}
{{- mul 60000 (trimSuffix "m" . | int64) -}}
{{- end -}}
{{- end -}}

{{/* What values.schema.json can't say. */}}
{{- define "berth.check" -}}
{{- with .Values.leaderElection -}}
{{- $lease := include "berth.milliseconds" .leaseDuration | int64 -}}
{{- $renew := include "berth.milliseconds" .renewDeadline | int64 -}}
{{- $retry := include "berth.milliseconds" .retryPeriod | int64 -}}
{{- if and .enabled (ge $renew $lease) -}}
{{- fail (printf "leaderElection.renewDeadline (%s) must be less than leaderElection.leaseDuration (%s)" .renewDeadline .leaseDuration) -}}
{{- end -}}
{{- if and .enabled (ge (mul 12 $retry) (mul 10 $renew)) -}}
{{- fail (printf "leaderElection.retryPeriod (%s) times 1.2 must be less than leaderElection.renewDeadline (%s)" .retryPeriod .renewDeadline) -}}
{{- end -}}
{{- end -}}
{{- $runtimes := dict -}}
{{- range .Values.runtimes -}}
{{- $namespace := default $.Release.Namespace .namespace -}}
{{- $key := printf "%s/%s" $namespace .name -}}
{{- if hasKey $runtimes $key -}}
{{- fail (printf "runtimes: two entries are called %s in namespace %s" .name $namespace) -}}
{{- end -}}
{{- $_ := set $runtimes $key true -}}
{{- if and $.Values.watchNamespace (ne $.Values.watchNamespace $namespace) -}}
{{- fail (printf "runtimes: %s is in namespace %s, but only watchNamespace (%s) is served" .name $namespace $.Values.watchNamespace) -}}
{{- end -}}
{{- $name := .name -}}
{{- range .args -}}
{{- if regexMatch "^--(pod-name|pod-namespace|pod-uid|runtime-name|root|run-as|kubeconfig|health-addr|log-format)(=|$)" . -}}
{{- fail (printf "runtimes: %s: args: %s is the chart's own" $name .) -}}
{{- end -}}
{{- end -}}
{{- range .env -}}
{{- if has .name (list "POD_NAME" "POD_NAMESPACE" "POD_UID" "RUNTIME_NAME" "KUBECONFIG") -}}
{{- fail (printf "runtimes: %s: env: %s is the agent's own" $name .name) -}}
{{- end -}}
{{- end -}}
{{- range .volumes -}}
{{- if has .name (list "workspace" "agent" "tmp") -}}
{{- fail (printf "runtimes: %s: volumes: the name %s is the chart's own" $name .name) -}}
{{- end -}}
{{- end -}}
{{- range .volumeMounts -}}
{{- if or (eq (clean .mountPath) "/") (regexMatch "^/+(workspace|tmp|runtimed\\.bin)(/|$)" (clean .mountPath)) -}}
{{- fail (printf "runtimes: %s: volumeMounts: %s is the chart's own; neither /, nor /workspace, /tmp or /runtimed.bin or below" $name .mountPath) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $label, $_ := .Values.podLabels -}}
{{- if hasKey (include "berth.labels" $ | fromYaml) $label -}}
{{- fail (printf "podLabels.%s is the chart's own" $label) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.jobs.openSandbox.enabled (not .Values.jobs.enabled) -}}
{{- fail "jobs.openSandbox.enabled needs jobs.enabled" -}}
{{- end -}}
{{- if and (not .Values.serviceAccount.create) (eq .Values.serviceAccount.name "") .Values.rbac.create -}}
{{- fail "serviceAccount.name is needed where serviceAccount.create is false: rights are not given to the account `default`" -}}
{{- end -}}
{{- end -}}

{{/* How the endpoints are spoken to. */}}
{{- define "berth.scheme" -}}
{{- ternary "https" "http" (or .Values.metrics.secure (ne .Values.metrics.tlsSecret "")) -}}
{{- end -}}

{{- define "berth.leaseName" -}}
{{- default (include "berth.fullname" .) .Values.leaderElection.resourceName -}}
{{- end -}}

{{- define "berth.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{- define "berth.runtimedLabels" -}}
app.kubernetes.io/name: runtimed
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: runtime
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "berth.runtimedImage" -}}
{{- with .Values.runtimed.image -}}
{{- if .digest -}}
{{- printf "%s@%s" .repository .digest -}}
{{- else -}}
{{- printf "%s:%s" .repository (default $.Chart.AppVersion .tag) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The BerthConfiguration of the ConfigMap: the values, with requireWorkspaceAgent for each profile that leaves it open. */}}
{{- define "berth.configuration" -}}
{{- $configuration := deepCopy (default dict .Values.configuration) -}}
{{- $profiles := list -}}
{{- range default (list (dict "schedulerName" "default")) $configuration.profiles -}}
{{- $profile := . -}}
{{- $off := false -}}
{{- range $point, $set := $profile.plugins -}}
{{- range $set.disabled -}}
{{- if has .name (list "*" "WorkspaceFencing") -}}{{- $off = true -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- if and $.Values.requireWorkspaceAgent (not $off) -}}
{{- $found := false -}}
{{- range $profile.pluginConfig -}}
{{- if eq .name "WorkspaceFencing" -}}
{{- $found = true -}}
{{- $args := default dict .args -}}
{{- if not (hasKey $args "requireWorkspaceAgent") -}}
{{- $_ := set . "args" (set $args "requireWorkspaceAgent" true) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if not $found -}}
{{- $own := dict "name" "WorkspaceFencing" "args" (dict "requireWorkspaceAgent" true) -}}
{{- $_ := set $profile "pluginConfig" (append (default list $profile.pluginConfig) $own) -}}
{{- end -}}
{{- end -}}
{{- $profiles = append $profiles $profile -}}
{{- end -}}
{{- $_ := set $configuration "profiles" $profiles -}}
apiVersion: berth.kruntimes.io/v1alpha1
kind: BerthConfiguration
{{ toYaml $configuration }}
{{- end -}}
