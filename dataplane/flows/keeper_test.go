package flows_test

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/flows"
	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/internal/test/must"
	"github.com/kernlb/kernlb/internal/wait"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// Flows that only resemble stale flows: they stay, whatever changes about the service.
var lookAlikes = []string{
	"udp 10.96.0.10:54 > 10.244.0.1:5353",        // another port
	"udp 10.96.0.99:53 > 10.244.0.1:5353",        // another service
	"udp 10.244.0.1:5353",                        // straight to the pod
	"udp 198.51.100.7:30053",                     // a node port's number at another machine
	"udp 192.0.2.11:30053",                       // at an address that takes no node ports
	"tcp 10.96.0.10:53 > 10.244.0.1:5353",        // another protocol
	"udp 192.0.2.10:30054 > 10.244.0.1:5353",     // another node port
	"udp [fd00:10:96::99]:53 > [fd00:244::1]:53", // IPv6
}

// change is one change of services, and its effect on flows.
type change struct {
	name          string
	before, after sm.State
	stale, stay   []string
}

var changes = []change{
	{
		name:   "an endpoint is replaced",
		before: serving(service(), endpoints(1, 2)), after: serving(service(), endpoints(2, 3)),
		stale: []string{
			"udp 10.96.0.10:53 > 10.244.0.1:5353", "udp 203.0.113.5:53 > 10.244.0.1:5353",
			"udp 192.0.2.10:30053 > 10.244.0.1:5353",
			"udp [fd00:10:96::10]:53 > [fd00:244::1]:5353",
			"udp [2001:db8:2::10]:30053 > [fd00:244::1]:5353",
			"udp 10.96.0.10:53", // from before the service existed
		},
		stay: []string{
			"udp 10.96.0.10:53 > 10.244.0.2:5353", "udp 192.0.2.10:30053 > 10.244.0.2:5353",
			"udp [fd00:10:96::10]:53 > [fd00:244::2]:5353",
			"tcp 10.96.0.10:80 > 10.244.0.1:8080", "tcp 10.96.0.10:80",
		},
	},
	{
		name:   "clients inside must stay on the node",
		before: serving(service(), onNode(endpoints(1)), endpoints(2)),
		after: serving(service(func(s *sm.Service) {
			s.InternalTrafficPolicy = sm.PolicyLocal
		}), onNode(endpoints(1)), endpoints(2)),
		stale: []string{"udp 10.96.0.10:53 > 10.244.0.2:5353"},
		stay: []string{"udp 10.96.0.10:53 > 10.244.0.1:5353",
			"udp 203.0.113.5:53 > 10.244.0.2:5353"},
	},
	{
		name:   "clients outside must stay on the node, but the same address serves others too",
		before: serving(service(), onNode(endpoints(1)), endpoints(2)),
		after: serving(service(func(s *sm.Service) {
			s.ExternalTrafficPolicy = sm.PolicyLocal
		}), onNode(endpoints(1)), endpoints(2)),
		stay: []string{"udp 203.0.113.5:53 > 10.244.0.2:5353",
			"udp 203.0.113.5:53 > 10.244.0.1:5353"},
	},
	{
		name:   "an endpoint terminates and still serves",
		before: serving(service(), endpoints(1, 2)),
		after:  serving(service(), each(endpoints(1), terminating), endpoints(2)),
		stay: []string{"udp 10.96.0.10:53 > 10.244.0.1:5353",
			"udp 10.96.0.10:53 > 10.244.0.2:5353", "tcp 10.96.0.10:80 > 10.244.0.1:8080"},
	},
	{
		name: "a node port beside an external IP that is the node's, with the same number",
		before: serving(service(), endpoints(1)).WithService(other("192.0.2.10", 30053)).
			WithEndpoints(other("", 0).Name, endpoints(7)),
		after: serving(service(), endpoints(2)).WithService(other("192.0.2.10", 30053)).
			WithEndpoints(other("", 0).Name, endpoints(7)),
		stale: []string{"udp 10.96.0.10:53 > 10.244.0.1:5353",
			"udp [2001:db8:2::10]:30053 > [fd00:244::1]:5353"},
		stay: []string{"udp 192.0.2.10:30053 > 10.244.0.7:5353"},
	},
	{
		name: "an external IP that is the node's gives way to the node port with the same number",
		before: serving(service(), endpoints(1)).WithService(other("192.0.2.10", 30053)).
			WithEndpoints(other("", 0).Name, endpoints(7)),
		after: serving(service(), endpoints(1)),
		stale: []string{"udp 192.0.2.10:30053 > 10.244.0.7:5353"},
		stay: []string{"udp 192.0.2.10:30053 > 10.244.0.1:5353",
			"udp 10.96.0.10:53 > 10.244.0.1:5353"},
	},
	{
		name:   "node ports answer at another address",
		before: serving(service(), endpoints(1)),
		after: serving(service(), endpoints(1)).WithNode(
			sm.Node{Name: "n1", NodePortAddresses: sm.NodePortAddresses{
				CIDRs: []netip.Prefix{netip.MustParsePrefix("192.0.2.12/32")}}}),
		stale: []string{"udp 192.0.2.10:30053 > 10.244.0.1:5353", "udp 192.0.2.12:30053"},
		stay: []string{"udp 192.0.2.12:30053 > 10.244.0.1:5353", "udp 192.0.2.10:30053",
			"udp 127.0.0.1:30053 > 10.244.0.1:5353"}, // of another program
	},
	{
		name: "node ports no longer answer at loopback",
		before: serving(service(), endpoints(1)).WithNode(
			sm.Node{Name: "n1", NodePortAddresses: withLoopback, LocalhostNodePorts: true}),
		after: serving(service(), endpoints(1)).WithNode(
			sm.Node{Name: "n1", NodePortAddresses: withLoopback}),
		stale: []string{"udp 127.0.0.1:30053 > 10.244.0.1:5353"},
		stay:  []string{"udp 192.0.2.10:30053 > 10.244.0.1:5353", "udp 127.0.0.1:30053"},
	},
}

var withLoopback = sm.NodePortAddresses{CIDRs: []netip.Prefix{
	netip.MustParsePrefix("192.0.2.10/32"), netip.MustParsePrefix("127.0.0.0/8")}}

func onNode(l []sm.Endpoint) []sm.Endpoint {
	return each(l, func(e *sm.Endpoint) { e.Node = "n1" })
}

// other is another service, with an external IP.
func other(ip string, port uint16) *sm.Service {
	s := &sm.Service{Name: sm.Name{Namespace: "default", Name: "other"}}
	if ip != "" {
		s.ExternalIPs = must.Addrs(ip)
		s.Ports = []sm.ServicePort{{Name: "dns", Protocol: sm.UDP, Port: port}}
	}

	return s
}

func TestEveryChangeDeletesExactlyWhatItLeavesStale(t *testing.T) {
	t.Parallel()
	for _, c := range changes {
		for _, mode := range []string{"by a program that runs", "by one that starts anew"} {
			t.Run(c.name+"/"+mode, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) { c.run(t, mode) })
			})
		}
	}
}

func (c *change) run(t *testing.T, mode string) {
	w := newWorld(t, flows.Config{})
	w.addrs = must.Addrs("192.0.2.10", "192.0.2.11", "192.0.2.12", "2001:db8:2::10")
	w.apply(t, c.before)
	if mode == "by one that starts anew" {
		w.restart(t)
	}
	w.put(c.stale...)
	w.put(c.stay...)
	w.put(lookAlikes...)
	before := w.dumps
	w.apply(t, c.after)
	require.Equal(t, append(c.stay[:len(c.stay):len(c.stay)], lookAlikes...), w.list())
	require.LessOrEqual(t, w.dumps-before, 1, "one pass")
	require.Equal(t, len(c.stale), w.keeper.Totals().Deleted)
	w.settle(t)
	require.Equal(t, append(c.stay[:len(c.stay):len(c.stay)], lookAlikes...), w.list())

	w.put(c.stay...)
	dumps := w.dumps
	w.apply(t, c.after)
	require.Equal(t, dumps, w.dumps, "it is done")
}

// An untranslated flow is deleted while an answer is in flight. The answer creates a new flow, and
// all packets of the client then count as replies of that flow.
func TestLateAnswersAreLookedFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		backwards := func(from string) conntrack.Flow {
			f := parse("udp 198.51.100.1:4000")
			f.Original.Src = netip.MustParseAddrPort(from)
			f.Reply.Dst = f.Original.Src
			return f
		}

		w := newWorld(t, flows.Config{})
		w.restartAt(t, serving(service(), endpoints()).WithService(other("192.0.2.11", 53)))
		w.put("udp 10.96.0.10:53", "udp 192.0.2.11:53")
		r := w.apply(t, serving(service(), endpoints(1)).WithService(other("192.0.2.11", 53)).
			WithEndpoints(other("", 0).Name, endpoints(7)))
		require.Equal(t, 100*time.Millisecond, r.Settle)
		require.Empty(t, w.list())
		w.flows = []conntrack.Flow{backwards("10.96.0.10:53"), backwards("192.0.2.11:53"),
			backwards("10.96.0.10:54"), backwards("10.244.0.1:5353")}

		// the node may send requests from its own address
		kept := []conntrack.Flow{w.flows[1], w.flows[2], w.flows[3]}
		time.Sleep(r.Settle)
		ok(w.engine.Settle(t.Context()))(t)
		require.Equal(t, kept, w.flows)

		w.flows = []conntrack.Flow{backwards("203.0.113.5:53")}
		start, dumps := time.Now(), w.dumps
		w.settle(t)
		require.Empty(t, w.flows)
		require.Less(t, time.Since(start), 3*time.Second)
		require.LessOrEqual(t, w.dumps-dumps, 4)
	})
}

// The changes are applied one after the other. No change leaves work behind, and neither does the
// sequence.
func TestChangesThatStrandNothingDoNotLookAtTheTable(t *testing.T) {
	t.Parallel()
	w := newWorld(t, flows.Config{})
	s := serving(service(), endpoints(1, 2))
	w.apply(t, s)
	w.dumps = 0
	for name, next := range map[string]sm.State{
		"nothing":          serving(service(), endpoints(1, 2)),
		"an endpoint more": serving(service(), endpoints(1, 2, 3)),
		"a weight": serving(service(), each(endpoints(1, 2), func(e *sm.Endpoint) {
			e.Weight = 7
		})),
		"affinity": serving(service(func(s *sm.Service) {
			s.SessionAffinity.ClientIP = true
		}), endpoints(1, 2)),
		"masquerading": s.WithNode(sm.Node{Name: "n1", Addresses: node.Addresses,
			NodePortAddresses: node.NodePortAddresses, MasqueradeAll: true}),
		"a scheduler": serving(service(func(s *sm.Service) {
			s.Scheduler = sm.Random
		}), endpoints(1, 2)),
		"a service without any": s.WithService(other("203.0.113.77", 53)),
		"other TCP endpoints": serving(service(), each(endpoints(1, 2), func(e *sm.Endpoint) {
			e.Ports[1].Port = 8888
		})),
		"a policy": serving(service(func(s *sm.Service) {
			s.Connections.Mode = sm.CutConnections
		}), endpoints(1, 2)),
		"the external policy": serving(service(func(s *sm.Service) {
			s.ExternalTrafficPolicy = sm.PolicyLocal
		}), endpoints(1, 2)),
	} {
		w.restartAt(t, s)
		w.apply(t, next)
		require.Zero(t, w.dumps, name)
	}

	// Without UDP the keeper has no reason to read the table, not even at first.
	tcp := func(s *sm.Service) { s.Ports = s.Ports[1:] }
	w = newWorld(t, flows.Config{})
	for _, hosts := range [][]int{{1, 2}, {2, 3}, {}, {4}} {
		w.apply(t, serving(service(tcp), endpoints(hosts...)))
	}
	w.restart(t)
	w.apply(t, serving(service(tcp), endpoints(9)))
	w.apply(t, sm.State{})
	require.Zero(t, w.dumps)
}

// Before the service, no flow tracked packets to its address. A late answer to such a packet
// creates a flow. It makes no difference whether the service is added with its endpoints or before
// them.
func TestLateAnswersAreLookedForWhereAServiceIsNew(t *testing.T) {
	t.Parallel()
	for _, before := range []sm.State{sm.State{}.WithNode(node), serving(service(), endpoints())} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, flows.Config{})
			w.restartAt(t, before)
			backwards := parse("udp 198.51.100.1:4000")
			backwards.Original.Src = netip.MustParseAddrPort("10.96.0.10:53")
			backwards.Reply.Dst = backwards.Original.Src
			w.flows = []conntrack.Flow{backwards}
			w.apply(t, serving(service(), endpoints(1)))
			require.Empty(t, w.flows)
			w.settle(t)

			w.restartAt(t, before)
			dumps := w.dumps
			r := w.apply(t, serving(service(), endpoints(1)))
			require.Equal(t, 100*time.Millisecond, r.Settle, "it may be too early")
			w.flows = []conntrack.Flow{backwards}
			time.Sleep(r.Settle)
			ok(w.engine.Settle(t.Context()))(t)
			require.Empty(t, w.flows)
			require.Equal(t, 2, w.dumps-dumps)
		})
	}
}

// restartAt gives the world a new keeper that applied s long ago.
func (w *world) restartAt(t *testing.T, s sm.State) {
	t.Helper()
	w.restart(t)
	w.apply(t, s)
	w.settle(t)
	w.dumps = 0
}

func TestABatchOfChangesIsOnePass(t *testing.T) {
	t.Parallel()
	w := newWorld(t, flows.Config{})
	s := serving(service(), endpoints(1, 2)).WithService(other("203.0.113.7", 53)).WithEndpoints(
		other("", 0).Name, endpoints(5))
	w.restartAt(t, s)
	w.put("udp 10.96.0.10:53 > 10.244.0.1:5353", "udp 203.0.113.7:53 > 10.244.0.5:5353")
	w.apply(t, serving(service(), endpoints(2)))
	require.Equal(t, 1, w.dumps)
	require.Empty(t, w.list())
}

// A keeper that may not wait for packets is called again after the wait. Commits happen during the
// wait.
func TestAKeeperIsCalledAgainWhenPacketsAreDone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cut := sm.ConnectionPolicy{Mode: sm.CutConnections}
		w := newWorld(t, flows.Config{Connections: cut})
		w.restartAt(t, serving(service(), endpoints(1, 2)))
		stale := []string{"udp 10.96.0.10:53 > 10.244.0.1:5353",
			"udp 10.96.0.10:53 > 10.244.0.2:5353", "tcp 10.96.0.10:80 > 10.244.0.1:8080"}
		w.put(stale...)
		awaited := func(done time.Time, s *sm.State) bool {
			p, next := &wait.Packets{Done: done}, time.Duration(0)
			if s != nil {
				next = ok(w.engine.Apply(p.In(t.Context()), *s))(t).Settle
			} else {
				next = ok(w.engine.Settle(p.In(t.Context())))(t)
			}

			require.Equal(t, p.Awaited, next == wait.Grace)
			time.Sleep(time.Second)
			return p.Awaited
		}

		first, second := serving(service(), endpoints(2)), serving(service(), endpoints(3))
		start := time.Now()
		require.True(t, awaited(start.Add(-1), &first))
		between := time.Now().Add(-1)
		require.True(t, awaited(time.Time{}, &second))
		require.Len(t, w.list(), 3, "no pass yet")
		require.True(t, awaited(between, nil))
		require.Empty(t, w.list(), "one pass is for all commits before it")
		require.Equal(t, 1, w.dumps)
		require.True(t, awaited(between, nil))
		require.Equal(t, 1, w.dumps)

		w.put(stale[1]) // by a packet from before the second commit
		require.False(t, awaited(time.Now(), nil))
		require.Empty(t, w.list())
		require.False(t, awaited(time.Time{}, nil))
		require.Equal(t, 2, w.dumps)

		// The first endpoint is removed, and comes back before the pass.
		third := serving(service(), endpoints(1, 3))
		require.False(t, awaited(time.Now(), &third))
		w.put(stale...)
		require.True(t, awaited(time.Time{}, &second))
		require.True(t, awaited(time.Time{}, &third))
		require.False(t, awaited(time.Now(), nil))
		require.Equal(t, []string{stale[0], stale[2]}, w.list(), "what became right again stays")
	})
}

func TestAFailureLeavesTheServicesAppliedAndIsTriedAgain(t *testing.T) {
	t.Parallel()
	for _, cause := range []error{kernelerr.ErrNoPermission, conntrack.ErrInterrupted,
		conntrack.ErrTableFull} {
		w := newWorld(t, flows.Config{})
		w.restartAt(t, serving(service(), endpoints(1, 2)))
		w.put("udp 10.96.0.10:53 > 10.244.0.1:5353", "udp 10.96.0.10:53 > 10.244.0.2:5353",
			"udp 192.0.2.10:30053 > 10.244.0.1:5353")
		w.fail(cause)
		r := unsettled(w.engine.Apply(t.Context(), serving(service(), endpoints(2, 3))))(t)
		require.ErrorIs(t, r.Unsettled, cause)
		require.ErrorContains(t, r.Unsettled, "clean up the flows of 5 frontends")
		require.True(t, r.Changes.New.Equal(w.kernel.Kernel().Table()))
		require.Len(t, w.list(), 3)

		// Meanwhile, the second endpoint is removed, and the first comes back.
		r = unsettled(w.engine.Apply(t.Context(), serving(service(), endpoints(1, 3))))(t)
		require.ErrorIs(t, r.Unsettled, cause)
		w.fail(nil)
		ok(w.engine.Settle(t.Context()))(t)
		require.Equal(t, []string{"udp 10.96.0.10:53 > 10.244.0.1:5353",
			"udp 192.0.2.10:30053 > 10.244.0.1:5353"}, w.list(),
			"what became right again stays")
	}
}

// A program is stopped between the commit and the cleaning. The next program adopts the kernel's
// state and finds no difference.
func TestANewProgramFindsWhatTheLastOneMissed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, flows.Config{})
	w.apply(t, serving(service(), endpoints(1, 2)))
	w.put("udp 10.96.0.10:53 > 10.244.0.1:5353", "udp 10.96.0.10:53 > 10.244.0.2:5353",
		"udp [2001:db8:2::10]:30053 > [fd00:244::1]:5353",
		"udp 10.96.0.10:53 > 10.244.0.3:5353", "tcp 10.96.0.10:80 > 10.244.0.1:8080")
	w.put(lookAlikes...)
	after := serving(service(), each(endpoints(3), terminating), endpoints(2))
	ok(dataplane.New(memory.New(w.kernel.Kernel()), nil).Apply(
		t.Context(), after))(t)

	w.restart(t)
	w.dumps = 0
	require.True(t, w.apply(t, after).Changes.Empty())
	require.Equal(t,
		append([]string{"udp 10.96.0.10:53 > 10.244.0.2:5353",
			"udp 10.96.0.10:53 > 10.244.0.3:5353",
			"tcp 10.96.0.10:80 > 10.244.0.1:8080"}, lookAlikes...), w.list())
	require.Equal(t, 1, w.dumps)

	w.apply(t, serving(service(), each(endpoints(3), ended), endpoints(2)))
	require.NotContains(t, w.list(), "udp 10.96.0.10:53 > 10.244.0.3:5353",
		"an endpoint that terminated all the while is watched, too")
}

// An apply fails after the kernel has accepted some of its changes.
func TestWhatAFailedApplyDidIsNotForgotten(t *testing.T) {
	t.Parallel()
	w := newWorld(t, flows.Config{})
	w.restartAt(t, serving(service(), endpoints(1)))
	w.put("udp 10.96.0.10:53 > 10.244.0.1:5353", "udp 203.0.113.5:53 > 10.244.0.1:5353")

	// Another program removes the whole service, and the next applied state does not have it
	// either.
	ok(dataplane.New(memory.New(w.kernel.Kernel()), nil).Apply(t.Context(),
		sm.State{}.WithNode(node)))(t)
	w.engine.Resync()
	require.True(t, w.apply(t, sm.State{}.WithNode(node)).Changes.Empty())
	require.Empty(t, w.list())
}

// An address that the matcher refuses is reported once, and delays no service.
func TestWhatTheMatcherRefusesHoldsBackNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, flows.Config{})
	w.apply(t, serving(service(), endpoints(1)))
	w.put("udp 10.96.0.10:53 > 10.244.0.1:5353")
	w.addrs = append(w.addrs, netip.IPv4Unspecified())
	n := node
	n.NodePortAddresses = sm.NodePortAddresses{}
	r := unsettled(w.engine.Apply(t.Context(), serving(service(), endpoints(2)).WithNode(n)))(t)
	require.ErrorIs(t, r.Unsettled, conntrack.ErrBadChange)
	require.Empty(t, w.list())
	ok(w.engine.Settle(t.Context()))(t)
}
