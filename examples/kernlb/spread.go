package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/kernlb/kernlb/iptables"
	"github.com/kernlb/kernlb/nftables"
	"github.com/kernlb/kernlb/servicemodel"
)

// poolSpread is how a pool spreads new connections over its endpoints.
type poolSpread struct {
	Pool      servicemodel.PoolID    `json:"pool"`
	Scheduler servicemodel.Scheduler `json:"scheduler,omitzero"`
	// Entries is the number of entries in the pool's table of Maglev, if it has one.
	Entries int `json:"entries,omitzero"`
	// Imbalance is the largest excess of an endpoint over its wanted share, as a fraction: 0.1 is
	// 10 % too many. It is nil if the kernel's scheduler decides.
	Imbalance *float64         `json:"imbalance,omitempty"`
	Endpoints []endpointSpread `json:"endpoints"`
}

// endpointSpread has the wanted and the actual share of new connections, from 0 to 1.
// They are nil if only the kernel's scheduler knows.
type endpointSpread struct {
	servicemodel.Slot
	Wanted *float64 `json:"wanted,omitempty"`
	Has    *float64 `json:"has,omitempty"`
}

// spreadOf computes how a backend spreads the connections of a pool.
func spreadOf(backend string, p *servicemodel.Pool) poolSpread {
	s := poolSpread{Pool: p.ID, Scheduler: p.Scheduler}
	var has []float64
	switch backend {
	case nftables.Name:
		if name, _, _ := p.Scheduler.Split(); name == servicemodel.Maglev {
			s.Entries = p.MaglevSize()
		}
		has = nftables.Shares(p)
	case iptables.Name:
		has = iptables.Shares(p)
	}

	wanted, most := p.Shares(), 0.
	for i, slot := range p.Slots {
		e := endpointSpread{Slot: slot}
		if wanted != nil {
			e.Wanted = &wanted[i]
		}
		if wanted != nil && has != nil {
			e.Has, most = &has[i], max(most, has[i]/wanted[i]-1)
			s.Imbalance = &most
		}

		s.Endpoints = append(s.Endpoints, e)
	}

	slices.SortFunc(s.Endpoints, func(a, b endpointSpread) int {
		return a.Endpoint.Compare(b.Endpoint)
	})
	return s
}

// printSpread prints how the pools of a table spread new connections.
func (p *program) printSpread(t *servicemodel.Table) error {
	all := []poolSpread{}
	var text strings.Builder
	for pool := range t.Pools() {
		s := spreadOf(p.opts.backend, pool)
		if len(all) > 0 {
			fmt.Fprintln(&text)
		}
		s.print(&text)
		all = append(all, s)
	}

	return p.print(all, text.String())
}

// print prints a spread as a table.
func (s *poolSpread) print(to io.Writer) {
	title := fmt.Sprintf("%v: %s", s.Pool, cmp.Or(string(s.Scheduler), "the default scheduler"))
	if s.Entries > 0 {
		title += fmt.Sprintf(", a table of %d entries", s.Entries)
	}
	if s.Imbalance == nil {
		title += ", the kernel's scheduler decides"
	} else {
		title += fmt.Sprintf(", imbalance %.2f %%", 100**s.Imbalance)
	}

	w := newColumns(to)
	fmt.Fprintln(w, title)
	fmt.Fprintln(w, "ENDPOINT\tWEIGHT\tIS TO HAVE\tHAS\tMORE OR LESS")
	for _, e := range s.Endpoints {
		off := "-"
		if e.Has != nil {
			off = fmt.Sprintf("%+.2f %%", 100*(*e.Has / *e.Wanted - 1))
		}
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\n", servicemodel.TargetText(e.Endpoint), e.Weight,
			percent(e.Wanted), percent(e.Has), off)
	}

	w.Flush()
}

// percent is a share as text.
func percent(share *float64) string {
	if share == nil {
		return "-"
	}
	return fmt.Sprintf("%.2f %%", 100**share)
}
