package dataplanetest

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/servicemodel"
)

// drained gives connections a second.
var drained = servicemodel.ConnectionPolicy{Mode: servicemodel.DrainConnections, Drain: time.Second}

// connectionsOfEndpointThatGoes holds connections to an endpoint that goes, though it serves on,
// under each policy.
func connectionsOfEndpointThatGoes(t *testing.T, w *world) {
	const count = 20
	_, keeper := w.keepFlows(t, servicemodel.ConnectionPolicy{})
	w.serve(t, "pod2", netnstest.TCP, flowTarget)
	w.serve(t, "pod3", netnstest.TCP, flowTarget)
	for _, p := range []servicemodel.ConnectionPolicy{{}, drained,
		{Mode: servicemodel.CutConnections}} {
		own := func(s *servicemodel.Service) { s.Connections = p }
		w.apply(t, flowState(flowEndpoints("pod2"), own))
		var all []*netnstest.Conns
		for _, to := range []struct {
			from string
			addr netip.AddrPort
		}{{"pod1", netip.AddrPortFrom(clusterIP[0], flowPort)},
			{"outside1", netip.AddrPortFrom(externalIP[1], flowPort)},
			{"outside2", netip.AddrPortFrom(nodeIP[0], flowNodePort)}} {
			c, err := netnstest.OpenConns(t.Context(), w.hosts[to.from], to.addr, count)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, c)
		}
		r := w.apply(t, flowState(flowEndpoints("pod3"), own))
		if p.Mode == servicemodel.CutConnections {
			requirePings(t, p, all, 0, count)
		} else {
			requirePings(t, p, all, count, 0)
		}
		if p == drained {
			if r.Settle <= 0 || r.Settle > p.Drain {
				t.Errorf("%s: to be settled in %s", p, r.Settle)
			}
			w.settleUntil(t, func() bool { return keeper.Totals().Reset >= len(all)*count })
			requirePings(t, p, all, 0, count)
		}
		for _, c := range all {
			c.Close() //nolint:errcheck // most are closed
		}
	}
	if n := keeper.Totals().Reset; n != 6*count {
		t.Errorf("%d connections were cut, not %d: %+v", n, 6*count, keeper.Totals())
	}
}

// requirePings requires how many connections of each list live, and how many turn out to have been
// reset.
func requirePings(t *testing.T, p servicemodel.ConnectionPolicy, all []*netnstest.Conns, living,
	reset int) {
	t.Helper()
	for i, c := range all {
		r := c.Ping(3 * time.Second)
		if r.Answered != living || r.Reset != reset || r.Silent+r.Closed > 0 {
			t.Errorf("%s, connections %d: wanted %d living and %d reset, got %+v", p, i, living,
				reset, r)
		}
	}
}

// lookAlikes is how many flows there are beside the stale ones.
func lookAlikes(t *testing.T) int {
	s := os.Getenv("KERNLB_TEST_FLOWS")
	if s == "" {
		return 5000
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatalf("KERNLB_TEST_FLOWS: %v", err)
	}
	return n
}

// lookAlikesSurvive fills the table with flows of which one in a hundred is stale after the change.
// The variable KERNLB_TEST_FLOWS says how many; no more than nf_conntrack_max fit, which a
// namespace cannot raise.
func lookAlikesSurvive(t *testing.T, w *world) {
	table, keeper := w.keepFlows(t, servicemodel.ConnectionPolicy{})
	w.apply(t, flowState(flowEndpoints("pod2", "pod3")))
	rng := rand.New(rand.NewPCG(6, 6))
	n, stale := lookAlikes(t), 0
	created, err := table.Create(t.Context(), func(yield func(conntrack.Flow, error) bool) {
		for i := range n {
			f, isStale := lookAlike(rng, i)
			if isStale {
				stale++
			}
			if !yield(f, nil) {
				return
			}
		}
	})
	if err != nil {
		t.Fatalf("%d of %d flows: %v", created.Created, n, err)
	}
	before := w.count(t, table)
	start := time.Now()
	r := w.apply(t, flowState(flowEndpoints("pod3")))
	took := time.Since(start)
	if after := w.count(t, table); before-after != stale || keeper.Totals().Deleted != stale {
		t.Errorf("of %d flows %d went, %d of them deleted; %d were stale", before, before-after,
			keeper.Totals().Deleted, stale)
	}
	t.Logf(
		"%d flows, %d of them stale: applied and cleaned up in %s, of which the pass took %s (%s)",
		before, stale, took, keeper.Totals().Duration,
		r.Backend)
	for f, err := range table.Flows(t.Context(), conntrack.Filter{Protocol: conntrack.UDP,
		ReplySrc: hostAddrs("pod2")[0], ReplySrcPort: flowTarget}) {
		if err != nil {
			t.Fatal(err)
		}
		if dst := f.Original.Dst; dst == netip.AddrPortFrom(clusterIP[0], flowPort) {
			t.Fatalf("left: %s", f)
		}
	}
}

// lookAlike is the i-th flow: one in a hundred goes to the endpoint of the service that will be
// gone.
func lookAlike(rng *rand.Rand, i int) (f conntrack.Flow, stale bool) {
	pod2, pod3 := hostAddrs("pod2")[0], hostAddrs("pod3")[0]
	client := netip.AddrPortFrom(
		netip.AddrFrom4([4]byte{10, 32 + byte(i>>22), byte(i >> 14), byte(i >> 6)}),
		uint16(1024+i&63))
	f = conntrack.Flow{Protocol: conntrack.UDP, Timeout: time.Hour,
		Status: conntrack.StatusSeenReply | conntrack.StatusAssured}
	to, by := netip.AddrPortFrom(clusterIP[0], flowPort), netip.AddrPortFrom(pod2, flowTarget)
	if stale = i%100 == 0; stale {
		if rng.IntN(2) == 0 {
			to = netip.AddrPortFrom(nodeIP[0], flowNodePort)
		}
	} else {
		switch rng.IntN(7) {
		case 0: // the endpoint that stays
			by = netip.AddrPortFrom(pod3, flowTarget)
		case 1: // a port that is not the service's
			to = netip.AddrPortFrom(to.Addr(), flowPort+1)
		case 2: // another service
			to = netip.AddrPortFrom(clusterIP2[0], flowPort)
		case 3: // straight to the pod
			to = by
		case 4: // the number of the node port, elsewhere
			to = netip.AddrPortFrom(netip.MustParseAddr("198.51.100.7"), flowNodePort)
			by = to
		case 5: // another protocol
			f.Protocol, f.TCP = conntrack.TCP, conntrack.TCPEstablished
		case 6: // another node port
			to = netip.AddrPortFrom(nodeIP[0], flowNodePort+1)
		}
	}
	f.Original = conntrack.Tuple{Src: client, Dst: to}
	f.Reply = conntrack.Tuple{Src: by, Dst: client}
	return f, stale
}

// count counts the flows of the node, also with conntrack(8) where that is installed.
func (w *world) count(t *testing.T, table *conntrack.Table) int {
	t.Helper()
	n := 0
	for _, err := range table.Flows(t.Context(), conntrack.Filter{}) {
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	if path, err := exec.LookPath("conntrack"); err == nil {
		var out []byte
		if err := w.Node.NS.Do(func() (err error) {
			out, err = exec.CommandContext(context.Background(), path, "-L").Output()
			return err
		}); err != nil {
			t.Fatalf("conntrack -L: %v", err)
		}
		if lines := strings.Count(string(out), "\n"); lines != n {
			t.Fatalf("conntrack -L lists %d flows, the library %d", lines, n)
		}
	}
	return n
}
