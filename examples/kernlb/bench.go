package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/test/busywriter"
	"github.com/kernlb/kernlb/servicemodel"
)

// Numbers of measurements: of each single change, of changes beside the paced neighbour, and of
// adoptions.
const (
	benchRuns = 101
	pacedRuns = 301
	adoptRuns = 3
	syncRuns  = 3 // full syncs beside neighbours
)

// paced is the title of measurements of changes one every 20 ms or more, between which the program
// sleeps.
var paced = fmt.Sprintf("one replaced in %d ms", busywriter.Pause.Milliseconds())

func benchFlags(o *options, fs *flag.FlagSet) {
	o.services, o.endpoints = 10000, 10
	number(fs, &o.services, "services", 1, 1<<20, "number `N` of services")
	number(fs, &o.endpoints, "endpoints", 1, 1<<12, "number `M` of endpoints of each service")
	number(fs, &o.flow.bench, "flows", 0, 1<<22,
		"measure with `N` flows what cleaning them up takes")
}

// bench measures the library in a namespace of its own.
func (p *program) bench(ctx context.Context) error {
	if done, code, err := netnstest.ReExecInUserNS(); done {
		if code != 0 {
			return fmt.Errorf("the copy in a user namespace exited with code %d", code)
		}
		return nil
	} else if err != nil {
		return err
	}
	ns, err := netnstest.NewNS("bench")
	if err != nil {
		return err
	}
	defer ns.Close()
	b := &benchmark{program: p, ctx: ctx}
	if err := ns.Do(b.run); err != nil {
		return err
	}
	return b.report()
}

// benchmark is one run of bench. Its times are of calls to the public API, from the changed state
// to the committed kernel. After an error, it measures nothing.
type benchmark struct {
	*program
	ctx     context.Context
	backend dataplane.Backend
	engine  *dataplane.Engine
	state   servicemodel.State
	changes int // endpoints replaced so far
	rows    []row
	err     error
}

func (b *benchmark) run() error {
	b.state = withBenchServices(servicemodel.State{}.WithNode(b.opts.node), 0, b.opts.services,
		b.opts.endpoints)
	defer b.close()
	b.note("full_sync", "full sync", b.large(1, b.same))
	b.note("noop", "nothing changed", b.small(benchRuns, b.same))
	b.note("one_endpoint", "one endpoint replaced", b.small(benchRuns, b.replaceEndpoint))
	b.kernelShare()
	b.note("scale", "one more, one less", b.small(benchRuns, b.scale))
	b.note("one_service", "a service more, less", b.small(benchRuns, b.oneService))
	b.note("one_endpoint_paced", paced, b.small(pacedRuns, b.replaceAtPace))
	b.note("adopt", "adopt, one replaced", b.large(adoptRuns, b.replaceEndpoint))
	b.besideNeighbour()
	b.holdingUp()
	if b.err == nil {
		_, b.err = b.engine.Cleanup(b.ctx)
	}
	if b.err == nil && b.opts.flow.bench > 0 {
		var r flowReport
		b.err = b.cleanFlows(&r)
		b.note("flows", "one UDP endpoint replaced", &r)
	}
	return b.err
}

// close ends the engine, and drops its knowledge.
func (b *benchmark) close() {
	if b.backend != nil {
		b.err = errors.Join(b.err, b.backend.Close())
	}
	b.backend, b.engine = nil, nil
}

// apply applies a state and returns the time, and nil after an error. Without an engine it makes
// one first, on a new backend, like a new process.
func (b *benchmark) apply(s servicemodel.State) (took time.Duration, r *dataplane.Result) {
	start := time.Now()
	if b.err == nil && b.backend == nil {
		if b.backend, b.err = b.openBackend(b.ctx, b.state); b.err == nil {
			b.engine = dataplane.New(b.backend, b.engineConfig())
		}
	}
	if b.err != nil {
		return 0, nil
	}
	r, b.err = b.engine.Apply(b.ctx, s)
	b.state = s
	return time.Since(start), r
}

// small measures the changes to the states of next, one after the other.
func (b *benchmark) small(runs int, next func(i int) servicemodel.State) timing {
	var times []time.Duration
	messages := 0
	for i := range runs {
		took, r := b.apply(next(i))
		if b.err != nil {
			return timing{}
		}
		times = append(times, took)
		messages = max(messages, r.Messages)
	}
	return newTiming(times, messages)
}

// large measures the changes to the states of next, each with a new engine.
func (b *benchmark) large(runs int, next func(i int) servicemodel.State) (l large) {
	var times []time.Duration
	for i := range runs {
		b.close()
		s := next(i)
		l.PeakHeapMB = max(l.PeakHeapMB, peakHeap(func() {
			took, r := b.apply(s)
			if times = append(times, took); r != nil {
				l.Messages, l.Bytes = r.Messages, r.Bytes
			}
		}))
	}
	slices.Sort(times)
	l.Ms = ms(times[len(times)/2])
	return l
}

// same is the present state.
func (b *benchmark) same(int) servicemodel.State { return b.state }

// replaceEndpoint replaces one endpoint of one service after the other.
func (b *benchmark) replaceEndpoint(int) servicemodel.State {
	b.changes++
	i := b.changes
	n := benchName(i * 7 % b.opts.services)
	eps := b.state.Endpoints(n)
	eps[i%len(eps)].Addr = benchFreshAddr(i)
	return b.state.WithEndpoints(n, eps)
}

// replaceAtPace is replaceEndpoint after a pause in which the neighbour commits. The neighbour may
// commit again meanwhile.
func (b *benchmark) replaceAtPace(i int) servicemodel.State {
	time.Sleep(busywriter.Pause + time.Duration(i%10)*time.Millisecond)
	return b.replaceEndpoint(i)
}

// scale adds an endpoint to a service, and removes it again.
func (b *benchmark) scale(i int) servicemodel.State {
	n := benchName(i / 2 * 7 % b.opts.services)
	eps := b.state.Endpoints(n)
	if i%2 == 1 {
		return b.state.WithEndpoints(n, eps[:len(eps)-1])
	}
	more := eps[0]
	more.Addr = benchFreshAddr(1<<16 + i)
	return b.state.WithEndpoints(n, append(eps, more))
}

// oneService adds a service, and removes it again.
func (b *benchmark) oneService(i int) servicemodel.State {
	n := b.opts.services
	if i%2 == 1 {
		return b.state.WithoutService(benchName(n))
	}
	return withBenchServices(b.state, n, 1, b.opts.endpoints)
}

func benchName(i int) servicemodel.Name {
	return servicemodel.Name{Namespace: fmt.Sprintf("ns-%d", i%100),
		Name: fmt.Sprintf("service-%d", i)}
}

var benchPorts = []servicemodel.EndpointPort{{Name: "http", Protocol: servicemodel.TCP, Port: 8080}}

var benchRanges = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24"),
	netip.MustParsePrefix("192.0.2.0/24")}

// withBenchServices adds services with one TCP port, a cluster IP and endpoints on a thousand
// nodes. One in ten has session affinity, and a load-balancer IP with source ranges and external
// traffic policy Local.
func withBenchServices(s servicemodel.State, first, n, endpoints int) servicemodel.State {
	for i := first; i < first+n; i++ {
		svc := &servicemodel.Service{
			Name: benchName(i),
			Ports: []servicemodel.ServicePort{{Name: "http", Protocol: servicemodel.TCP,
				Port: 80}},
			ClusterIPs: []netip.Addr{benchAddr(10, 96, i)},
		}
		if i%10 == 9 {
			svc.SessionAffinity.ClientIP = true
			svc.ExternalTrafficPolicy = servicemodel.PolicyLocal
			svc.LoadBalancerIPs = []servicemodel.LoadBalancerIP{{Addr: benchAddr(203, 0, i)}}
			svc.LoadBalancerSourceRanges = benchRanges
		}
		eps := make([]servicemodel.Endpoint, endpoints)
		for j := range eps {
			k := i*endpoints + j
			eps[j] = servicemodel.Endpoint{Addr: benchAddr(11, 0, k), Ports: benchPorts,
				Ready: true, Serving: true, Node: fmt.Sprintf("node-%d", k%1000)}
		}
		s = s.WithService(svc).WithEndpoints(svc.Name, eps)
	}
	return s
}

// benchFreshAddr is an endpoint address that no service had at the start.
func benchFreshAddr(i int) netip.Addr { return benchAddr(172, 0, i) }

// benchAddr is the i-th address from a.b.0.0 on.
func benchAddr(a, b byte, i int) netip.Addr {
	n := uint32(a)<<24 | uint32(b)<<16 + uint32(i) + 1
	return netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
}

// row is a measurement: its name in JSON, and its title.
type row struct {
	name, title string
	value       fmt.Stringer
}

// note adds a measurement to the output.
func (b *benchmark) note(name, title string, value fmt.Stringer) {
	b.rows = append(b.rows, row{name, title, value})
}

// timing is the time of a small change.
type timing struct {
	MedianUs float64 `json:"median_us"`
	P99Us    float64 `json:"p99_us"`
	MaxUs    float64 `json:"max_us"`
	Messages int     `json:"messages"` // at most
}

func newTiming(times []time.Duration, messages int) timing {
	slices.Sort(times)
	us := func(i int) float64 { return float64(times[i].Nanoseconds()) / 1000 }
	return timing{us(len(times) / 2), us(len(times) * 99 / 100), us(len(times) - 1), messages}
}

func (t timing) String() string {
	return fmt.Sprintf("%10.1f µs %10.1f µs %10.1f µs  %5d messages", t.MedianUs, t.P99Us, t.MaxUs,
		t.Messages)
}

// large is the time of a large change, the median of all runs, and the peak of the heap in all
// runs.
type large struct {
	Ms         float64 `json:"ms"`
	Messages   int     `json:"messages"` // of the last run
	Bytes      int     `json:"bytes"`
	PeakHeapMB float64 `json:"peak_heap_mb"`
}

func (l large) String() string {
	return fmt.Sprintf("%10.1f ms %27s  %5d messages, %d bytes; peak heap %.1f MB",
		l.Ms, "", l.Messages, l.Bytes, l.PeakHeapMB)
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// perSecond is how often something happens.
type perSecond float64

func (n perSecond) String() string { return fmt.Sprintf("%15.0f times a second", float64(n)) }

// report prints all measurements.
func (b *benchmark) report() error {
	o := &b.opts
	all := map[string]any{"backend": o.backend, "services": o.services, "endpoints": o.endpoints}
	var text strings.Builder
	fmt.Fprintf(&text, "%s, %d services of %d endpoints\n%33s %13s %13s\n", o.backend, o.services,
		o.endpoints, "median", "p99", "max")
	for _, r := range b.rows {
		all[r.name] = r.value
		fmt.Fprintf(&text, "%-22s%v\n", r.title, r.value)
	}
	return b.print(all, text.String())
}
