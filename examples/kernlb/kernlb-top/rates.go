package main

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/kernlb/kernlb/dataplane/counters"
	"github.com/kernlb/kernlb/servicemodel"
)

// rates are the counts since the previous reading, and the counts so far.
type rates struct{ since, total counters.Values }

func (r rates) plus(o rates) rates { return rates{r.since.Plus(o.since), r.total.Plus(o.total)} }

func (r rates) packets() uint64 { return r.since.PacketsIn + r.since.PacketsOut }

func (r rates) bytes() uint64 { return r.since.BytesIn + r.since.BytesOut }

// service is a service with its rates.
type service struct {
	name      servicemodel.Name
	frontends []*servicemodel.Frontend
	endpoints int // different ones
	rates
}

// part is a frontend or an endpoint with its rates.
type part struct {
	name string
	rates
}

// catalog lists the services of a table, by name.
func catalog(t *servicemodel.Table) []service {
	index, list := map[servicemodel.Name]int{}, []service{}
	for f := range t.Frontends() {
		i, found := index[f.Service.Name]
		if !found {
			i = len(list)
			index[f.Service.Name], list = i, append(list, service{name: f.Service.Name})
		}

		list[i].frontends = append(list[i].frontends, f)
	}

	for i := range list {
		list[i].endpoints = len(endpointsOf(t, list[i].frontends))
	}
	slices.SortFunc(list, func(a, b service) int {
		return strings.Compare(a.name.String(), b.name.String())
	})
	return list
}

// endpointsOf returns the endpoints of frontends, in order.
func endpointsOf(t *servicemodel.Table, frontends []*servicemodel.Frontend) []netip.AddrPort {
	var l []netip.AddrPort
	for _, f := range frontends {
		internal, external := t.PoolsOf(f)
		for _, p := range []*servicemodel.Pool{internal, external} {
			if p == nil {
				continue
			}
			for _, s := range p.Slots {
				l = append(l, s.Endpoint)
			}
		}
	}

	slices.SortFunc(l, netip.AddrPort.Compare)
	return slices.Compact(l)
}

// between holds two samples with counters: twice the same one after the first reading.
type between struct{ old, now *sample }

// perSecond returns a count since the previous reading as text.
func (b between) perSecond(n uint64) string {
	if s := b.now.at.Sub(b.old.at).Seconds(); s > 0 {
		return short(float64(n) / s)
	}
	return "0"
}

func (b between) frontend(k servicemodel.FrontendKey) rates {
	now := b.now.sums.Frontend(k)
	return rates{now.Since(b.old.sums.Frontend(k)), now}
}

func (b between) endpoint(k servicemodel.FrontendKey, e netip.AddrPort) rates {
	now := b.now.sums.Endpoint(k, e)
	return rates{now.Since(b.old.sums.Endpoint(k, e)), now}
}

// fill adds the rates of the services, and returns their sum.
func (b between) fill(list []service) (all rates) {
	for i := range list {
		s := &list[i]
		s.rates = rates{}
		for _, f := range s.frontends {
			s.rates = s.plus(b.frontend(f.Key))
		}
		all = all.plus(s.rates)
	}

	return all
}

// parts returns the frontends of a service, and its endpoints, the busiest first.
func (b between) parts(s *service) (frontends, endpoints []part) {
	for _, f := range s.frontends {
		frontends = append(frontends, part{f.Key.String(), b.frontend(f.Key)})
	}
	for _, e := range endpointsOf(b.now.table, s.frontends) {
		p := part{name: servicemodel.TargetText(e)}
		for _, f := range s.frontends {
			p.rates = p.plus(b.endpoint(f.Key, e))
		}
		endpoints = append(endpoints, p)
	}

	slices.SortStableFunc(endpoints, func(a, b part) int { return byConnections(a.rates, b.rates) })
	return frontends, endpoints
}

// shareOf returns the share of the present connections that an endpoint has, or if there are none,
// its share of all connections so far.
func shareOf(r rates, endpoints []part) float64 {
	var all rates
	for _, e := range endpoints {
		all = all.plus(e.rates)
	}
	if all.since.Connections > 0 {
		return float64(r.since.Connections) / float64(all.since.Connections)
	}
	return float64(r.total.Connections) / float64(max(1, all.total.Connections))
}

// order is a sort order of services. Equal services are sorted by name.
type order struct {
	by      string
	compare func(a, b rates) int
}

// orders are the sort orders by their keys.
var orders = map[string]order{
	"c": {"connections", byConnections},
	"p": {"packets", func(a, b rates) int { return cmp.Compare(b.packets(), a.packets()) }},
	"b": {"bytes", func(a, b rates) int { return cmp.Compare(b.bytes(), a.bytes()) }},
	"n": {"name", func(rates, rates) int { return 0 }},
}

func byConnections(a, b rates) int {
	return cmp.Or(cmp.Compare(b.since.Connections, a.since.Connections),
		cmp.Compare(b.total.Connections, a.total.Connections))
}
