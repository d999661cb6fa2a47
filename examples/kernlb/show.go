package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/counters"
	"github.com/kernlb/kernlb/servicemodel"
)

// row is one frontend, as show prints it.
type row struct {
	key        servicemodel.FrontendKey
	Address    string // "*" for any address of the node
	Family     string
	Port       uint16
	Protocol   string
	Service    string
	Kind       string
	Verdict    string
	Endpoints  []endpoint
	External   *external
	Masquerade string
	Affinity   int
	Sources    []string
	Cause      string // why it rejects or drops
}

// external is what outside clients get, where that differs.
type external struct {
	Verdict   string
	Endpoints []endpoint
}

type endpoint struct {
	Address string
	Weight  uint16
}

func (p *program) show(ctx context.Context) error {
	wanted, err := p.wanted()
	if err != nil {
		return err
	}
	cause := causes(wanted)
	p.findBackend(ctx)
	return p.withEngine(ctx, servicemodel.State{},
		func(ctx context.Context, e *dataplane.Engine) error {
			o, err := e.Observe(ctx)
			if err != nil {
				return err
			}
			if o.Table, err = p.opts.show.filtered(o.Table); err != nil {
				return err
			}
			if p.opts.show.diff {
				if wanted, err = p.opts.show.filtered(wanted); err != nil {
					return err
				}
				return p.printDiff(o.Table, wanted, o.Drift)
			}
			rows := []row{}
			for f := range o.Table.Frontends() {
				r := newRow(o.Table, f)
				r.Cause = cause(o.Table, f)
				rows = append(rows, r)
			}
			c, err := p.counted(ctx, o.Table)
			switch {
			case err != nil:
				return err
			case p.opts.output == "json":
				return p.printJSON(newShownJSON(p.opts.backend, o, rows, c))
			case c != nil:
				return p.printCounts(rows, c)
			}
			return p.printRows(rows, o.Drift)
		})
}

// shownJSON is what show prints with -o json.
type shownJSON struct {
	Backend     string                 `json:"backend"`
	Observation *dataplane.Observation `json:"observation"`
	Causes      []causeJSON            `json:"causes,omitempty"`
	Counters    []counters.Row         `json:"counters,omitempty"`
	// OnlyConnections says that the counters have neither packets nor bytes.
	OnlyConnections bool `json:"onlyConnections,omitempty"`
}

func newShownJSON(backend string, o *dataplane.Observation, rows []row, c *counts) shownJSON {
	s := shownJSON{Backend: backend, Observation: o, Causes: causesOf(rows)}
	if c != nil {
		s.Counters, s.OnlyConnections = c.rows, c.onlyConnections
	}
	return s
}

// causeJSON is why a frontend rejects or drops.
type causeJSON struct {
	Frontend servicemodel.FrontendKey `json:"frontend"`
	Cause    string                   `json:"cause"`
}

func causesOf(rows []row) (l []causeJSON) {
	for _, r := range rows {
		if r.Cause != "" {
			l = append(l, causeJSON{r.key, r.Cause})
		}
	}
	return l
}

func newRow(t *servicemodel.Table, f *servicemodel.Frontend) row {
	r := row{key: f.Key, Address: f.Key.Addr.String(), Family: f.Key.Family().String(),
		Port: f.Key.Port, Protocol: f.Key.Protocol.String(),
		Service: f.Service.String(), Kind: f.Kind.String(), Verdict: f.Internal.String(),
		Endpoints:  endpoints(t, f, f.Internal),
		Masquerade: f.Masquerade.String(), Affinity: int(f.Affinity.Seconds())}
	if f.Key.NodePort() {
		r.Address = "*"
	}
	if f.External != f.Internal {
		r.External = &external{f.External.String(), endpoints(t, f, f.External)}
	}
	for _, s := range f.Sources {
		r.Sources = append(r.Sources, s.String())
	}
	return r
}

func endpoints(t *servicemodel.Table, f *servicemodel.Frontend, v servicemodel.Verdict) []endpoint {
	l := []endpoint{}
	if id, ok := f.Pool(v); ok {
		if pool := t.Pool(id); pool != nil {
			for _, s := range pool.Slots {
				l = append(l, endpoint{s.Endpoint.String(), s.Weight})
			}
		}
	}
	return l
}

func (p *program) printRows(rows []row, drift []string) error {
	w := newColumns(p.stdout)
	fmt.Fprintln(w, "FRONTEND\tSERVICE\tKIND\tENDPOINTS\tMASQUERADE\tOTHER")
	for _, r := range rows {
		to := target(r.Verdict, r.Endpoints)
		if r.External != nil {
			to += "; outside: " + target(r.External.Verdict, r.External.Endpoints)
		}
		var other []string
		if r.Affinity > 0 {
			other = append(other, fmt.Sprintf("affinity %ds", r.Affinity))
		}
		if r.Sources != nil {
			other = append(other, "from "+strings.Join(r.Sources, ","))
		}
		if r.Cause != "" {
			other = append(other, "because "+r.Cause)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", r.frontend(), r.Service, r.Kind, to,
			r.Masquerade, strings.Join(other, "; "))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, d := range drift {
		fmt.Fprintf(p.stdout, "! %s\n", d)
	}
	return nil
}

// frontend is "10.96.0.1:80/tcp", "*:30080/tcp (IPv4)".
func (r row) frontend() string {
	switch {
	case r.Address == "*":
		return fmt.Sprintf("*:%d/%s (%s)", r.Port, r.Protocol, r.Family)
	case strings.Contains(r.Address, ":"):
		return fmt.Sprintf("[%s]:%d/%s", r.Address, r.Port, r.Protocol)
	}
	return fmt.Sprintf("%s:%d/%s", r.Address, r.Port, r.Protocol)
}

// target is the endpoints, or the verdict if there are none.
func target(verdict string, eps []endpoint) string {
	if len(eps) == 0 {
		return verdict
	}
	var l []string
	for _, e := range eps {
		s := e.Address
		if e.Weight != 1 {
			s += fmt.Sprintf("*%d", e.Weight)
		}
		l = append(l, s)
	}
	return strings.Join(l, ",")
}
