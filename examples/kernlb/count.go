package main

import (
	"context"
	"flag"
	"fmt"
	"net/netip"
	"text/tabwriter"

	"github.com/kernlb/kernlb/dataplane/counters"
	"github.com/kernlb/kernlb/servicemodel"
)

// countOptions are the flags about counters.
type countOptions struct {
	off, show bool
}

func (o *countOptions) define(fs *flag.FlagSet) {
	fs.BoolVar(&o.off, "off", false, "count: stop counting, and forget what was counted")
	fs.BoolVar(&o.show, "counters", false,
		"show: what each frontend and endpoint has had, since kernlb count")
}

func (p *program) openCounters() (*counters.Counters, error) {
	return counters.Open(&counters.Config{Table: p.opts.instance + "-counters"})
}

// count switches the counters on or off.
func (p *program) count(ctx context.Context) error {
	c, err := p.openCounters()
	if err != nil {
		return err
	}
	defer c.Close()
	if p.opts.count.off {
		return c.Stop(ctx)
	}
	return c.Start(ctx)
}

// counted returns what was counted of a table; nil if that was not asked for.
func (p *program) counted(ctx context.Context, t *servicemodel.Table) (*counters.Sums, error) {
	if !p.opts.count.show {
		return nil, nil
	}
	here, err := p.locality()
	if err != nil {
		return nil, err
	}
	c, err := p.openCounters()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	r, err := c.Read(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w; kernlb count switches them on", err)
	}
	if r.Full {
		p.warn("warning: there are more frontends and endpoints than are counted")
	}
	return r.Of(t, here), nil
}

// countedJSON is what a frontend, or one of its endpoints, has had.
type countedJSON struct {
	Frontend servicemodel.FrontendKey `json:"frontend"`
	Endpoint *netip.AddrPort          `json:"endpoint,omitempty"`
	counters.Values
}

// countsOf lists what was counted of each frontend and of its endpoints.
func countsOf(t *servicemodel.Table, rows []row, s *counters.Sums) (l []countedJSON) {
	if s == nil {
		return nil
	}
	for _, r := range rows {
		l = append(l, countedJSON{r.key, nil, s.Frontend(r.key)})
		seen := map[netip.AddrPort]bool{}
		internal, external := t.PoolsOf(t.Frontend(r.key))
		for _, p := range []*servicemodel.Pool{internal, external} {
			if p == nil {
				continue
			}
			for _, slot := range p.Slots {
				if !seen[slot.Endpoint] {
					seen[slot.Endpoint] = true
					l = append(l, countedJSON{r.key, &slot.Endpoint,
						s.Endpoint(r.key, slot.Endpoint)})
				}
			}
		}
	}
	return l
}

// printCounts prints what each frontend has had, and below it each of its endpoints.
func (p *program) printCounts(rows []row, counts []countedJSON) error {
	w := tabwriter.NewWriter(p.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "FRONTEND\tSERVICE\tCONNECTIONS\tPACKETS IN\tBYTES IN\tPACKETS OUT\t"+
		"BYTES OUT")
	for _, c := range counts {
		name, service := "", ""
		if c.Endpoint != nil {
			name = "  -> " + c.Endpoint.String()
		} else {
			name, service = rows[0].frontend(), rows[0].Service
			rows = rows[1:]
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\t%d\t%d\n", name, service, c.Connections, c.PacketsIn,
			c.BytesIn, c.PacketsOut, c.BytesOut)
	}
	return w.Flush()
}
