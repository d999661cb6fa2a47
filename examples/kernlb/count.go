package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/conntrack/flows"
	"github.com/kernlb/kernlb/dataplane/counters"
	"github.com/kernlb/kernlb/internal/instance"
	"github.com/kernlb/kernlb/ipvs"
	"github.com/kernlb/kernlb/servicemodel"
)

// countOptions are the flags about counters.
type countOptions struct {
	off, show, conntrack bool
}

func (o *countOptions) define(fs *flag.FlagSet) {
	fs.BoolVar(&o.off, "off", false, "count: stop counting, and forget what was counted")
	fs.BoolVar(&o.show, "counters", false, "show: what each frontend and endpoint has had, since "+
		"kernlb count; on ipvs since it is there")
	fs.BoolVar(&o.conntrack, "conntrack", false, "show: how many flows conntrack has of each "+
		"frontend and endpoint now, and their packets and bytes if the sysctl "+
		"net.netfilter.nf_conntrack_acct is on")
}

// check checks the flags.
func (o *countOptions) check() error {
	if o.show && o.conntrack {
		return errors.New("-counters or -conntrack: show prints one of them")
	}
	return nil
}

// errCountsItself says that nothing is to be switched on or off.
var errCountsItself = fmt.Errorf("%w: ipvs counts all the time by itself: kernlb show -counters",
	errInvalid)

// count switches the counters on or off.
func (p *program) count(ctx context.Context) error {
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

// source opens what the flags say that counters are read from.
func (p *program) source() (instance.Source, error) {
	if p.opts.count.conntrack {
		t, err := conntrack.Open(nil)
		return flowSource{flows.Counters{Table: t}, t}, err
	}
	return instance.OpenSource(p.opts.backend, p.opts.instance)
}

// flowSource is a table of flows that is closed in the end.
type flowSource struct {
	flows.Counters
	io.Closer
}

// counts are what was counted of the services of a table.
type counts struct {
	rows            []counters.Row
	onlyConnections bool
}

// counted returns what was counted of a table; nil if that was not asked for.
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

// printCounts prints what each frontend has had, and below it each of its endpoints.
func (p *program) printCounts(rows []row, c *counts) error {
	w := newColumns(p.stdout)
	header := "FRONTEND\tSERVICE\tCONNECTIONS"
	if !c.onlyConnections {
		header += "\tPACKETS IN\tBYTES IN\tPACKETS OUT\tBYTES OUT"
	}
	fmt.Fprintln(w, header)
	for _, r := range c.rows {
		name, service := "", ""
		if r.Endpoint != nil {
			name = "  -> " + r.Endpoint.String()
		} else {
			name, service = rows[0].frontend(), rows[0].Service
			rows = rows[1:]
		}
		fmt.Fprintf(w, "%s\t%s\t%d", name, service, r.Connections)
		if !c.onlyConnections {
			fmt.Fprintf(w, "\t%d\t%d\t%d\t%d", r.PacketsIn, r.BytesIn, r.PacketsOut, r.BytesOut)
		}
		fmt.Fprintln(w)
	}
	return w.Flush()
}
