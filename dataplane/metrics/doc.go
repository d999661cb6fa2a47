// Package metrics exports metrics about an engine for Prometheus. It is a separate module, so that
// other programs do not depend on Prometheus' client.
//
// [New] returns a collector for an engine, which any registry accepts:
//
//	collector := metrics.New(engine, nil)
//	defer collector.Close()
//	prometheus.MustRegister(collector)
//
// If kube-proxy has a metric with the same meaning, the name, labels and buckets are the same
// (kubeproxy_…), so that dashboards and alerts for kube-proxy work. An engine writes both families
// at once: each apply counts as one sync of each of [Config.Families]. All other metrics have the
// prefix kernlb_. docs/metrics.md lists all of them. The package's directory contains a dashboard
// for Grafana (dashboard.json) and alerts for Prometheus (alerts.yaml).
//
// # Where the figures come from
//
// Counters and histograms come from the engine's events ([dataplane.Engine.Subscribe]), and gauges
// from its status at the time of a scrape. So a scrape sends no requests to the kernel. The first
// scrape after a change counts services by the outcome for their clients (kernlb_services), which
// takes about 15 ms for 10,000 services. All other scrapes cost the same for any number of
// services. Three settings that are off by default change this. With [Config.Conntrack], a scrape
// sends two small requests for the size and limit of the conntrack table. With
// [Config.Connections], it reads that whole table. With [Config.Counters], it reads the counters of
// services.
//
// Events before the call of [New] are not counted.
package metrics
