package proportion

import (
	"slices"
	"testing"

	"github.com/kernlb/kernlb/servicemodel"
)

// Many returns a state in which one service has n endpoints, and edit has changed that service. n
// other services have one endpoint each.
func Many(n int, edit func(*servicemodel.Service)) servicemodel.State {
	base := small(servicemodel.PolicyCluster)
	svc := *base.Service(web)
	edit(&svc)
	s := grown(base, base.WithService(&svc), size{n, 4, n})
	eps := s.Endpoints(web)
	for i := range eps {
		eps[i].Ports = slices.Clone(eps[i].Ports)
		eps[i].Ports[0].Protocol = svc.Ports[0].Protocol
	}

	return s.WithEndpoints(web, eps)
}

// Replace returns the state with another endpoint in the middle of a service with many.
func Replace(s servicemodel.State) servicemodel.State { return changes[0].make(s) }

// Calls requires that a call costs the same at a hundred and at three thousand objects, except for
// a cost for each object. An unneeded cost for each object is an error. prepare returns the call,
// which is made several times. The cheapest call counts, and the first call is ignored.
func Calls(t *testing.T, each Cost, prepare func(n int) (call func())) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: the race detector allocates, too")
	}
	const few, many = 100, 3000
	cost := func(n int) Cost {
		call := prepare(n)
		call()
		least := Of(call)
		for range 3 { // a map may grow, or another goroutine allocate
			least = least.lesser(Of(call))
		}
		return least
	}

	a, b := cost(few), cost(many)
	needed := each == Cost{}
	for _, p := range parts {
		least := float64(p.of(a))*1.1 + float64(p.of(slack))
		most := least + float64(p.of(each)*(many-few))
		needed = needed || float64(p.of(b)) > least
		if float64(p.of(b)) > most {
			t.Errorf("%d objects: %d %s; %d objects: %d (limit %.0f)", few, p.of(a), p.what, many,
				p.of(b), most)
		}
	}

	if !needed {
		t.Errorf("the call costs the same, so it needs no limit for each object: %+v", each)
	}
}
