package graph

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/kernlb/kernlb/servicemodel"
)

// maxPorts is the maximum number of service ports that are drawn one by one. maxNames is the
// maximum number of names in a box that represents many service ports.
const maxPorts, maxNames = 30, 3

// chunks splits a list wherever a key changes.
func chunks[K comparable](all []*servicemodel.Frontend,
	key func(*servicemodel.Frontend) K) (out [][]*servicemodel.Frontend) {
	for i, f := range all {
		if i == 0 || key(all[i-1]) != key(f) {
			out = append(out, nil)
		}
		out[len(out)-1] = append(out[len(out)-1], f)
	}

	return out
}

// end is the target of all frontends with a verdict.
type end struct {
	kinds     map[servicemodel.Kind]int // the number of frontends
	ports     []servicemodel.PortName
	pools     map[servicemodel.PoolID]bool
	endpoints map[netip.AddrPort]bool
}

// namespace draws the row of a namespace: the numbers of its service ports, of their frontends by
// kind, of their targets, and of their endpoints.
func (s *services) namespace(row int, all []*servicemodel.Frontend) {
	kinds, ends := map[servicemodel.Kind]int{}, map[servicemodel.Verdict]*end{}
	for _, f := range all {
		kinds[f.Kind]++
		for _, v := range slices.Compact([]servicemodel.Verdict{f.Internal, f.External}) {
			if ends[v] == nil {
				ends[v] = &end{map[servicemodel.Kind]int{}, nil,
					map[servicemodel.PoolID]bool{}, map[netip.AddrPort]bool{}}
			}

			ends[v].add(s.t, f, v)
		}
	}

	s.row(row)
	name := s.add(s.columns[0], plain, all[0].Service.Name.Namespace,
		many(len(chunks(all, portOf)), "service port"))
	frontends := map[servicemodel.Kind]*box{}
	for _, k := range slices.Sorted(maps.Keys(kinds)) {
		frontends[k] = s.add(s.columns[1], plain, many(kinds[k], "frontend"), k.String())
		s.connect(name, frontends[k], "")
	}

	for _, v := range slices.Sorted(maps.Keys(ends)) {
		to := s.end(v, ends[v])
		for _, k := range slices.Sorted(maps.Keys(ends[v].kinds)) {
			s.connect(frontends[k], to, fmt.Sprint(ends[v].kinds[k]))
		}
	}
}

func (e *end) add(t *servicemodel.Table, f *servicemodel.Frontend, v servicemodel.Verdict) {
	e.kinds[f.Kind]++
	if len(e.ports) == 0 || e.ports[len(e.ports)-1] != f.Service {
		e.ports = append(e.ports, f.Service)
	}
	id, balances := f.Pool(v)
	if p := t.Pool(id); balances && p != nil && !e.pools[id] {
		e.pools[id] = true
		for _, slot := range p.Slots {
			e.endpoints[slot.Endpoint] = true
		}
	}
}

func (s *services) end(v servicemodel.Verdict, e *end) *box {
	if v.Balances() {
		b := s.add(s.columns[2], plain, many(len(e.pools), "pool"), poolTexts[v])
		s.connect(b, s.add(s.columns[3], plain, many(len(e.endpoints), "endpoint")), "")
		return b
	}

	lines := []string{endTexts[v]}
	for _, p := range e.ports[:min(len(e.ports), maxNames)] {
		lines = append(lines, p.String())
	}
	if more := len(e.ports) - maxNames; more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", more))
	}
	return s.add(s.columns[2], refuses, lines...)
}

// many returns a number of things as text.
func many(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func portOf(f *servicemodel.Frontend) servicemodel.PortName { return f.Service }

func namespaceOf(f *servicemodel.Frontend) string { return f.Service.Name.Namespace }
