package metrics

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// CountProbes returns a handler that counts the answers of h at /healthz and /livez by code, as
// kubeproxy_proxy_healthz_total and kubeproxy_proxy_livez_total. h is the handler of package
// dataplane/health:
//
//	http.ListenAndServe(addr, collector.CountProbes(proxy.Handler()))
func (c *Collector) CountProbes(h http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", h)
	mux.Handle("/healthz", promhttp.InstrumentHandlerCounter(c.proxy.healthz, h))
	mux.Handle("/livez", promhttp.InstrumentHandlerCounter(c.proxy.livez, h))
	return mux
}
