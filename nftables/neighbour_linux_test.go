package nftables

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/servicemodel"
)

// manyServices is a state of n services with ten endpoints each.
func manyServices(n int) servicemodel.State {
	s := servicemodel.State{}
	for i := range n {
		name := servicemodel.Name{Namespace: "default", Name: fmt.Sprint("s", i)}
		svc := &servicemodel.Service{Name: name, Ports: []servicemodel.ServicePort{
			{Protocol: servicemodel.TCP, Port: 80}},
			ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})}}
		s = s.WithService(svc).WithEndpoints(name, tenEndpoints(i, 10))
	}
	return s
}

// tenEndpoints are the endpoints of service i of manyServices. The first one is at 10.first.
func tenEndpoints(i, first int) []servicemodel.Endpoint {
	var l []servicemodel.Endpoint
	for j := range 10 {
		a := [4]byte{10, 128 + byte(j), byte(i >> 8), byte(i)}
		if j == 0 {
			a[1] = byte(first)
		}
		l = append(l, servicemodel.Endpoint{Addr: netip.AddrFrom4(a), Ready: true, Serving: true,
			Ports: []servicemodel.EndpointPort{{Protocol: servicemodel.TCP, Port: 8080}}})
	}
	return l
}

// neighbour commits to a table of its own, with pauses, until stop is called. stop returns the
// number of commits.
func neighbour(tb testing.TB, ns *netnstest.NS, pause time.Duration) (stop func() int64) {
	tb.Helper()
	conn := ok(rawnl.Dial(&rawnl.Config{NetNS: ns.Fd()}))(tb)
	set := &nft.Set{Name: "blocked", Key: []nft.Field{nft.IPv4.Addr}}
	commit := func(write func(e *nft.Encoder)) error {
		var b rawnl.Batch
		write(nft.NewEncoder(&b, nft.IPv4, "neighbour"))
		return conn.Commit(context.Background(), &b, 0)
	}
	require.NoError(tb, commit(func(e *nft.Encoder) { e.AddTable(); e.AddSet(set) }))
	var l nft.ElemList
	l.Add(nft.Elem{Key: []byte{192, 0, 2, 1}})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	var commits atomic.Int64
	running.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			err := commit(func(e *nft.Encoder) {
				if i%2 == 0 {
					e.AddElements(set, &l)
				} else {
					e.DeleteElements(set, &l)
				}
			})
			if err != nil {
				tb.Error(err)
				return
			}
			commits.Add(1)
			time.Sleep(pause)
		}
	})
	return func() int64 {
		cancel()
		running.Wait()
		conn.Close()
		return commits.Load()
	}
}

// A neighbour commits all the time. Still every apply succeeds, in a program that runs and in a new
// program for each change, and the running program does not read the kernel again and again.
func TestNeighbourThatCommitsWithoutEnd(t *testing.T) {
	t.Parallel()
	ns, b := newNS(t)
	e := dataplane.New(b, nil)
	s := manyServices(1000)
	name := servicemodel.Name{Namespace: "default", Name: "s7"}
	ok(e.Apply(t.Context(), s))(t)
	stop := neighbour(t, ns, time.Millisecond)
	observed := 0
	for i := range 200 {
		r := ok(e.Apply(t.Context(), s.WithEndpoints(name, tenEndpoints(7, 11+i%2))))(t)
		if r.Observed {
			observed++
		}
	}
	require.LessOrEqual(t, observed, 3)
	for i := range 10 {
		s = s.WithEndpoints(name, tenEndpoints(7, 20+i))
		other := newBackend(t, ns, nil)
		r := ok(dataplane.New(other, nil).Apply(t.Context(), s))(t)
		require.Empty(t, r.Drift)
		require.Len(t, r.Changes.Pools, 1)
	}
	ok(e.Apply(t.Context(), s))(t)
	require.Positive(t, stop())
	requireAdopts(t, newBackend(t, ns, nil), s, mustResolve(t, s))
}

func mustResolve(t *testing.T, s servicemodel.State) *servicemodel.Table {
	t.Helper()
	return ok(servicemodel.Resolve(nil, s))(t)
}

// BenchmarkBesideANeighbour replaces one endpoint of 2,000 services, alone and beside a neighbour
// that commits 50 times a second.
func BenchmarkBesideANeighbour(b *testing.B) {
	for _, pause := range []time.Duration{0, 20 * time.Millisecond} {
		for _, spacing := range []time.Duration{0, 5 * time.Millisecond, 25 * time.Millisecond} {
			b.Run(fmt.Sprintf("pause=%v/spacing=%v", pause, spacing), func(b *testing.B) {
				benchBesideANeighbour(b, pause, spacing)
			})
		}
	}
}

func benchBesideANeighbour(b *testing.B, pause, spacing time.Duration) {
	netnstest.Require(b)
	ns := ok(netnstest.NewNS(b.Name()))(b)
	defer ns.Close()
	backend := ok(openBackend(&Config{NetNS: ns.Fd()}))(b)
	defer backend.Close()
	e := dataplane.New(backend, nil)
	s := manyServices(2000)
	name := servicemodel.Name{Namespace: "default", Name: "s7"}
	ok(e.Apply(b.Context(), s))(b)
	if pause > 0 {
		defer neighbour(b, ns, pause)()
	}
	var took []time.Duration
	for i := 0; b.Loop(); i++ {
		time.Sleep(spacing)
		next := s.WithEndpoints(name, tenEndpoints(7, 11+i%2))
		start := time.Now()
		_, err := e.Apply(b.Context(), next)
		took = append(took, time.Since(start))
		require.NoError(b, err)
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1000, "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds())/1000, "p99-µs")
}
