package nftables

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/test/golden"
	"github.com/kernlb/kernlb/nftables/internal/plan"
	"github.com/kernlb/kernlb/servicemodel"
)

func goldenNode() servicemodel.Node {
	return servicemodel.Node{Name: "this",
		Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.10")},
		LocalPods: servicemodel.PodDetector{
			CIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}}}
}

func goldenService(edit ...func(*servicemodel.Service)) *servicemodel.Service {
	s := &servicemodel.Service{
		Name: servicemodel.Name{Namespace: "default", Name: "web"},
		Ports: []servicemodel.ServicePort{{Name: "http", Protocol: servicemodel.TCP, Port: 80,
			NodePort: 30080}},
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")},
	}
	for _, f := range edit {
		f(s)
	}
	return s
}

func goldenEndpoints(addrs ...string) []servicemodel.Endpoint {
	var l []servicemodel.Endpoint
	for _, a := range addrs {
		l = append(l, servicemodel.Endpoint{Addr: netip.MustParseAddr(a), Node: "this",
			Ports: []servicemodel.EndpointPort{{Name: "http", Protocol: servicemodel.TCP,
				Port: 8080}}})
	}

	return l
}

// goldenStep is a state, and the name of the plan for it.
type goldenStep struct {
	name  string
	state servicemodel.State
}

// goldenSteps are a sequence of states.
func goldenSteps() []goldenStep {
	base := servicemodel.State{}.WithNode(goldenNode()).WithService(goldenService()).WithEndpoints(
		goldenService().Name, goldenEndpoints("10.244.1.1", "10.244.1.2"))
	name := goldenService().Name
	withSources := func(s *servicemodel.Service) {
		s.LoadBalancerIPs = []servicemodel.LoadBalancerIP{
			{Addr: netip.MustParseAddr("203.0.113.10")}}
		s.LoadBalancerSourceRanges = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}
		s.ExternalTrafficPolicy = servicemodel.PolicyLocal
	}

	sticky := func(s *servicemodel.Service) { s.SessionAffinity.ClientIP = true }
	return []goldenStep{
		{"1-first", base},
		{"2-one-endpoint-replaced",
			base.WithEndpoints(name, goldenEndpoints("10.244.1.1", "10.244.1.3"))},
		{"3-one-endpoint-more", base.WithEndpoints(name, goldenEndpoints("10.244.1.1", "10.244.1.3",
			"10.244.1.4"))},
		{"4-first-endpoint-gone",
			base.WithEndpoints(name, goldenEndpoints("10.244.1.3", "10.244.1.4"))},
		{"5-sources-and-local", base.WithService(goldenService(withSources)).WithEndpoints(name,
			goldenEndpoints("10.244.1.3", "10.244.1.4"))},
		{"6-affinity", base.WithService(goldenService(sticky)).WithEndpoints(name,
			goldenEndpoints("10.244.1.3", "10.244.1.4"))},
		{"7-affinity-endpoint-gone", base.WithService(goldenService(sticky)).WithEndpoints(name,
			goldenEndpoints("10.244.1.4"))},
		{"8-no-endpoints", base.WithEndpoints(name, nil)},
		{"9-gone", base.WithoutService(name)},
		{"15-range", published(10000, 20000)},
		{"16-range-in-it", published(10000, 20000, 10000, 10015, 11000, 0)},
		{"17-range-gone", published(10000, 10015, 11000, 0)},
		{"18-range-to-port", publishedAt(5060, 10000, 10015, 11000, 0)},
	}
}

// published is a state of services at one address, with an endpoint that keeps the packet's port.
// Each service has a port, or a range of ports.
func published(ports ...uint16) servicemodel.State { return publishedAt(0, ports...) }

// publishedAt is like published, with a port of the endpoint.
func publishedAt(port uint16, ports ...uint16) servicemodel.State {
	s := servicemodel.State{}.WithNode(goldenNode())
	for i := 0; i < len(ports); i += 2 {
		svc := goldenService(func(s *servicemodel.Service) {
			s.Name.Name = fmt.Sprint("from-", ports[i], "-to-", ports[i+1])
			s.Ports[0].NodePort = 0
			s.Ports[0].Port, s.Ports[0].EndPort = ports[i], ports[i+1]
		})
		eps := goldenEndpoints("10.244.1.1")
		eps[0].Ports[0].Port = port
		s = s.WithService(svc).WithEndpoints(svc.Name, eps)
	}

	return s
}

// A sequence of states, and the plans from each state to the next, in nft's language.
func TestPlansAreGolden(t *testing.T) {
	t.Parallel()
	pl := plan.NewPlanner(defaultTable, firstEpoch)
	var table *servicemodel.Table
	for _, step := range goldenSteps() {
		next := ok(servicemodel.Resolve(table, step.state))(t)
		p := pl.Plan(servicemodel.Diff(table, next))
		golden.Plan(t, filepath.Join("testdata", step.name+".nft"), p)

		// Encoding the same plan twice gives the same bytes.
		var one, two rawnl.Batch
		p.Encode(&one)
		p.Encode(&two)
		require.NoError(t, one.Err())
		require.Equal(t, one.Bytes(), two.Bytes())
		require.Equal(t, one.Len(), p.Stats().Messages)

		for i := range p.Tables {
			pl.Tables[i].Committed(p.Tables[i])
		}
		require.Equal(t, pl.Version, p.Have)
		pl.Version = p.Next
		pl.Version.Unswept = false // no sweep is left
		table = next
	}
}

// Changes of services with schedulers. The text contains only the first entries of a table of
// Maglev.
func TestPlansWithSchedulersAreGolden(t *testing.T) {
	t.Parallel()
	with := func(by servicemodel.Scheduler, addrs ...string) servicemodel.State {
		svc := goldenService(func(s *servicemodel.Service) {
			s.Scheduler, s.Ports[0].NodePort = by, 0
		})
		state := servicemodel.State{}.WithNode(goldenNode()).WithService(svc).WithEndpoints(
			svc.Name, goldenEndpoints(addrs...))
		for i, other := range []servicemodel.Scheduler{"rr", "sh", "mh"} { // the rules stay
			svc := goldenService(func(s *servicemodel.Service) {
				s.Name.Name, s.Scheduler, s.Ports[0].NodePort = string(other), other, 0
				s.ClusterIPs = []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, byte(20 + i)})}
			})
			state = state.WithService(svc).WithEndpoints(svc.Name, goldenEndpoints("10.244.1.1"))
		}

		return state
	}

	pl := plan.NewPlanner(defaultTable, firstEpoch)
	var table *servicemodel.Table
	few := regexp.MustCompile(`.*-mh-endpoints .*tcp . 80 . [1-9]\d+ : .*\n`)
	for _, step := range []goldenStep{
		{"", with("rr", "10.244.1.1", "10.244.1.2")},
		{"10-in-turn-one-more", with("rr", "10.244.1.1", "10.244.1.2", "10.244.1.3")},
		{"11-by-hash", with("sh", "10.244.1.1", "10.244.1.2", "10.244.1.3")},
		{"12-maglev", with("mh+port", "10.244.1.1", "10.244.1.2", "10.244.1.3")},
		{"13-maglev-one-replaced", with("mh+port", "10.244.1.1", "10.244.1.2", "10.244.1.4")},
		{"14-at-random", with("random", "10.244.1.1", "10.244.1.2", "10.244.1.4")},
	} {
		next := ok(servicemodel.Resolve(table, step.state))(t)
		p := pl.Plan(servicemodel.Diff(table, next))
		if step.name != "" {
			text, n := p.String(), p.Stats()
			golden.File(t, filepath.Join("testdata", step.name+".nft"), fmt.Sprintf(
				"%s# %d messages, %d bytes, %d elements\n", few.ReplaceAllString(text, ""),
				n.Messages, n.Bytes, n.Elements))
		}

		for i := range p.Tables {
			pl.Tables[i].Committed(p.Tables[i])
		}
		pl.Version, table = p.Next, next
	}
}

// A large batch allocates its memory once, and not again and again while it grows.
func TestALargeBatchIsAllocatedOnce(t *testing.T) {
	s := servicemodel.State{}.WithNode(goldenNode())
	for i := range 6000 {
		svc := goldenService(func(s *servicemodel.Service) {
			s.Name.Name, s.Ports[0].NodePort = fmt.Sprint("web-", i), 0
			s.ClusterIPs = []netip.Addr{netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})}
		})
		s = s.WithService(svc).WithEndpoints(svc.Name, goldenEndpoints("10.244.1.1", "10.244.1.2"))
	}

	table := ok(servicemodel.Resolve(nil, s))(t)
	pl := plan.NewPlanner(defaultTable, firstEpoch)
	p := pl.Plan(servicemodel.Diff(nil, table))
	var used rawnl.Batch
	p.Encode(&used)
	require.Greater(t, used.Size(), plan.KeptBatch)
	again := testing.AllocsPerRun(3, func() {
		used.Reset()
		p.Encode(&used)
	})
	anew := testing.AllocsPerRun(3, func() {
		var b rawnl.Batch
		p.Encode(&b)
	})
	require.Less(t, anew-again, 16.0)
}

// A service that cannot be expressed is refused once. A scheduler that the backend lacks is refused
// before the service has endpoints.
func TestWhatCannotBeExpressedIsRefused(t *testing.T) {
	t.Parallel()
	for field, edit := range map[string]func(*servicemodel.Service){
		"scheduler": func(s *servicemodel.Service) { s.Scheduler = servicemodel.ShortestDelay },
		"forwarding": func(s *servicemodel.Service) {
			s.Forwarding = servicemodel.ForwardDirect
		},
	} {
		svc := goldenService(edit)
		for _, eps := range [][]servicemodel.Endpoint{goldenEndpoints("10.244.1.1"), nil} {
			if eps == nil && field != "scheduler" {
				continue
			}
			c := servicemodel.Diff(nil, mustResolve(t, servicemodel.State{}.WithNode(
				goldenNode()).WithService(svc).WithEndpoints(svc.Name, eps)))
			var unsupported *backends.UnsupportedError
			require.ErrorAs(t, Check(c), &unsupported)
			require.Equal(t, field, unsupported.Field)
			require.Equal(t, svc.Name, unsupported.Service)
			require.Len(t, dataplane.Problems(Check(c)), 1)
		}
	}
}

func TestTableNames(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"kernlb", "a", "node-1.lb_2"} {
		_, err := (&Config{Table: name}).table()
		require.NoError(t, err, name)
	}

	for _, name := range []string{"1a", "a b", "a;flush", "ä", "a/b", string(make([]byte, 70)),
		"kube-proxy", "kernlb-counters", "filter"} {
		_, err := openBackend(&Config{Table: name})
		require.ErrorContains(t, err, "table name", name)
	}

	got := ok((*Config)(nil).table())(t)
	require.Equal(t, defaultTable, got)
}

func mustResolve(t *testing.T, s servicemodel.State) *servicemodel.Table {
	t.Helper()
	return ok(servicemodel.Resolve(nil, s))(t)
}
