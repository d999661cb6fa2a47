package main

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/kernlb/kernlb/dataplane/counters"
	"github.com/kernlb/kernlb/servicemodel"
)

// rates are the counts per second, and the counts so far.
type rates struct {
	connections, packets, bytesIn, bytesOut float64
	total                                   counters.Values
}

func ratesOf(old, now counters.Values, passed time.Duration) rates {
	r := rates{total: now}
	if s := passed.Seconds(); s > 0 {
		d := now.Since(old)
		r.connections = float64(d.Connections) / s
		r.packets = float64(d.PacketsIn+d.PacketsOut) / s
		r.bytesIn, r.bytesOut = float64(d.BytesIn)/s, float64(d.BytesOut)/s
	}
	return r
}

func (r rates) plus(o rates) rates {
	return rates{r.connections + o.connections, r.packets + o.packets, r.bytesIn + o.bytesIn,
		r.bytesOut + o.bytesOut, r.total.Plus(o.total)}
}

// service is a service with its rates.
type service struct {
	name      servicemodel.Name
	frontends []*servicemodel.Frontend
	endpoints int // different ones
	rates
}

// part is a frontend or an endpoint with its rates.
type part struct {
	name  string
	share float64 // of the connections of the service
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

// between holds two samples. The newer one has counters.
type between struct{ old, now *sample }

// frontend returns the rates of a frontend. They are zero for a new one.
func (b between) frontend(k servicemodel.FrontendKey) rates {
	now := b.now.sums.Frontend(k)
	if b.old == nil || b.old.sums == nil {
		return rates{total: now}
	}
	return ratesOf(b.old.sums.Frontend(k), now, b.now.at.Sub(b.old.at))
}

func (b between) endpoint(k servicemodel.FrontendKey, e netip.AddrPort) rates {
	now := b.now.sums.Endpoint(k, e)
	if b.old == nil || b.old.sums == nil {
		return rates{total: now}
	}
	return ratesOf(b.old.sums.Endpoint(k, e), now, b.now.at.Sub(b.old.at))
}

// fill adds the rates of the services.
func (b between) fill(list []service) {
	for i := range list {
		list[i].rates = rates{}
		for _, f := range list[i].frontends {
			list[i].rates = list[i].plus(b.frontend(f.Key))
		}
	}
}

// parts returns the frontends of a service, and its endpoints with their shares of the present
// connections, or if there are none, of all connections so far.
func (b between) parts(s *service) (frontends, endpoints []part) {
	for _, f := range s.frontends {
		frontends = append(frontends, part{name: f.Key.String(), rates: b.frontend(f.Key)})
	}
	for _, e := range endpointsOf(b.now.table, s.frontends) {
		p := part{name: e.String()}
		for _, f := range s.frontends {
			p.rates = p.plus(b.endpoint(f.Key, e))
		}
		endpoints = append(endpoints, p)
	}
	of := func(p part) float64 { return p.connections }
	if sum(endpoints, of) == 0 {
		of = func(p part) float64 { return float64(p.total.Connections) }
	}
	if all := sum(endpoints, of); all > 0 {
		for i := range endpoints {
			endpoints[i].share = of(endpoints[i]) / all
		}
	}
	slices.SortStableFunc(endpoints, func(a, b part) int { return cmp.Compare(b.share, a.share) })
	return frontends, endpoints
}

func sum(l []part, of func(part) float64) (n float64) {
	for _, p := range l {
		n += of(p)
	}
	return n
}

// orders are the sort orders of services, by their keys. Equal services are sorted by name.
var orders = map[string]func(a, b service) int{
	"c": func(a, b service) int {
		return cmp.Or(cmp.Compare(b.connections, a.connections),
			cmp.Compare(b.total.Connections, a.total.Connections))
	},
	"p": func(a, b service) int { return cmp.Compare(b.packets, a.packets) },
	"b": func(a, b service) int {
		return cmp.Compare(b.bytesIn+b.bytesOut, a.bytesIn+a.bytesOut)
	},
	"n": func(service, service) int { return 0 },
}
