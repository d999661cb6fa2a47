package serve

import (
	"k8s.io/component-base/metrics/testutil"
	proxyconfig "k8s.io/kubernetes/pkg/proxy/apis/config"
	"k8s.io/kubernetes/pkg/proxy/metrics"
)

// Failures counts the failed syncs of a proxier. Only its metrics and its log report them.
type Failures struct{ mode proxyconfig.ProxyMode }

// The failures of the two kinds of proxiers.
var (
	NFTablesFailures = Failures{proxyconfig.ProxyModeNFTables}
	IPTablesFailures = Failures{proxyconfig.ProxyModeIPTables}
)

func (f Failures) count() float64 {
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
