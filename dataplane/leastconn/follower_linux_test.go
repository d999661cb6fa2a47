package leastconn_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/leastconn"
	"github.com/kernlb/kernlb/dataplane/netns"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/test/must"
	"github.com/kernlb/kernlb/ipvs"
	"github.com/kernlb/kernlb/nftables"
	"github.com/kernlb/kernlb/servicemodel"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

// kinds open the backends.
var kinds = map[string]func(netns.Namespace) (backends.Backend, error){
	nftables.Name: func(ns netns.Namespace) (backends.Backend, error) {
		return nftables.New(&nftables.Config{NetNS: ns})
	},
	ipvs.Name: func(ns netns.Namespace) (backends.Backend, error) {
		return ipvs.New(&ipvs.Config{NetNS: ns})
	},
}

var (
	name     = servicemodel.Name{Namespace: "default", Name: "web"}
	frontend = netip.MustParseAddrPort("10.96.0.10:80")
)

const port = 8080

// network is a service in a network, with an engine and a follower.
type network struct {
	*netnstest.Cluster
	t        testing.TB
	engine   *dataplane.Engine
	follower *leastconn.Follower
	stop     func() // the engine and the follower

	mu   sync.Mutex
	open map[string]float64 // connections, by server
}

// start starts a service with some pods as its endpoints.
func start(t testing.TB, kind string, by servicemodel.Scheduler, pods int) *network {
	t.Helper()
	n := &network{t: t, open: map[string]float64{},
		Cluster: netnstest.Start(t, netnstest.Options{Pods: pods, OutsideClients: 1})}
	for _, pod := range n.Pods {
		must.OK(pod.NS.Serve(pod.Name, servicemodel.TCP, netip.AddrPortFrom(pod.IPv4, port)))(t)
	}
	n.run(kind, n.state(by, pods))
	t.Cleanup(func() { n.stop() })
	return n
}

// run starts an engine and a follower, and waits until the kernel holds the state.
func (n *network) run(kind string, s servicemodel.State) {
	n.t.Helper()
	backend := must.OK(kinds[kind](n.Node.NS.NetNS()))(n.t)
	n.engine = dataplane.New(backend, nil)
	var err error
	n.follower, err = leastconn.NewFollower(n.engine,
		&leastconn.Config{NetNS: n.Node.NS.NetNS()})
	require.NoError(n.t, err)
	n.follower.Set(s)
	ctx, cancel := context.WithCancel(context.Background())
	var runs sync.WaitGroup
	runs.Go(func() { _ = n.engine.Run(ctx, nil) })
	runs.Go(func() { n.follower.Run(ctx) })
	n.stop = sync.OnceFunc(func() {
		cancel()
		runs.Wait()
		_, _ = n.follower.Close(), backend.Close()
	})

	require.Eventually(n.t, func() bool { return !n.engine.Status().Pending() }, time.Minute,
		10*time.Millisecond)
}

// state has the first pods as endpoints.
func (n *network) state(by servicemodel.Scheduler, pods int) servicemodel.State {
	var eps []servicemodel.Endpoint
	for _, pod := range n.Pods[:pods] {
		eps = append(eps, servicemodel.Endpoint{Addr: pod.IPv4,
			Ports: []servicemodel.EndpointPort{{Protocol: servicemodel.TCP, Port: port}}})
	}

	return servicemodel.State{}.WithService(&servicemodel.Service{Name: name, Scheduler: by,
		ClusterIPs: []netip.Addr{frontend.Addr()},
		Ports: []servicemodel.ServicePort{{Protocol: servicemodel.TCP,
			Port: frontend.Port()}}}).WithEndpoints(name, eps)
}

// load opens connections at random until the context ends. Their lifetimes are distributed
// exponentially. At the first pod they are longer by the factor slow.
func (n *network) load(ctx context.Context, open float64, life time.Duration, slow float64) {
	r := rand.New(rand.NewPCG(1, 1))
	between := life.Seconds() / open / float64(len(n.Pods))
	var conns sync.WaitGroup
	defer conns.Wait()
	next := time.Now()
	for ctx.Err() == nil {
		next = next.Add(time.Duration(r.ExpFloat64() * between * float64(time.Second)))
		time.Sleep(time.Until(next))
		lives := r.ExpFloat64() * life.Seconds()
		conns.Go(func() {
			c, err := netnstest.OpenConns(ctx, n.Outside[0], frontend, 1)
			if err != nil {
				return
			}
			defer c.Close()
			for server := range c.Servers() {
				n.add(server, 1)
				defer n.add(server, -1)
				if server == n.Pods[0].Name {
					lives *= slow
				}
			}

			select {
			case <-ctx.Done():
			case <-time.After(time.Duration(lives * float64(time.Second))):
			}
		})
	}
}

func (n *network) add(server string, by float64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.open[server] += by
}

// loads returns the greatest number of open connections and that of the first pod, in relation to
// the mean.
func (n *network) loads() (greatest, first float64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	sum := 0.
	for _, pod := range n.Pods {
		sum += n.open[pod.Name]
		greatest = max(greatest, n.open[pod.Name])
	}

	mean := max(sum, 1) / float64(len(n.Pods))
	return greatest / mean, n.open[n.Pods[0].Name] / mean
}

// An endpoint that keeps its connections three times as long would have twice the mean number of
// connections. It gets fewer new connections, and so has nearly the same number as the other
// endpoints. After a restart the shares continue, and without a follower they stay.
func TestABusyEndpointGetsFewer(t *testing.T) {
	t.Parallel()
	n := start(t, nftables.Name, servicemodel.LeastConn, 4)
	ctx, stop := context.WithCancel(t.Context())
	var work sync.WaitGroup
	work.Go(func() { n.load(ctx, 15, time.Second, 3) })
	defer work.Wait()
	defer stop()

	var all []float64 // the loads of the first pod
	require.Eventually(t, func() bool {
		_, first := n.loads()
		all = append(all, first)
		last, mean := all[max(0, len(all)-80):], 0.
		for _, l := range last {
			mean += l / float64(len(last))
		}
		return len(all) > 160 && mean < 1.4 && n.units()[n.Pods[0].IPv4] < 14
	}, 120*time.Second, 50*time.Millisecond)

	n.stop()
	stop()
	work.Wait()
	left := n.units()
	backend := must.OK(nftables.New(&nftables.Config{NetNS: n.Node.NS.NetNS()}))(t)
	defer backend.Close()
	plan := must.OK(dataplane.New(backend, nil).Plan(t.Context(),
		n.state(servicemodel.LeastConn, 4)))(t)
	require.True(t, plan.Changes.Empty(), "%v", plan.Changes)
	require.Equal(t, left, unitsIn(plan.Changes.New))

	r := must.OK(dataplane.New(backend, nil).Apply(t.Context(),
		n.state(servicemodel.LeastConn, 4)))(t)
	require.Zero(t, r.Stats.Messages)

	// One endpoint is removed: the other endpoints get its units, in proportion.
	r = must.OK(dataplane.New(backend, nil).Apply(t.Context(),
		n.state(servicemodel.LeastConn, 3)))(t)
	got := unitsIn(r.Changes.New)
	for addr, units := range got {
		require.InDelta(t, float64(left[addr])*64/float64(64-left[n.Pods[3].IPv4]), units, 1)
	}
}

// Shares of several ports, of weights, and of services without endpoints.
func TestFollowerSetsShares(t *testing.T) {
	t.Parallel()
	n := start(t, nftables.Name, servicemodel.WeightedLC, 2)
	require.Eventually(t, func() bool { return len(n.units()) == 2 }, time.Minute,
		10*time.Millisecond)
	svc := n.state(servicemodel.WeightedLC, 2).Service(name)
	svc.Ports = []servicemodel.ServicePort{{Name: "a", Protocol: servicemodel.TCP, Port: 80},
		{Name: "b", Protocol: servicemodel.UDP, Port: 81}}
	eps := n.state(servicemodel.WeightedLC, 2).Endpoints(name)
	for i := range eps {
		eps[i].Weight = uint16(1 + 2*i)
		eps[i].Ports = []servicemodel.EndpointPort{{Name: "a", Protocol: servicemodel.TCP,
			Port: port}, {Name: "b", Protocol: servicemodel.UDP, Port: port}}
	}

	n.follower.Set(n.state(servicemodel.WeightedLC, 2).WithService(svc).WithEndpoints(name, eps))
	require.Eventually(t, func() bool {
		pools := 0
		for p := range n.engine.Status().Held.Pools() {
			if slices.Equal(p.UnitCounts(), []int{1, 3}) {
				pools++
			}
		}

		return pools == 2
	}, time.Minute, 10*time.Millisecond)
	n.follower.Set(servicemodel.State{})
	require.Eventually(t, func() bool { return n.engine.Status().Held.Len() == 0 },
		time.Minute, 10*time.Millisecond)
}

// units returns the number of units of each endpoint in the kernel.
func (n *network) units() map[netip.Addr]int { return unitsIn(n.engine.Status().Held) }

func unitsIn(table *servicemodel.Table) map[netip.Addr]int {
	units := map[netip.Addr]int{}
	for p := range table.Pools() {
		for i, count := range p.UnitCounts() {
			units[p.Slots[i].Endpoint.Addr()] = count
		}
	}

	return units
}

// BenchmarkLoads measures how equal the numbers of open connections are, with real connections that
// live 2 s in the mean: the greatest one and, if its connections live three times as long, that of
// an endpoint, each in relation to the mean.
func BenchmarkLoads(b *testing.B) {
	for _, by := range []struct {
		kind      string
		scheduler servicemodel.Scheduler
	}{{nftables.Name, servicemodel.Random}, {nftables.Name, servicemodel.RoundRobin},
		{nftables.Name, servicemodel.LeastConn}, {ipvs.Name, servicemodel.LeastConn}} {
		for _, slow := range []float64{1, 3} {
			b.Run(fmt.Sprintf("%s/%s/%g", by.kind, by.scheduler, slow), func(b *testing.B) {
				if by.kind == ipvs.Name {
					support := dataplane.Probe(b.Context(), ipvs.Candidate(nil))
					if err := support[0].Err; err != nil {
						b.Skip(err)
					}
				}
				n := start(b, by.kind, by.scheduler, 10)
				ctx, stop := context.WithCancel(b.Context())
				var work sync.WaitGroup
				work.Go(func() { n.load(ctx, 40, 2*time.Second, slow) })
				time.Sleep(12 * time.Second)
				sum, first, samples := 0., 0., 0.
				for range b.N {
					for range 200 {
						greatest, one := n.loads()
						sum, first, samples = sum+greatest, first+one, samples+1
						time.Sleep(100 * time.Millisecond)
					}
				}

				stop()
				work.Wait()
				b.ReportMetric(sum/samples, "greatest/mean")
				b.ReportMetric(first/samples, "first/mean")
			})
		}
	}
}
