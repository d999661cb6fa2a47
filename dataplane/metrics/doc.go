// Package metrics tells Prometheus what an engine does. It is a module of its own, so that a
// program which does not use it does not depend on Prometheus' client.
//
// [New] makes a collector of an engine, for any registry:
//
//	collector := metrics.New(engine, nil)
//	defer collector.Close()
//	prometheus.MustRegister(collector)
//
// Where kube-proxy has a metric of the same meaning, the name, the labels and the buckets are its
// own (kubeproxy_…), so that dashboards and alerts made for kube-proxy work. An engine writes both
// families at once: each apply is one sync of each of [Config.Families]. The rest has the prefix
// kernlb_. docs/metrics.md lists all of them, and the directory has a dashboard for Grafana
// (dashboard.json) and alerts for Prometheus (alerts.yaml).
//
// # Where the figures come from
//
// Counters and histograms are fed by the engine's events ([dataplane.Engine.Subscribe]), gauges by
// its status at the time of a scrape. So a scrape asks the kernel nothing, reads no table and costs
// the same however many services there are, with two exceptions that are off by default:
// [Config.Conntrack] makes it ask how full the table of connections is, with two small requests,
// and [Config.Connections] makes it read that whole table.
//
// What happened before [New] is not counted.
package metrics
