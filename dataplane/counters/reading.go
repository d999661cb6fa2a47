package counters

import (
	"net/netip"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/servicemodel"
)

// Values counts connections, packets and bytes.
type Values struct {
	Connections uint64 `json:"connections"`
	PacketsIn   uint64 `json:"packetsIn"` // from clients to endpoints
	BytesIn     uint64 `json:"bytesIn"`
	PacketsOut  uint64 `json:"packetsOut"` // from endpoints to clients
	BytesOut    uint64 `json:"bytesOut"`
}

// Plus returns the sum.
func (v Values) Plus(o Values) Values {
	return Values{v.Connections + o.Connections, v.PacketsIn + o.PacketsIn, v.BytesIn + o.BytesIn,
		v.PacketsOut + o.PacketsOut, v.BytesOut + o.BytesOut}
}

// Since returns the increase of each number since an earlier value, or 0 if the number is lower,
// because the counter started from zero again.
func (v Values) Since(o Values) Values {
	less := func(a, b uint64) uint64 { return a - min(a, b) }
	return Values{less(v.Connections, o.Connections), less(v.PacketsIn, o.PacketsIn),
		less(v.BytesIn, o.BytesIn), less(v.PacketsOut, o.PacketsOut), less(v.BytesOut, o.BytesOut)}
}

// Pair is a frontend's address and an endpoint, with the counts of the packets between them.
type Pair struct {
	Protocol servicemodel.Protocol
	// Dst is the destination in the clients' packets: for a node port, an address of the node.
	Dst netip.AddrPort
	// Endpoint is zero for removed endpoints of IPVS, because IPVS forgets them.
	Endpoint netip.AddrPort
}

// Reading contains the counts at one time.
type Reading struct {
	Pairs map[Pair]Values
	// Full says that the set was full, so further pairs are not counted.
	Full bool
	// OnlyConnections says that neither packets nor bytes were counted.
	OnlyConnections bool
}

// Sums contains the counts of services.
type Sums struct {
	frontends map[servicemodel.FrontendKey]Values
	endpoints map[endpoint]Values
}

type endpoint struct {
	frontend servicemodel.FrontendKey
	addr     netip.AddrPort
}

// Of adds up the pairs of a table's services, on a node with the addresses of here.
func (r *Reading) Of(t *servicemodel.Table, here servicemodel.Locality) *Sums {
	s := &Sums{map[servicemodel.FrontendKey]Values{}, map[endpoint]Values{}}
	keys := map[servicemodel.FrontendKey]bool{}
	for f := range t.Frontends() {
		keys[f.Key] = true
	}
	local := map[netip.Addr]bool{}
	for _, a := range here {
		local[a] = true
	}
	for p, v := range r.Pairs {
		k := servicemodel.FrontendKey{Addr: p.Dst.Addr(), Protocol: p.Protocol, Port: p.Dst.Port()}
		if !keys[k] && (local[k.Addr] || k.Addr.IsLoopback()) {
			k.Addr = nft.Families[nft.FamilyIndex(k.Addr)].Any
		}
		e := endpoint{k, p.Endpoint}
		if !keys[k] {
			ranges := t.RangesAt(p.Dst.Addr(), p.Protocol, p.Dst.Port())
			if len(ranges) == 0 {
				continue
			}
			k = ranges[0].Key
			e = endpoint{k, keptPort(t, ranges[0], p)}
		}

		e.frontend = k
		s.frontends[k], s.endpoints[e] = s.frontends[k].Plus(v), s.endpoints[e].Plus(v)
	}

	return s
}

// keptPort returns the endpoint of a pair at a range: without a port if packets keep their ports.
func keptPort(t *servicemodel.Table, f *servicemodel.Frontend, p Pair) netip.AddrPort {
	kept := netip.AddrPortFrom(p.Endpoint.Addr(), 0)
	for slot := range t.Slots(f) {
		if slot.Endpoint == kept && p.Endpoint.Port() == p.Dst.Port() {
			return kept
		}
	}

	return p.Endpoint
}

// Frontend returns the counts of a frontend, including its former endpoints.
func (s *Sums) Frontend(k servicemodel.FrontendKey) Values { return s.frontends[k] }

// Endpoint returns the counts of an endpoint of a frontend.
func (s *Sums) Endpoint(k servicemodel.FrontendKey, addr netip.AddrPort) Values {
	return s.endpoints[endpoint{k, addr}]
}

// Row contains the counts of a frontend or of one of its endpoints.
type Row struct {
	Frontend servicemodel.FrontendKey `json:"frontend"`
	Endpoint *netip.AddrPort          `json:"endpoint,omitempty"` // nil in the row of the frontend
	Values
}

// Rows returns the counts of a frontend of a table, followed by those of each of its endpoints.
func (s *Sums) Rows(t *servicemodel.Table, f *servicemodel.Frontend) []Row {
	rows := []Row{{f.Key, nil, s.Frontend(f.Key)}}
	seen := map[netip.AddrPort]bool{}
	for slot := range t.Slots(f) {
		if !seen[slot.Endpoint] {
			seen[slot.Endpoint] = true
			rows = append(rows, Row{f.Key, &slot.Endpoint, s.Endpoint(f.Key, slot.Endpoint)})
		}
	}

	return rows
}
