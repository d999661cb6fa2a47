package health

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/servicemodel"
)

// ProxyConfig tunes a [Proxy]. A nil *ProxyConfig is the zero ProxyConfig.
type ProxyConfig struct {
	// Timeout is how long a state may wait for the kernel before the proxy counts as unhealthy.
	// Zero means 60 s, twice kube-proxy's default syncPeriod.
	Timeout time.Duration
	// Eligible says whether new connections from outside are welcome on this node; if not, /healthz
	// answers 503 and /livez does not care. Kube-proxy's node is eligible if its Node object is
	// known, is not being deleted, and has no taint ToBeDeletedByClusterAutoscaler. Nil means
	// always.
	Eligible func() bool
	// Families are those that the answers list. Nil means both.
	Families []servicemodel.Family
}

// Proxy says whether what is wanted of an engine reaches the kernel in time. It must be made by
// [NewProxy]. Its methods may be called by several goroutines.
type Proxy struct {
	engine  *dataplane.Engine
	cfg     ProxyConfig
	started time.Time
}

// NewProxy returns the health of a proxy that runs the engine.
func NewProxy(e *dataplane.Engine, cfg *ProxyConfig) *Proxy {
	p := &Proxy{engine: e, started: time.Now()}
	if cfg != nil {
		p.cfg = *cfg
	}
	if p.cfg.Timeout == 0 {
		p.cfg.Timeout = time.Minute
	}
	if p.cfg.Eligible == nil {
		p.cfg.Eligible = func() bool { return true }
	}
	if p.cfg.Families == nil {
		p.cfg.Families = []servicemodel.Family{servicemodel.IPv4, servicemodel.IPv6}
	}
	return p
}

// Healthy reports whether no state has been waiting for the kernel for longer than
// [ProxyConfig.Timeout]. A proxy that is asked for nothing is healthy.
func (p *Proxy) Healthy() bool {
	healthy, _ := p.health(time.Now())
	return healthy
}

// health also returns when the kernel was last brought up to date, at first when p was made.
func (p *Proxy) health(now time.Time) (healthy bool, updated time.Time) {
	s := p.engine.Status()
	if updated = s.Succeeded; updated.IsZero() {
		updated = p.started
	}
	return !s.Pending() || now.Sub(s.PendingSince) < p.cfg.Timeout, updated
}

// Handler serves GET /healthz and /livez as kube-proxy does: 200 or 503, with the same JSON. An
// engine writes both families at once, so both have the same health.
func (p *Proxy) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		eligible := p.cfg.Eligible()
		p.answer(w, &eligible)
	})
	mux.HandleFunc("/livez", func(w http.ResponseWriter, _ *http.Request) { p.answer(w, nil) })
	return mux
}

// proxyHealth and familyHealth are what kube-proxy 1.36 answers
// (pkg/proxy/healthcheck/proxy_health.go).
type proxyHealth struct {
	LastUpdated  time.Time               `json:"lastUpdated"`
	CurrentTime  time.Time               `json:"currentTime"`
	NodeEligible *bool                   `json:"nodeEligible,omitempty"`
	Healthy      bool                    `json:"healthy"`
	Status       map[string]familyHealth `json:"status,omitempty"`
}

type familyHealth struct {
	LastUpdated time.Time `json:"lastUpdated"`
	Healthy     bool      `json:"healthy"`
}

// answer says whether the proxy is healthy and, if that counts, the node eligible.
func (p *Proxy) answer(w http.ResponseWriter, eligible *bool) {
	now := time.Now()
	healthy, updated := p.health(now)
	h := proxyHealth{LastUpdated: updated, CurrentTime: now, NodeEligible: eligible,
		Healthy: healthy, Status: map[string]familyHealth{}}
	for _, f := range p.cfg.Families {
		h.Status[f.String()] = familyHealth{LastUpdated: updated, Healthy: healthy}
	}
	ok := healthy && (eligible == nil || *eligible)
	if ok {
		h.LastUpdated = now // as kube-proxy has it, for those who look at its age
	}
	body, _ := json.Marshal(h) // times, booleans and strings can be written
	writeHead(w, ok)
	_, _ = w.Write(body) // an asker that is gone has no use for an error
}
