package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/conntrack/flows"
	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/servicemodel"
)

// flowRow is one flow, as flows prints it. With -o json, there is one on each line.
type flowRow struct {
	Event    string `json:"event,omitempty"` // with -watch: new, updated or destroyed
	Service  string `json:"service"`
	Protocol string `json:"protocol"`
	Client   string `json:"client"`
	Frontend string `json:"frontend"`
	Endpoint string `json:"endpoint"` // empty: nothing translated it
	Former   bool   `json:"former_endpoint,omitempty"`
	State    string `json:"state"`
	Seconds  int    `json:"expires_seconds"`
}

// flowCount is how many flows a service has to one of its endpoints.
type flowCount struct {
	Service  string `json:"service"`
	Protocol string `json:"protocol"`
	Endpoint string `json:"endpoint"`
	Flows    int    `json:"flows"`
}

// flowSummary is what flows prints at the end.
type flowSummary struct {
	Counts  []flowCount `json:"counts"`
	InTable uint32      `json:"flows_in_table"`
	Max     uint32      `json:"table_max"`
	Dropped uint64      `json:"packets_dropped"` // since the table was full
	Evicted uint64      `json:"flows_evicted"`
}

// flows prints the flows of services.
func (p *program) flows(ctx context.Context) error {
	p.findBackend(ctx)
	table, err := conntrack.Open(nil)
	if err != nil {
		return err
	}
	defer table.Close()
	return p.withEngine(ctx, servicemodel.State{},
		func(ctx context.Context, e *dataplane.Engine) error {
			o, err := e.Observe(ctx)
			if err != nil {
				return err
			}
			if err := p.knowsService(o.Table); err != nil {
				return err
			}
			node, err := table.NodeAddrs(o.Table.Rules().NodePorts)
			if err != nil {
				return err
			}
			l := &lister{program: p, table: table, index: flows.NewIndex(o.Table, node),
				counts: map[flowCount]int{}}
			if p.opts.flow.watch {
				return l.watch(ctx)
			}
			return l.list(ctx)
		})
}

// knowsService returns an error if flows of a service were asked for that t does not have.
func (p *program) knowsService(t *servicemodel.Table) error {
	if p.opts.flow.service == "" {
		return nil
	}
	var names []string
	for f := range t.Frontends() {
		names = append(names, f.Service.Name.String())
	}
	if slices.Contains(names, p.opts.flow.service) {
		return nil
	}
	return unknown("service", p.opts.flow.service, names)
}

// lister prints flows as they come, so that a large table takes no memory.
type lister struct {
	*program
	table  *conntrack.Table
	index  *flows.Index
	counts map[flowCount]int
	lines  int
}

func (l *lister) list(ctx context.Context) error {
	for f, err := range l.table.Flows(ctx, conntrack.Filter{}) {
		if err != nil {
			return err
		}
		r, ok := l.row(&f)
		if !ok {
			continue
		}
		endpoint := r.Endpoint
		if r.Former {
			endpoint += " (former)"
		}
		l.counts[flowCount{Service: r.Service, Protocol: r.Protocol, Endpoint: endpoint}]++
		if err := l.print(r); err != nil {
			return err
		}
	}
	return l.summarize(ctx)
}

// watch prints what happens to flows until it is interrupted. Services are those that the kernel
// held when it began.
func (l *lister) watch(ctx context.Context) error {
	f, err := l.table.Follow(conntrack.FollowOptions{})
	if err != nil {
		return err
	}
	defer f.Close()
	for e, err := range f.Events(ctx) {
		if err != nil {
			return err
		}
		if e.Type == conntrack.EventsLost {
			fmt.Fprintln(l.stderr,
				"warning: there were more events than could be read; some are missing")
			continue
		}
		if r, ok := l.row(&e.Flow); ok {
			r.Event = e.Type.String()
			if err := l.print(r); err != nil {
				return err
			}
		}
	}
	return nil
}

// row describes a flow; false if it is not of the services asked for.
func (l *lister) row(f *conntrack.Flow) (flowRow, bool) {
	frontend := l.index.Frontend(f)
	if frontend == nil || l.opts.flow.service != "" &&
		frontend.Service.Name.String() != l.opts.flow.service {
		return flowRow{}, false
	}
	r := flowRow{Service: frontend.Service.String(), Protocol: f.Protocol.String(),
		Client:   f.Original.Src.String(),
		Frontend: f.Original.Dst.String(), State: state(f), Seconds: int(f.Timeout / time.Second)}
	if f.Translated() {
		r.Endpoint, r.Former = f.Reply.Src.String(), !l.index.Serves(frontend, f)
	}
	return r, true
}

// state is the state of a connection; of other flows it is whether they were answered.
func state(f *conntrack.Flow) string {
	switch {
	case f.Protocol == conntrack.TCP && f.TCP != conntrack.TCPNone:
		return f.TCP.String()
	case f.Protocol == conntrack.SCTP && f.SCTP != conntrack.SCTPNone:
		return f.SCTP.String()
	case f.Status&conntrack.StatusSeenReply == 0:
		return "UNREPLIED"
	case f.Status&conntrack.StatusAssured != 0:
		return "ASSURED"
	}
	return "REPLIED"
}

const flowFormat = "%-30s %-5s %-28s %-28s %-28s %-12s %s\n"

func (l *lister) print(r flowRow) error {
	if l.opts.output == "json" {
		return json.NewEncoder(l.stdout).Encode(r)
	}
	event := ""
	if l.opts.flow.watch {
		event = fmt.Sprintf("%-10s ", r.Event)
	}
	if l.lines++; l.lines == 1 {
		fmt.Fprintf(l.stdout, "%*s"+flowFormat, len(event), "", "SERVICE", "PROTO", "CLIENT",
			"FRONTEND", "ENDPOINT", "STATE", "EXPIRES")
	}
	endpoint := cmp.Or(r.Endpoint, "none")
	if r.Former {
		endpoint += " (former)"
	}
	_, err := fmt.Fprintf(l.stdout, event+flowFormat, r.Service, r.Protocol, r.Client, r.Frontend,
		endpoint, r.State, time.Duration(r.Seconds)*time.Second)
	return err
}

// summarize prints the counts and how full the table is.
func (l *lister) summarize(ctx context.Context) error {
	u, err := l.table.Usage(ctx)
	if err != nil {
		return err
	}
	s := flowSummary{Counts: []flowCount{}, InTable: u.Count, Max: u.Max, Dropped: u.Stats.Dropped,
		Evicted: u.Stats.EarlyDropped}
	for _, c := range slices.SortedFunc(maps.Keys(l.counts), compareCounts) {
		c.Flows = l.counts[c]
		s.Counts = append(s.Counts, c)
	}
	if l.opts.output == "json" {
		return json.NewEncoder(l.stdout).Encode(s)
	}
	if len(s.Counts) > 0 {
		fmt.Fprintf(l.stdout, "\n%-30s %-5s %-37s %s\n", "SERVICE", "PROTO", "ENDPOINT", "FLOWS")
	}
	for _, c := range s.Counts {
		fmt.Fprintf(l.stdout, "%-30s %-5s %-37s %d\n", c.Service, c.Protocol,
			cmp.Or(c.Endpoint, "none"), c.Flows)
	}
	_, err = fmt.Fprintf(l.stdout,
		"\ntable: %d of %d flows (%.1f %%), %d packets dropped, %d flows evicted\n", s.InTable,
		s.Max, 100*u.Fraction(), s.Dropped, s.Evicted)
	return err
}

func compareCounts(a, b flowCount) int {
	return cmp.Or(cmp.Compare(a.Service, b.Service), cmp.Compare(a.Protocol, b.Protocol),
		cmp.Compare(a.Endpoint, b.Endpoint))
}

// keepFlows makes engines clean up stale flows from now on, unless the flags say no. The function
// it returns ends that.
func (p *program) keepFlows() (*flows.Keeper, func(), error) {
	if p.opts.flow.keep {
		return nil, func() {}, nil
	}
	table, err := conntrack.Open(nil)
	if err != nil {
		return nil, nil, fmt.Errorf("%w; with -keep-flows stale flows are left alone", err)
	}
	keeper, err := flows.New(table, &flows.Config{Connections: p.opts.flow.connections})
	if err != nil {
		table.Close()
		return nil, nil, err
	}
	p.keeper = keeper
	return keeper, func() { table.Close() }, nil
}

// settle waits until all is done that an apply has left to time: connections that are drained are
// cut in the end. What fails is tried again a few times.
func (p *program) settle(ctx context.Context, e *dataplane.Engine, r *dataplane.Result,
	err error) error {
	next := r.Settle
	if next > time.Second {
		fmt.Fprintf(p.stderr, "draining for %v; if interrupted, connections are left\n",
			next.Round(time.Second))
	}
	for tries := 0; err != nil || next > 0; {
		wait := next
		if err != nil {
			if tries++; tries == settleTries {
				return err
			}
			wait = time.Duration(tries) * 100 * time.Millisecond
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(wait):
		}
		next, err = e.Settle(ctx)
	}
	return nil
}

const settleTries = 4
