package health

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/node"
	"github.com/kernlb/kernlb/dataplane/silence"
	"github.com/kernlb/kernlb/servicemodel"
)

// ProxyConfig tunes a [Proxy]. A nil *ProxyConfig is the zero ProxyConfig.
type ProxyConfig struct {
	// Timeout is the time for which a state may wait to reach the kernel before the proxy counts as
	// unhealthy. Zero means 60 s, twice kube-proxy's default syncPeriod.
	Timeout time.Duration
	// RequireState makes the proxy unhealthy until a first state is in the kernel; /livez ignores
	// it. By default, as in kube-proxy, a proxy is healthy if no state was requested.
	RequireState bool
	// Eligible says whether this node should get new connections from outside. If not, /healthz
	// answers 503; /livez ignores it. In kube-proxy a node is eligible if its Node object is known,
	// is not being deleted, and has no taint ToBeDeletedByClusterAutoscaler. Nil means always
	// eligible.
	Eligible func() bool
	// Problems returns problems of the program's input that the engine does not see, such as a
	// broken manifest, one line each. Answers include them. Nil means no problems.
	Problems func() []string
	// Silent returns the endpoints that do not answer clients, ejected or on trial, such as
	// [silence.Follower.Silent]. Answers include them. Nil means no endpoints.
	Silent func() []silence.Change
	// Node checks the node for the services in the kernel, such as [node.Checker.Report]. The
	// result is part of the JSON of /healthz. It does not affect the status code. Nil means no
	// checks.
	Node func(context.Context, *servicemodel.Table) *node.Report
	// Families are the families that the answers list. Nil means both.
	Families []servicemodel.Family
}

// Proxy reports whether the desired states of an engine reach the kernel in time. Create it with
// [NewProxy]. Its methods are safe for concurrent use.
type Proxy struct {
	engine  *dataplane.Engine
	cfg     ProxyConfig
	started time.Time
	serving ServingCache
}

// NewProxy returns the health of a proxy that runs the engine. A nil engine counts as idle.
func NewProxy(e *dataplane.Engine, cfg *ProxyConfig) *Proxy {
	p := &Proxy{engine: cmp.Or(e, new(dataplane.Engine)), cfg: *cmp.Or(cfg, &ProxyConfig{}),
		started: time.Now()}
	p.cfg.Timeout = cmp.Or(p.cfg.Timeout, time.Minute)
	if p.cfg.Eligible == nil {
		p.cfg.Eligible = func() bool { return true }
	}
	if p.cfg.Problems == nil {
		p.cfg.Problems = func() []string { return nil }
	}
	if p.cfg.Silent == nil {
		p.cfg.Silent = func() []silence.Change { return nil }
	}
	if p.cfg.Families == nil {
		p.cfg.Families = []servicemodel.Family{servicemodel.IPv4, servicemodel.IPv6}
	}
	return p
}

// Healthy reports false if a state has been waiting to reach the kernel for longer than
// [ProxyConfig.Timeout] or, with [ProxyConfig.RequireState], if no state is in the kernel yet.
func (p *Proxy) Healthy() bool {
	healthy, _ := p.health(time.Now())
	return healthy && p.ready()
}

// ready reports whether a state is in the kernel, if that is required.
func (p *Proxy) ready() bool {
	return !p.cfg.RequireState || !p.engine.Status().Succeeded.IsZero()
}

// health also returns the time at which the kernel was last up to date; before the first apply,
// that is the time at which p was created.
func (p *Proxy) health(now time.Time) (healthy bool, updated time.Time) {
	s := p.engine.Status()
	if updated = s.Succeeded; updated.IsZero() {
		updated = p.started
	}
	return !s.Pending() || now.Sub(s.PendingSince) < p.cfg.Timeout, updated
}

// Handler serves GET /healthz and /livez as kube-proxy does: 200 or 503, with the same JSON. An
// engine writes both families at once, so their health is the same. If services are refused, or the
// program has problems, the JSON lists them. The code stays 200, because everything else is served.
// The JSON of /healthz also has [Serving], and the findings of [ProxyConfig.Node].
func (p *Proxy) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, r *http.Request) {
		eligible := p.cfg.Eligible()
		p.answer(r.Context(), w, &eligible)
	})

	mux.HandleFunc("/livez", func(w http.ResponseWriter, r *http.Request) {
		p.answer(r.Context(), w, nil)
	})
	return mux
}

// proxyHealth and familyHealth are the answer of kube-proxy 1.36
// (pkg/proxy/healthcheck/proxy_health.go), followed by problems that do not make the proxy
// unhealthy.
type proxyHealth struct {
	LastUpdated  time.Time               `json:"lastUpdated"`
	CurrentTime  time.Time               `json:"currentTime"`
	NodeEligible *bool                   `json:"nodeEligible,omitempty"`
	Healthy      bool                    `json:"healthy"`
	Status       map[string]familyHealth `json:"status,omitempty"`
	Serving      *Serving                `json:"serving,omitempty"`
	Node         *node.Report            `json:"node,omitempty"`
	Refused      []dataplane.Refusal     `json:"refused,omitempty"`
	Warnings     servicemodel.Warnings   `json:"warnings,omitzero"`
	Problems     []string                `json:"problems,omitempty"`
	Silent       []silence.Change        `json:"silent,omitempty"`
}

type familyHealth struct {
	LastUpdated time.Time `json:"lastUpdated"`
	Healthy     bool      `json:"healthy"`
}

// nodeLimit limits the time of the checks of the node, because a prober may wait only a second.
const nodeLimit = 500 * time.Millisecond

// answer writes the health of the proxy. If eligible is not nil, the proxy must also be ready, and
// the node eligible.
func (p *Proxy) answer(ctx context.Context, w http.ResponseWriter, eligible *bool) {
	now := time.Now()
	healthy, updated := p.health(now)
	if eligible != nil {
		healthy = healthy && p.ready()
	}
	s := p.engine.Status()
	var serving *Serving
	var checked *node.Report
	if eligible != nil {
		serving = p.serving.Of(s)
	}
	if eligible != nil && p.cfg.Node != nil {
		limited, cancel := context.WithTimeout(ctx, nodeLimit)
		checked = p.cfg.Node(limited, s.Held)
		cancel()
	}

	h := proxyHealth{LastUpdated: updated, CurrentTime: now, NodeEligible: eligible,
		Healthy: healthy, Status: map[string]familyHealth{}, Serving: serving, Node: checked,
		Refused: s.Refused, Warnings: s.Warnings, Problems: p.cfg.Problems(),
		Silent: p.cfg.Silent()}
	for _, f := range p.cfg.Families {
		h.Status[f.String()] = familyHealth{LastUpdated: updated, Healthy: healthy}
	}
	ok := healthy && (eligible == nil || *eligible)
	if ok {
		h.LastUpdated = now // as in kube-proxy, for clients that check its age
	}
	body, _ := json.Marshal(h) // this struct always encodes
	writeHead(w, ok)
	_, _ = w.Write(body) // the client is gone, so the error does not matter
}
