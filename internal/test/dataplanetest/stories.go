package dataplanetest

import (
	"context"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/dataplanetest/scenario"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/test/randstate"
	"github.com/kernlb/kernlb/servicemodel"
)

func (w *world) apply(t *testing.T, s servicemodel.State) *dataplane.Result {
	t.Helper()
	return ok(settled(w.engine.Apply(t.Context(), w.under.expressible(s))))(t)
}

// shares sends n packets and counts the answers of each server.
func (w *world) shares(t *testing.T, y way, n int) map[string]int {
	t.Helper()
	count := map[string]int{}
	for _, got := range netnstest.SendAll(t.Context(),
		slices.Repeat([]netnstest.Probe{w.probe(y)}, n)) {
		if got.Kind != netnstest.Answered {
			t.Fatalf("%s: got %s", y, got)
		}
		count[got.Server]++
	}

	return count
}

// requireHost requires that a host answers each of n packets.
func (w *world) requireHost(t *testing.T, y way, n int, host string) {
	t.Helper()
	if count := w.shares(t, y, n); count[serverName(host, scenario.PortA)] != n {
		t.Errorf("%s: wanted answers of %s only, got %v", y, host, count)
	}
}

// chiSquared has the value that chance exceeds once in a million, by the number of endpoints that
// get connections.
var chiSquared = map[int]float64{2: 23.9, 3: 27.6}

// requireShares judges by chi-squared whether the counts of servers follow the shares of hosts. The
// kernel draws its own random numbers and takes no seed. So the counts are printed.
func requireShares(t *testing.T, what string, count map[string]int, shares map[string]float64) {
	t.Helper()
	total, chi, known := 0, 0., 0
	for _, c := range count {
		total += c
	}
	for host, share := range shares {
		got, want := count[serverName(host, scenario.PortA)], share*float64(total)
		known += got
		chi += (float64(got) - want) * (float64(got) - want) / want
	}

	if known != total {
		t.Errorf("%s: not only endpoints answer: %v", what, count)
	}
	if chi > chiSquared[len(shares)] {
		t.Errorf("%s: chi-squared %.1f for %v, the shares are %v", what, chi, count, shares)
	}
	t.Logf("%s: chi-squared %.2f for %v", what, chi, count)
}

func fairShares(t *testing.T, w *world) {
	w.apply(t, state(podCIDRs(thisNode()), web(), eps("pod2", "pod3", "remote1")))
	third := map[string]float64{"pod2": 1. / 3, "pod3": 1. / 3, "remote1": 1. / 3}
	for _, y := range w.ways([]string{"pod1", "node", "outside1"}, everywhere...) {
		requireShares(t, y.String(), w.shares(t, y, 90), third)
	}
}

func weightedShares(t *testing.T, w *world) {
	w.apply(t, state(thisNode(), web(), weighted(eps("pod2", "pod3", "remote1"), 2, 4, 14)))
	w.requireServiceShares(t, "weights", 400, map[string]float64{"pod2": .1, "pod3": .2,
		"remote1": .7})
}

// eachRefused requires that all connections of one client are refused at once, and shows that ICMP
// errors cannot do that: the kernel limits them. Here it sends each client one in ten minutes after
// the first six, so that no machine is too slow for the test.
func eachRefused(t *testing.T, w *world) {
	for _, s := range [][2]string{{"net/ipv4/icmp_ratelimit", "600000"},
		{"net/ipv4/icmp_ratemask", "6168"}, {"net/ipv6/icmp/ratelimit", "600000"},
		{"net/ipv6/icmp/ratemask", "0-1,3-127"}} {
		must(t, w.Node.NS.SetSysctl(s[0], s[1]))
	}

	const each = 20
	for _, answer := range []string{"", "reject"} {
		node := thisNode()
		node.NoEndpoints = answer
		w.apply(t, state(node, web(), nil))
		for _, f := range families {
			y, refused := overTCP(cluster, f), 0
			for _, got := range netnstest.SendAll(t.Context(),
				slices.Repeat([]netnstest.Probe{w.probe(y)}, each)) {
				if got.Kind == netnstest.Refused {
					refused++
				}
			}

			if all := refused == each; all != (answer == "" || w.under.Proxy) {
				t.Errorf("%s, answer %q: %d of %d are refused", y, answer, refused, each)
			}
		}
	}
}

func sticky(timeout time.Duration) func(*servicemodel.Service) {
	return func(s *servicemodel.Service) {
		s.SessionAffinity = servicemodel.SessionAffinity{ClientIP: true, Timeout: timeout}
	}
}

// clients are hosts with an address of their own.
var clients = []string{"pod1", "outside1", "outside2", "node"}

func clientStays(t *testing.T, w *world) {
	s := state(podCIDRs(thisNode()), web(sticky(time.Hour)), eps("pod2", "pod3", "remote1"))
	w.apply(t, s)
	ways := w.ways(clients, everywhere...)
	for _, y := range ways {
		w.shares(t, y, 6) // these may race with one another, and then the client has one endpoint
	}
	given := w.given(t, ways)

	// A further endpoint moves no client.
	w.apply(t, and(s, web(sticky(time.Hour)), eps("pod2", "pod3", "remote1", "remote2")))
	w.requireGiven(t, given)
}

// given returns the server that answers each client. Each client must have a single server.
func (w *world) given(t *testing.T, ways []way) map[way]string {
	t.Helper()
	given := map[way]string{}
	for _, y := range ways {
		count := w.shares(t, y, 5)
		if len(count) != 1 {
			t.Errorf("%s: not one endpoint: %v", y, count)
		}
		for name := range count {
			given[y] = name
		}
	}

	return given
}

// requireGiven requires that each client has its given server, or a server in others.
func (w *world) requireGiven(t *testing.T, given map[way]string, others ...string) {
	t.Helper()
	for y, name := range given {
		count := w.shares(t, y, 5)
		isOther := func(o string) bool { return count[o] == 5 }
		if count[name] != 5 && !slices.ContainsFunc(others, isOther) {
			t.Errorf("%s: was given %s, now %v", y, name, count)
		}
	}
}

func clientMoves(t *testing.T, w *world) {
	s := state(podCIDRs(thisNode()), web(sticky(time.Hour)), eps("pod2", "pod3"))
	w.apply(t, s)
	for _, y := range w.ways(clients, everywhere...) {
		w.shares(t, y, 2)
	}
	for _, host := range []string{"pod2", "remote1", "pod3"} {
		w.apply(t, and(s, web(sticky(time.Hour)), eps(host)))
		for _, y := range w.ways(clients, everywhere...) {
			w.requireHost(t, y, 2, host)
		}
	}
}

func clientForgotten(t *testing.T, w *world) {
	timeout := time.Second

	// IPVS counts from the time when it forgets the client's last connection: 10 seconds after a
	// reset
	if w.under.OwnConnections {
		timeout = 12 * time.Second
	}
	w.apply(t, state(thisNode(), web(sticky(timeout)), eps("pod2", "pod3", "remote1", "remote2")))
	seen := map[string]bool{}
	for range 12 {
		for name := range w.shares(t, overTCP(cluster, 0), 1) {
			seen[name] = true
		}
		if len(seen) > 1 {
			return
		}
		time.Sleep(timeout + 300*time.Millisecond)
	}

	t.Errorf("12 times after the timeout the same endpoint of four: %v", seen)
}

func affinityEnds(t *testing.T, w *world) {
	s := state(thisNode(), web(sticky(time.Hour)), eps("pod2", "pod3", "remote1"))
	w.apply(t, s)
	w.shares(t, overTCP(cluster, 0), 3)
	w.apply(t, and(s, web(), eps("pod2", "pod3", "remote1")))
	if count := w.shares(t, overTCP(cluster, 0), 60); len(count) != 3 {
		t.Errorf("without affinity: %v", count)
	}
}

func adopts(t *testing.T, w *world) {
	s := and(state(podCIDRs(thisNode()), web(externalLocal, sticky(time.Minute)),
		eps("pod2", "remote1")), web(named("other", clusterIP2)), eps("pod3"))
	w.apply(t, s)
	w.engine = w.newEngine(nil)
	if r := w.apply(t, s); !r.Changes.Empty() || r.Stats.Messages != 0 || len(r.Drift) != 0 ||
		!r.Observed {
		t.Errorf("the same state: %d messages, drift %v, changes\n%s", r.Stats.Messages, r.Drift,
			r.Changes)
	}

	w.engine = w.newEngine(nil)
	r := w.apply(t, and(s, web(named("other", clusterIP2)), eps("pod1")))
	if n := len(r.Changes.Frontends); n != 0 || len(r.Changes.Pools) == 0 {
		t.Errorf("one endpoint replaced after a restart changes pools only:\n%s", r.Changes)
	}
}

// repairsFlush flushes the ruleset behind the engine's back, as another program would.
func repairsFlush(t *testing.T, w *world) {
	s := state(podCIDRs(thisNode()), web(), eps("pod2"))
	w.apply(t, s)
	must(t, w.under.cleanup(t.Context(), w.Node.NS))
	r := w.apply(t, s)
	if r.Stats.Messages == 0 || !r.Observed {
		t.Errorf("nothing was written")
	}
	w.requireChecks(t, r.Changes.New, ask("pod1", cluster, reaches("pod2")))
}

func cleansUp(t *testing.T, w *world) {
	s := state(podCIDRs(thisNode()), web(externalLocal, sticky(time.Minute)),
		eps("pod2", "remote1"))
	w.apply(t, s)
	ok(w.engine.Cleanup(t.Context()))(t)
	o := ok(w.engine.Observe(t.Context()))(t)
	if o.Table.Len() != 0 || len(o.Drift) != 0 {
		t.Errorf("left: %s, drift %v", describe(o.Table), o.Drift)
	}
	w.requireChecks(t, o.Table, ask("outside1", cluster, untouched))
	ok(w.engine.Cleanup(t.Context()))(t) // twice
}

// connectionsSurvive holds connections to one service open, while other services change hundreds of
// times a second, and the service gains and loses endpoints that the connections do not use.
func connectionsSurvive(t *testing.T, w *world) {
	each, counted := 500, []string{"EstabResets", "OutRsts", "RetransSegs"}

	// an emulated processor is too slow for this number; it would retransmit segments because of
	// the delay
	if os.Getenv("KERNLB_VM") != "" {
		each, counted = 25, counted[:2]
	}
	s := trafficState()
	w.apply(t, s)
	before := w.counters(t)
	end := w.held(t, each)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
	defer cancel()
	changes := w.churn(ctx, t, s)
	end()
	grown := w.counters(t)
	for _, name := range counted {
		if n := grown[name] - before[name]; n != 0 {
			t.Errorf("%s grew by %d", name, n)
		}
	}

	t.Logf("%d changes beside %d connections", changes, each*len(trafficTargets()))
}

// churn changes other services, and adds and removes other endpoints of the first service, until
// ctx ends. It returns the number of changes.
func (w *world) churn(ctx context.Context, t *testing.T, s servicemodel.State) int {
	r := &random{w: w, t: t, rng: rand.New(rand.NewPCG(1, 2))}
	c := r.config()
	c.Nodes = nil
	g := randstate.New(c, r.rng)
	n := 0
	for ; ctx.Err() == nil; n++ {
		s = g.Change(s)
		if n%5 == 0 {
			more := eps([]string{"pod1", "pod3", "remote2"}[:r.rng.IntN(4)]...)
			s = and(s, web(), append(eps("pod2", "remote1"), more...))
		}

		w.apply(t, s)
		time.Sleep(2 * time.Millisecond)
	}

	return n
}

// counters sums the TCP counters of the hosts that hold the connections, such as "OutRsts".
func (w *world) counters(t *testing.T) map[string]int {
	t.Helper()
	sum, seen := map[string]int{}, map[*netnstest.NS]bool{}
	for _, h := range w.Hosts() {
		if seen[h.NS] {
			continue
		}
		seen[h.NS] = true
		out := ok(runIn(t.Context(), h.NS, nil, "grep", "^Tcp:", "/proc/net/snmp"))(t)
		lines := strings.Split(string(out), "\n") // the names, the values
		values := strings.Fields(lines[1])
		for i, name := range strings.Fields(lines[0]) {
			n, _ := strconv.Atoi(values[i]) // "Tcp:" is no number
			sum[name] += n
		}
	}

	return sum
}
