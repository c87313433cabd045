// The Prometheus operator, for the CRDs that its module holds: what the chart's ServiceMonitor and PrometheusRule must satisfy.
module berth.kruntimes.io/promoperator

go 1.26.0

require github.com/prometheus-operator/prometheus-operator v0.85.0
