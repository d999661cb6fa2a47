package page

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/servicemodel"
)

// Limits of a request that connects to endpoints: the number of endpoints, the number at a time,
// and the time.
const (
	maxAsked    = 64
	askedAtOnce = 16
	askPatience = time.Second
)

// askData holds the answers of the endpoints of a service.
type askData struct {
	Name    servicemodel.Name `json:"name"`
	Answers []answer          `json:"answers"`
	// Left is the number of endpoints that were not tried: all UDP and SCTP endpoints, and all
	// endpoints after the first 64.
	Left int `json:"left,omitzero"`
}

// answer is the result of a connection to an endpoint.
type answer struct {
	Endpoint netip.AddrPort `json:"endpoint"`
	OK       bool           `json:"ok"`
	Says     string         `json:"says"`
}

// ask opens a TCP connection from this node to each used endpoint of a service, and closes it at
// once.
func (p *Page) ask(r *http.Request, s *dataplane.Status) (any, error) {
	if p.cfg.Dial == nil {
		return nil, &problem{http.StatusNotFound, "this program does not ask endpoints"}
	}
	l, e, err := p.named(r.FormValue("name"), s)
	if err != nil {
		return nil, err
	}
	release, err := p.oneAtATime()
	if err != nil {
		return nil, err
	}
	defer release()
	d := &askData{Name: e.name, Answers: []answer{}}
	type target struct {
		protocol servicemodel.Protocol
		endpoint netip.AddrPort
	}
	seen := map[target]bool{}
	for _, f := range e.frontends {
		for slot := range l.Held.Slots(f) {
			at := target{f.Service.Protocol, slot.Endpoint}
			if at.endpoint.Port() == 0 { // ask only the first port of a range
				at.endpoint = netip.AddrPortFrom(at.endpoint.Addr(), f.Key.Port)
			}
			switch {
			case seen[at]:
			case at.protocol != servicemodel.TCP || len(d.Answers) == maxAsked:
				d.Left++
			default:
				d.Answers = append(d.Answers, answer{Endpoint: at.endpoint})
			}

			seen[at] = true
		}
	}

	p.askAll(r.Context(), d.Answers)
	slices.SortFunc(d.Answers, func(a, b answer) int { return a.Endpoint.Compare(b.Endpoint) })
	return d, nil
}

// askAll connects to a few endpoints at a time, and waits for all of them.
func (p *Page) askAll(ctx context.Context, l []answer) {
	var all sync.WaitGroup
	turns := make(chan struct{}, askedAtOnce)
	for i := range l {
		turns <- struct{}{}
		all.Go(func() {
			defer func() { <-turns }()
			p.askOne(ctx, &l[i])
		})
	}

	all.Wait()
}

func (p *Page) askOne(ctx context.Context, a *answer) {
	ctx, stop := context.WithTimeout(ctx, askPatience)
	defer stop()
	conn, err := p.cfg.Dial(ctx, "tcp", a.Endpoint.String())
	timeout, ok := errors.AsType[net.Error](err)
	switch {
	case err == nil:
		conn.Close()
		a.OK, a.Says = true, "answers"
	case errors.Is(err, syscall.ECONNREFUSED):
		a.Says = "refuses connections: nothing listens there"
	case ok && timeout.Timeout():
		a.Says = "does not answer: it is not reached, or a firewall drops the packets or the " +
			"answers"
	default:
		a.Says = cmp.Or(errors.Unwrap(err), err).Error()
	}
}
