package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/dataplane/counters"
	"github.com/kernlb/kernlb/dataplane/flows"
	"github.com/kernlb/kernlb/examples/command/instance"
	"github.com/kernlb/kernlb/ipvs"
	"github.com/kernlb/kernlb/servicemodel"
)

// countOptions are the flags about counters.
type countOptions struct {
	off, show, conntrack bool
}

func countFlags(o *options, fs *flag.FlagSet) {
	fs.BoolVar(&o.count.off, "off", false, "stop counting, and forget what was counted")
}

// errCountsItself says that counters cannot be switched on or off.
var errCountsItself = fmt.Errorf("%w: ipvs counts all the time by itself: kernlb show -counters",
	errInvalid)

// count switches the counters on or off.
func (p *program) count(ctx context.Context) error {
	p.findBackend(ctx)
	if p.opts.backend == ipvs.Name {
		return errCountsItself
	}
	c, err := instance.Counters(p.opts.instance)
	if err != nil {
		return err
	}
	defer c.Close()
	if p.opts.count.off {
		return c.Stop(ctx)
	}
	return c.Start(ctx)
}

// source opens the source of counters that the flags select.
func (p *program) source() (instance.Source, error) {
	if p.opts.count.conntrack {
		t, err := conntrack.Open(nil)
		return flowSource{flows.Counters{Table: t}, t}, err
	}

	return instance.OpenSource(p.opts.backend, p.opts.instance)
}

// flowSource is a table of flows that can be closed.
type flowSource struct {
	flows.Counters
	io.Closer
}

// counts are the counters of the services of a table.
type counts struct {
	rows            []counters.Row
	onlyConnections bool
}

// counted returns the counters of a table's services, or nil if the flags do not ask for them.
func (p *program) counted(ctx context.Context, t *servicemodel.Table) (*counts, error) {
	if !p.opts.count.show && !p.opts.count.conntrack {
		return nil, nil
	}
	here, err := p.locality()
	if err != nil {
		return nil, err
	}
	from, err := p.source()
	if err != nil {
		return nil, err
	}
	defer from.Close()
	r, err := from.Read(ctx)
	if errors.Is(err, counters.ErrOff) {
		return nil, fmt.Errorf("%w; kernlb count switches them on", err)
	}
	if err != nil {
		return nil, err
	}
	if r.Full {
		p.warn("warning: there are more frontends and endpoints than are counted")
	}
	if r.OnlyConnections {
		p.warn("conntrack counts no packets: sysctl -w net.netfilter.nf_conntrack_acct=1 makes it")
	}
	sums, c := r.Of(t, here), &counts{onlyConnections: r.OnlyConnections}
	for f := range t.Frontends() {
		c.rows = append(c.rows, sums.Rows(t, f)...)
	}
	return c, nil
}

// printCounts prints the counters of each frontend, followed by its endpoints' counters.
func (p *program) printCounts(t *servicemodel.Table, c *counts) error {
	w := newColumns(p.stdout)
	header := "FRONTEND\tSERVICE\tCONNECTIONS"
	if !c.onlyConnections {
		header += "\tPACKETS IN\tBYTES IN\tPACKETS OUT\tBYTES OUT"
	}
	fmt.Fprintln(w, header)
	for _, r := range c.rows {
		name, service := "", ""
		if r.Endpoint != nil {
			name = "  -> " + servicemodel.TargetText(*r.Endpoint)
		} else {
			name, service = keyText(r.Frontend), t.Frontend(r.Frontend).Service.String()
		}

		fmt.Fprintf(w, "%s\t%s\t%d", name, service, r.Connections)
		if !c.onlyConnections {
			fmt.Fprintf(w, "\t%d\t%d\t%d\t%d", r.PacketsIn, r.BytesIn, r.PacketsOut, r.BytesOut)
		}
		fmt.Fprintln(w)
	}

	return w.Flush()
}
