package page

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/flows"
	"github.com/kernlb/kernlb/servicemodel"
)

// dumpTime is the maximum time for reading the conntrack table for one request.
const dumpTime = 10 * time.Second

// conntrackData contains the size and limit of the conntrack table.
type conntrackData struct {
	conntrack.Usage
	Fraction float64 `json:"fraction"`
}

func (p *Page) conntrack(r *http.Request, _ *dataplane.Status) (any, error) {
	if p.cfg.Conntrack == nil {
		return nil, noConntrack()
	}
	u, err := p.cfg.Conntrack.Usage(r.Context())
	if err != nil {
		return nil, err
	}
	return &conntrackData{u, u.Fraction()}, nil
}

func noConntrack() error {
	return &problem{http.StatusNotFound, "this program does not look at conntrack"}
}

// connections counts a service's connections to one of its endpoints, as conntrack sees them.
type connections struct {
	Port     servicemodel.PortName `json:"port"`
	Endpoint netip.AddrPort        `json:"endpoint"`
	// Former says that the service does not send new connections there.
	Former bool `json:"former,omitempty"`
	// Answered counts the connections that the endpoint has answered, and Unanswered the rest.
	// Neither number includes refused connections, because conntrack deletes a connection when it
	// sees the RST (nf_conntrack_tcp_packet in net/netfilter/nf_conntrack_proto_tcp.c).
	Answered   int `json:"answered"`
	Unanswered int `json:"unanswered"`
}

// connectionsOf reads the conntrack table, for one request at a time.
func (p *Page) connectionsOf(ctx context.Context, t *servicemodel.Table, n servicemodel.Name) (
	[]*connections, error) {
	ct := p.cfg.Conntrack
	if ct == nil {
		return nil, noConntrack()
	}
	release, err := p.oneAtATime()
	if err != nil {
		return nil, err
	}
	defer release()
	ctx, stop := context.WithTimeout(ctx, dumpTime)
	defer stop()
	node, err := ct.NodeAddrs(t.Rules().NodePorts)
	if err != nil {
		return nil, fmt.Errorf("count the connections of %v: %w", n, err)
	}
	index := flows.NewIndex(t, node)
	counts := map[connections]*connections{}
	for fl, err := range ct.Flows(ctx, conntrack.Filter{}) {
		if err != nil {
			return nil, fmt.Errorf("count the connections of %v: %w", n, err)
		}
		f := index.Frontend(&fl)
		if f == nil || f.Service.Name != n {
			continue
		}
		key := connections{Port: f.Service, Endpoint: fl.Reply.Src,
			Former: !index.Serves(f, &fl)}
		c := counts[key]
		if c == nil {
			own := key
			c = &own
			counts[key] = c
		}

		c.add(&fl)
	}

	return slices.SortedFunc(maps.Values(counts), (*connections).compare), nil
}

// compare orders by port and endpoint. Former connections come last.
func (c *connections) compare(o *connections) int {
	if order := cmp.Or(c.Port.Compare(o.Port), c.Endpoint.Compare(o.Endpoint)); order != 0 ||
		c.Former == o.Former {
		return order
	}

	if c.Former {
		return 1
	}
	return -1
}

func (c *connections) add(f *conntrack.Flow) {
	if f.Status&conntrack.StatusSeenReply == 0 {
		c.Unanswered++
	} else {
		c.Answered++
	}
}

// oneAtATime lets only one request at a time do expensive work, until release is called.
func (p *Page) oneAtATime() (release func(), err error) {
	select {
	case p.turn <- struct{}{}:
		return func() { <-p.turn }, nil
	default:
		return nil, &problem{http.StatusServiceUnavailable,
			"the same is being found out for somebody else; try again"}
	}
}
