package flows_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/dataplane/flows"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// toEach are flows to endpoints 1 and 2, of each kind.
var (
	udp1, udp2 = "udp 10.96.0.10:53 > 10.244.0.1:5353", "udp 10.96.0.10:53 > 10.244.0.2:5353"
	tcp1, tcp2 = "tcp 10.96.0.10:80 > 10.244.0.1:8080", "tcp 10.96.0.10:80 > 10.244.0.2:8080"
	ext1       = "tcp 203.0.113.5:80 > 10.244.0.1:8080"
	node1      = "tcp 192.0.2.10:30080 > 10.244.0.1:8080"
)

func leave() sm.ConnectionPolicy { return sm.ConnectionPolicy{Mode: sm.LeaveConnections} }
func cut() sm.ConnectionPolicy   { return sm.ConnectionPolicy{Mode: sm.CutConnections} }
func drain(d time.Duration) sm.ConnectionPolicy {
	return sm.ConnectionPolicy{Mode: sm.DrainConnections, Drain: d}
}

func own(p sm.ConnectionPolicy) func(*sm.Service) {
	return func(s *sm.Service) { s.Connections = p }
}

// at are the flows that are left some time after a change.
type at struct {
	after time.Duration
	left  []string
}

func TestConnectionsToEndpointsThatGoAreSubjectToThePolicy(t *testing.T) {
	t.Parallel()
	all := []string{udp1, udp2, tcp1, tcp2, ext1, node1, "sctp 10.96.0.10:80 > 10.244.0.1:8080"}
	gone, lingers := endpoints(), each(endpoints(1), terminating)
	for _, c := range []struct {
		name     string
		all, own sm.ConnectionPolicy
		first    []sm.Endpoint // endpoint 1 after the change
		then     []at
	}{
		{"left alone by default", sm.ConnectionPolicy{}, sm.ConnectionPolicy{}, gone,
			[]at{{0, []string{udp2, tcp1, tcp2, ext1, node1}},
				{time.Hour, []string{udp2, tcp1, tcp2, ext1, node1}}}},
		{"cut", cut(), sm.ConnectionPolicy{}, gone, []at{{0, []string{udp2, tcp2}}}},
		{"cut, though the endpoint still serves", cut(), sm.ConnectionPolicy{}, lingers,
			[]at{{0, []string{udp2, tcp2}}}},
		{"drained", drain(30 * time.Second), sm.ConnectionPolicy{}, gone,
			[]at{{0, []string{udp2, tcp1, tcp2, ext1, node1}},
				{29 * time.Second, []string{udp2, tcp1, tcp2, ext1, node1}},
				{30 * time.Second, []string{udp2, tcp2}}}},
		{"drained, while the endpoint still serves", drain(30 * time.Second), sm.ConnectionPolicy{},
			lingers,
			[]at{{29 * time.Second, []string{udp1, udp2, tcp1, tcp2, ext1, node1}},
				{30 * time.Second, []string{udp2, tcp2}}}},
		{"a service wants them cut", sm.ConnectionPolicy{}, cut(), gone,
			[]at{{0, []string{udp2, tcp2}}}},
		{"a service wants them left", cut(), leave(), gone,
			[]at{{time.Hour, []string{udp2, tcp1, tcp2, ext1, node1}}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, flows.Config{Connections: c.all})
				w.restartAt(t, serving(service(own(c.own)), endpoints(1, 2)))
				w.put(all[:6]...)
				r := w.apply(t, serving(service(own(c.own)), c.first, endpoints(2)))
				start := time.Now()
				for _, step := range c.then {
					for r.Settle > 0 && time.Since(start)+r.Settle <= step.after {
						time.Sleep(r.Settle)
						r.Settle = ok(w.engine.Settle(t.Context()))(t)
					}

					require.Equal(t, step.left, w.list(), "after %s", step.after)
				}
			})
		})
	}
}

func TestSCTPFollowsThePolicyToo(t *testing.T) {
	t.Parallel()
	sctp := func(s *sm.Service) { s.Ports[1].Protocol = sm.SCTP }
	eps := func(hosts ...int) []sm.Endpoint {
		return each(endpoints(hosts...), func(e *sm.Endpoint) { e.Ports[1].Protocol = sm.SCTP })
	}
	w := newWorld(t, flows.Config{Connections: cut()})
	w.restartAt(t, serving(service(sctp), eps(1, 2)))
	w.put("sctp 10.96.0.10:80 > 10.244.0.1:8080", "sctp 10.96.0.10:80 > 10.244.0.2:8080")
	w.apply(t, serving(service(sctp), eps(2)))
	require.Equal(t, []string{"sctp 10.96.0.10:80 > 10.244.0.2:8080"}, w.list())
}

func TestAnEndpointThatComesBackKeepsWhatItHas(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, flows.Config{Connections: drain(10 * time.Second)})
		w.restartAt(t, serving(service(), endpoints(1, 2)))
		w.put(tcp1, ext1, tcp2)
		w.apply(t, serving(service(), endpoints(2)))
		time.Sleep(8 * time.Second)
		w.apply(t, serving(service(), endpoints(1, 2)))
		time.Sleep(time.Second)
		r := w.apply(t, serving(service(), endpoints(2)))
		require.Equal(t, 10*time.Second, r.Settle, "when it leaves again, its time begins anew")
		time.Sleep(9 * time.Second)
		r = w.apply(t, serving(service(), endpoints(2, 3)))
		require.Equal(t, time.Second, r.Settle)
		require.Equal(t, []string{tcp1, ext1, tcp2}, w.list())
		time.Sleep(time.Second)
		r = w.apply(t, serving(service(), endpoints(2, 3)))
		require.Equal(t, []string{tcp2}, w.list(),
			"an apply that changes nothing settles what is due")
		require.Zero(t, r.Settle)
	})
}

func TestOneDrainsWhileAnotherIsDone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, flows.Config{Connections: drain(10 * time.Second)})
		w.restartAt(t, serving(service(), endpoints(1, 2, 3)))
		w.put(tcp1, tcp2, "tcp 10.96.0.10:80 > 10.244.0.9:8080")
		w.apply(t, serving(service(), endpoints(2, 3)))
		time.Sleep(6 * time.Second)
		w.apply(t, serving(service(), endpoints(3)))
		time.Sleep(4 * time.Second)
		next := ok(w.engine.Settle(t.Context()))(t)
		require.Equal(t, 6*time.Second, next)
		require.Equal(t, []string{tcp2, "tcp 10.96.0.10:80 > 10.244.0.9:8080"}, w.list(),
			"and connections of which nothing is known stay")
		time.Sleep(next)
		ok(w.engine.Settle(t.Context()))(t)
		require.Equal(t, []string{"tcp 10.96.0.10:80 > 10.244.0.9:8080"}, w.list())
	})
}

func TestAServiceThatGoesTakesItsConnectionsAlong(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, flows.Config{})
		w.restartAt(t, serving(service(own(drain(5*time.Second))), endpoints(1),
			each(endpoints(2), terminating)))
		w.put(udp1, udp2, tcp1, node1)
		r := w.apply(t, sm.State{}.WithNode(node))
		require.Equal(t, []string{tcp1, node1}, w.list(),
			"its own policy counts although it is gone")
		time.Sleep(r.Settle)
		ok(w.engine.Settle(t.Context()))(t)
		require.Empty(t, w.list())
	})
}

func TestAnEndpointThatTerminatesIsWatchedUntilItDoesNotServe(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]sm.State{
		"it ends":                      serving(service(), each(endpoints(1), ended), endpoints(2)),
		"it is gone":                   serving(service(), endpoints(2)),
		"its service loses its others": serving(service(), endpoints(3)),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, flows.Config{})
			w.restartAt(t, serving(service(), endpoints(1, 2)))
			w.put(udp1, "udp 192.0.2.10:30053 > 10.244.0.1:5353")
			w.apply(t, serving(service(), each(endpoints(1), terminating), endpoints(2)))
			w.apply(t, serving(service(), each(endpoints(1), terminating), endpoints(2, 3)))
			require.Len(t, w.list(), 2)
			w.apply(t, end)
			require.Empty(t, w.list(),
				"the table of services is the same, or not; the flows are stale")
		})
	}
}

// After a restart, the keeper finds connections that were to be cut. Draining connections get their
// full drain time again.
func TestPoliciesAfterARestart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		before, after := serving(service(), endpoints(1, 2)), serving(service(), endpoints(2))
		w := newWorld(t, flows.Config{Connections: drain(10 * time.Second)})
		w.restartAt(t, before)
		w.put(tcp1, tcp2, node1)
		w.apply(t, after)
		time.Sleep(9 * time.Second)

		w.restart(t)
		r := w.apply(t, after)
		require.Equal(t, 10*time.Second, r.Settle)
		require.Equal(t, []string{tcp1, tcp2, node1}, w.list())
		time.Sleep(r.Settle)
		ok(w.engine.Settle(t.Context()))(t)
		require.Equal(t, []string{tcp2}, w.list())

		w.put(tcp1, node1)
		w.cfg.Connections = leave()
		w.restart(t)
		w.apply(t, after)
		require.Equal(t, []string{tcp2, tcp1, node1}, w.list())
		w.cfg.Connections = cut()
		w.restart(t)
		w.apply(t, after)
		require.Equal(t, []string{tcp2}, w.list())
	})
}

func TestBadPoliciesAreRefused(t *testing.T) {
	t.Parallel()
	_, err := flows.New(&fakeTable{},
		&flows.Config{Connections: sm.ConnectionPolicy{Mode: sm.DrainConnections}})
	var field *sm.FieldError
	require.ErrorAs(t, err, &field)
	require.True(t, errors.As(err, &field) && field.Field == "drain")
}

func TestAKeeperNeedsATable(t *testing.T) {
	t.Parallel()
	for _, none := range []flows.Table{nil, (*conntrack.Table)(nil)} {
		require.EqualError(t, errOf(flows.New(none, nil)), "keep flows: no conntrack table")
	}
	_, err := flows.Counters{}.Read(t.Context())
	require.EqualError(t, err, "flows: count: no conntrack table")
}
