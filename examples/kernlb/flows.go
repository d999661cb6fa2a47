package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/flows"
	"github.com/kernlb/kernlb/dataplane/silence"
	"github.com/kernlb/kernlb/servicemodel"
)

// flowRow is one flow in the output of flows. With -o json, each line has one.
type flowRow struct {
	Event    string `json:"event,omitempty"` // with -watch: new, updated or destroyed
	Service  string `json:"service"`
	Protocol string `json:"protocol"`
	Client   string `json:"client"`
	Frontend string `json:"frontend"`
	Endpoint string `json:"endpoint"` // empty: the flow is not translated
	Former   bool   `json:"former_endpoint,omitempty"`
	State    string `json:"state"`
	Seconds  int    `json:"expires_seconds"`
}

// flowCount is the number of flows of a service to one of its endpoints.
type flowCount struct {
	Service  string `json:"service"`
	Protocol string `json:"protocol"`
	Endpoint string `json:"endpoint"`
	Flows    int    `json:"flows"`
}

// flowSummary is the end of the output of flows.
type flowSummary struct {
	Counts  []flowCount `json:"counts"`
	InTable uint32      `json:"flows_in_table"`
	Max     uint32      `json:"table_max"`
	Dropped uint64      `json:"packets_dropped"` // because the table was full
	Evicted uint64      `json:"flows_evicted"`
	// Others are flows of no service, and most of them are from MostFrom. Both lack with -service.
	Others   int        `json:"other_flows,omitempty"`
	MostFrom netip.Addr `json:"most_from,omitzero"`
}

func flowsFlags(o *options, fs *flag.FlagSet) {
	fs.BoolVar(&o.flow.watch, "watch", false, "print what happens to flows, until interrupted")
}

// flows prints the flows of services.
func (p *program) flows(ctx context.Context) error {
	o, err := p.observe(ctx)
	if err != nil {
		return err
	}
	if err := p.knowsService(o.Table); err != nil {
		return err
	}
	table, err := conntrack.Open(nil)
	if err != nil {
		return err
	}
	defer table.Close()
	node, err := table.NodeAddrs(o.Table.Rules().NodePorts)
	if err != nil {
		return err
	}
	l := &lister{program: p, table: table, index: flows.NewIndex(o.Table, node),
		counts: map[flowCount]int{}, others: map[netip.Addr]int{}}
	if p.opts.flow.watch {
		return l.watch(ctx)
	}
	silent := slices.DeleteFunc(p.silent(ctx, o.Table), func(c silence.Change) bool {
		return p.opts.show.service != "" && c.Service.Name.String() != p.opts.show.service
	})
	return errors.Join(l.list(ctx), p.printSilent(silent))
}

// knowsService returns an error if the flags name a service that t does not have.
func (p *program) knowsService(t *servicemodel.Table) error {
	if p.opts.show.service == "" {
		return nil
	}
	var names []string
	for _, n := range servicesOf(t) {
		names = append(names, n.String())
	}
	if slices.Contains(names, p.opts.show.service) {
		return nil
	}
	return unknown("service", p.opts.show.service, names)
}

// lister prints flows as they come, so that a large table takes no memory except for the addresses
// of clients of no service.
type lister struct {
	*program
	table  *conntrack.Table
	index  *flows.Index
	counts map[flowCount]int
	others map[netip.Addr]int // flows of no service, by client
	lines  int
}

func (l *lister) list(ctx context.Context) error {
	for f, err := range l.table.Flows(ctx, conntrack.Filter{}) {
		if err != nil {
			return err
		}
		r, ok := l.row(&f)
		if !ok {
			l.others[f.Original.Src.Addr()]++
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

// watch prints the events of flows until it is interrupted. It knows the services that the kernel
// held when it began.
func (l *lister) watch(ctx context.Context) error {
	events, err := l.table.Follow(ctx, conntrack.FollowOptions{})
	if err != nil {
		return err
	}
	for e, err := range events {
		if err != nil {
			return err
		}
		if e.Type == conntrack.EventsLost {
			fmt.Fprintln(l.stderr,
				"warning: there were more events than could be read; some are missing")
			continue
		}

		if r, ok := l.row(&e.Flow); ok {
			r.Event = string(e.Type)
			if err := l.print(r); err != nil {
				return err
			}
		}
	}

	return nil
}

// row describes a flow. It returns false if the flow is not of the requested services.
func (l *lister) row(f *conntrack.Flow) (flowRow, bool) {
	frontend := l.index.Frontend(f)
	if frontend == nil || l.opts.show.service != "" &&
		frontend.Service.Name.String() != l.opts.show.service {
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

// state returns the state of a connection. For other flows it returns whether they were answered.
func state(f *conntrack.Flow) string {
	switch {
	case f.Protocol == conntrack.TCP && f.TCP != 0:
		return f.TCP.String()
	case f.Protocol == conntrack.SCTP && f.SCTP != 0:
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

// summarize prints the counts, and how full the table is.
func (l *lister) summarize(ctx context.Context) error {
	u, err := l.table.Usage(ctx)
	if err != nil {
		return err
	}
	s := flowSummary{Counts: []flowCount{}, InTable: u.Count, Max: u.Max, Dropped: u.Stats.Dropped,
		Evicted: u.Stats.EarlyDropped}
	for _, c := range slices.SortedFunc(maps.Keys(l.counts), func(a, b flowCount) int {
		return slices.Compare([]string{a.Service, a.Protocol, a.Endpoint},
			[]string{b.Service, b.Protocol, b.Endpoint})
	}) {
		c.Flows = l.counts[c]
		s.Counts = append(s.Counts, c)
	}

	if l.opts.show.service == "" {
		for addr, n := range l.others {
			s.Others += n
			if most := l.others[s.MostFrom]; n > most || n == most && addr.Less(s.MostFrom) {
				s.MostFrom = addr
			}
		}
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

	if s.Others > 0 {
		fmt.Fprintf(l.stdout, "others: %s of no service, most from %v (%d)\n",
			count(s.Others, "flow"), s.MostFrom, l.others[s.MostFrom])
	}
	_, err = fmt.Fprintf(l.stdout,
		"\ntable: %d of %d flows (%.1f %%), %d packets dropped, %d flows evicted\n", s.InTable,
		s.Max, 100*u.Fraction(), s.Dropped, s.Evicted)
	return err
}

// keepFlows makes engines with the configuration clean up stale flows, unless the flags forbid it.
// The returned function ends that.
func (p *program) keepFlows(cfg *dataplane.Config) (*flows.Keeper, func(), error) {
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

	cfg.Flows = keeper
	return keeper, func() { table.Close() }, nil
}

// settle waits until the later work of an apply is done. Connections that drain are cut at the end.
// settle retries a few times after failures.
func (p *program) settle(ctx context.Context, e *dataplane.Engine, r *dataplane.Result) error {
	next, err := r.Settle, r.Unsettled
	if next > time.Second {
		fmt.Fprintf(p.stderr, "draining for %v, or letting endpoints grow; if interrupted, "+
			"connections are left, and weights stay\n", next.Round(time.Second))
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
			return ctx.Err()
		case <-time.After(wait):
		}

		next, err = e.Settle(ctx)
	}

	return nil
}

const settleTries = 4
