package dataplanetest

import (
	"slices"
	"testing"
	"time"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/dataplanetest/scenario"
	"github.com/kernlb/kernlb/servicemodel"
)

func scheduler(s servicemodel.Scheduler) func(*servicemodel.Service) {
	return func(svc *servicemodel.Service) { svc.Scheduler = s }
}

// nearShares tests a service with half of its endpoints on this node ready: they get 70 %.
func nearShares(t *testing.T, w *world) {
	zoned := func(e *servicemodel.Endpoint) { e.Zone = thisNode().Zone }
	l := slices.Concat(eps("pod2", "remote2"), each(eps("pod3"), notReady),
		each(eps("remote1"), zoned))
	near := func(s *servicemodel.Service) { s.Prefer = "node" }
	w.apply(t, state(thisNode(), web(near), l))
	w.requireServiceShares(t, "near", 300, map[string]float64{"pod2": .7, "remote1": .3})
}

// growingShares tests an endpoint that begins with a tenth of its weight, and grows in the shortest
// possible time.
func growingShares(t *testing.T, w *world) {
	with := func(d time.Duration, hosts ...string) servicemodel.State {
		return state(thisNode(), web(slowStart(d)), eps(hosts...))
	}
	w.apply(t, with(time.Hour, "pod2", "pod3"))
	w.apply(t, with(time.Hour, "pod2", "pod3", "remote1"))
	w.requireGrown(t, .1)
	w.apply(t, with(5*time.Second, "pod2", "pod3", "remote1"))
	must(t, w.engine.Finish(t.Context()))
	w.requireGrown(t, 1)
}

func slowStart(d time.Duration) func(*servicemodel.Service) {
	return func(s *servicemodel.Service) { s.SlowStart = d }
}

// requireGrown requires the shares of two endpoints with full weight, and of remote1, which has a
// fraction of its weight. Of the connections here, the smallest share is more than 40.
func (w *world) requireGrown(t *testing.T, part float64) {
	t.Helper()
	whole := 1 / (2 + part)
	w.requireServiceShares(t, "slow start", 900, map[string]float64{"pod2": whole, "pod3": whole,
		"remote1": part * whole})
}

// requireServiceShares sends n connections in each family to the service, and requires the shares
// of hosts.
func (w *world) requireServiceShares(t *testing.T, what string, n int, hosts map[string]float64) {
	t.Helper()
	for _, f := range families {
		y := overTCP(cluster, f)
		requireShares(t, what+": "+y.String(), w.shares(t, y, n), hosts)
	}
}

// growsOn restarts the engine while an endpoint has a fraction of its weight.
func growsOn(t *testing.T, w *world) {
	s := state(thisNode(), web(slowStart(time.Hour)), eps("pod2", "pod3"))
	w.apply(t, s)
	s = and(s, web(slowStart(time.Hour)), eps("pod2", "pod3", "remote1"))
	w.apply(t, s)
	w.engine = w.newEngine(nil)
	r := w.apply(t, s)
	if n := r.Counts.Changed + r.Counts.Added + r.Counts.Removed; n != 0 || r.Settle == 0 {
		t.Errorf("a restart changes the weights, or lets nothing grow on: settle %v\n%v", r.Settle,
			r.Changes)
	}

	w.requireGrown(t, .1)
}

// shareSchedulers are schedulers whose shares do not depend on open connections. They choose by
// chance or in turn, or hash something that differs from probe to probe.
var shareSchedulers = []servicemodel.Scheduler{servicemodel.Random, servicemodel.RoundRobin,
	servicemodel.WeightedRR, servicemodel.SourceHash + "+port", servicemodel.Maglev + "+port"}

func schedulerShares(t *testing.T, w *world) {
	for _, by := range shareSchedulers {
		shares := map[string]float64{"pod2": 1. / 8, "pod3": 2. / 8, "remote1": 5. / 8}
		if by == servicemodel.RoundRobin {
			shares = map[string]float64{"pod2": 1. / 3, "pod3": 1. / 3, "remote1": 1. / 3}
		}
		l := weighted(eps("pod2", "pod3", "remote1"), 1, 2, 5)
		if w.accepted(t, state(thisNode(), web(scheduler(by)), l),
			backends.FieldScheduler, string(by)) {
			w.requireServiceShares(t, "scheduler "+string(by), 160, shares)
		}
	}
}

// hashedClientsStay sends from clients that have one address each. An additional endpoint may get a
// client. When that endpoint is removed, the client must return to its old endpoint.
func hashedClientsStay(t *testing.T, w *world) {
	for _, by := range []servicemodel.Scheduler{servicemodel.SourceHash, servicemodel.Maglev} {
		with := func(hosts ...string) servicemodel.State {
			return state(podCIDRs(thisNode()), web(scheduler(by)), eps(hosts...))
		}
		if !w.accepted(t, with("pod2", "pod3", "remote1"), backends.FieldScheduler,
			string(by)) {
			continue
		}

		given := w.given(t, w.ways(clients[:3], cluster))
		if w.under.OwnConnections {
			continue // IPVS moves more clients, and refuses clients of a draining endpoint
		}
		w.apply(t, with("pod2", "pod3", "remote1", "remote2"))
		w.requireGiven(t, given, serverName("remote2", scenario.PortA))
		w.apply(t, with("pod2", "pod3", "remote1"))
		w.requireGiven(t, given)
	}
}

// schedulerChanges changes the scheduler of a service that has open connections and gets new
// connections all the time. IPVS refuses new connections while a scheduler is replaced.
func schedulerChanges(t *testing.T, w *world) {
	s := trafficState()
	w.apply(t, s)
	var end func()
	if w.under.OwnConnections {
		end = w.held(t, 25)
	} else {
		end = w.traffic(t)
	}

	for _, by := range append(slices.Repeat(shareSchedulers, 2), servicemodel.Maglev,
		servicemodel.SourceHash, servicemodel.LeastConn) {
		w.accepted(t, and(s, web(scheduler(by)), eps("pod2", "remote1")),
			backends.FieldScheduler, string(by))
	}

	w.apply(t, s)
	end()
}
