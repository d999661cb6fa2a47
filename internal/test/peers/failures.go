package main

import (
	"k8s.io/component-base/metrics/testutil"
	proxyconfig "k8s.io/kubernetes/pkg/proxy/apis/config"
	"k8s.io/kubernetes/pkg/proxy/metrics"
)

// failures counts the failed syncs of a proxier. Only its metrics and its log report them.
type failures struct{ mode proxyconfig.ProxyMode }

var (
	nftablesFailures = failures{proxyconfig.ProxyModeNFTables}
	iptablesFailures = failures{proxyconfig.ProxyModeIPTables}
)

func (f failures) count() float64 {
	metrics.RegisterMetrics(f.mode) // does nothing but the first time
	sum := 0.0
	for _, fam := range []string{"IPv4", "IPv6"} {
		c := metrics.IPTablesRestoreFailuresTotal.WithLabelValues(fam)
		if f.mode == proxyconfig.ProxyModeNFTables {
			c = metrics.NFTablesSyncFailuresTotal.WithLabelValues(fam)
		}
		if v, err := testutil.GetCounterMetricValue(c); err == nil {
			sum += v
		}
	}
	return sum
}
