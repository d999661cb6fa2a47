// Command bench measures the library in a network namespace of its own.
//
// Usage: bench [-backend NAME] [-services N] [-endpoints M] [-flows N] [-o text|json]
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/test/busywriter"
	"github.com/kernlb/kernlb/internal/test/fleet"
	"github.com/kernlb/kernlb/iptables"
	"github.com/kernlb/kernlb/ipvs"
	"github.com/kernlb/kernlb/nftables"
	"github.com/kernlb/kernlb/servicemodel"
)

// The numbers of measurements: of each single change, of changes with the paced neighbour, and of
// adoptions.
const (
	smallRuns = 101
	pacedRuns = 301
	adoptRuns = 3
	syncRuns  = 3 // full syncs beside neighbours
)

// paced is the title of measurements in which the program sleeps 20 ms or more between changes.
var paced = fmt.Sprintf("one replaced in %d ms", busywriter.Pause.Milliseconds())

func main() {
	b := &benchmark{open: map[string]func() (backends.Backend, error){
		nftables.Name: func() (backends.Backend, error) { return nftables.New(nil) },
		iptables.Name: func() (backends.Backend, error) { return iptables.New(nil) },
		ipvs.Name:     func() (backends.Backend, error) { return ipvs.New(nil) },
	}}
	flag.StringVar(&b.name, "backend", nftables.Name, "`NAME` of the backend")
	flag.IntVar(&b.services, "services", 10000, "number `N` of services")
	flag.IntVar(&b.endpoints, "endpoints", 10, "number `M` of endpoints of each service")
	flag.IntVar(&b.flows, "flows", 0, "measure with `N` flows how long it takes to clean them up")
	flag.StringVar(&b.output, "o", "text", "output `FORMAT`: text or json")
	flag.Parse()
	if err := b.check(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(2)
	}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	b.ctx = ctx
	code, err := b.measure()
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
	}
	os.Exit(code)
}

// check returns an error if a flag has a wrong value.
func (b *benchmark) check() error {
	switch {
	case b.open[b.name] == nil:
		return fmt.Errorf("-backend: there is no backend %q", b.name)
	case b.services < 1, b.endpoints < 1, b.flows < 0:
		return errors.New("numbers must be positive")
	case b.output != "text" && b.output != "json":
		return errors.New("-o: want text or json")
	case flag.NArg() > 0:
		return fmt.Errorf("%q is not a flag", flag.Arg(0))
	}

	return nil
}

// measure runs and reports the benchmark, and returns the exit code.
func (b *benchmark) measure() (code int, err error) {
	if done, code, err := netnstest.ReExecInUserNS(); done {
		return code, nil
	} else if err != nil {
		return 1, err
	}

	ns, err := netnstest.NewNS("bench")
	if err != nil {
		return 1, err
	}
	defer ns.Close()
	if err := ns.Do(b.run); err != nil {
		return 1, err
	}
	if err := b.report(); err != nil {
		return 1, err
	}
	return 0, nil
}

// benchmark is one run. Its times are of calls to the public API, from the changed state to the
// committed kernel. After an error, it measures nothing.
type benchmark struct {
	name, output               string // the values of flags
	services, endpoints, flows int

	open    map[string]func() (backends.Backend, error)
	ctx     context.Context
	backend backends.Backend
	engine  *dataplane.Engine
	state   servicemodel.State
	changes int // endpoints replaced so far
	rows    []row
	err     error
}

func (b *benchmark) run() error {
	host, _ := os.Hostname() // uname(2) does not fail
	node := servicemodel.Node{Name: strings.ToLower(host),
		MasqueradeMark: servicemodel.DefaultMasqueradeMark}
	b.state = b.fleet().Add(servicemodel.State{}.WithNode(node), 0, b.services)
	defer b.close()
	b.note("full_sync", "full sync", b.large(1, b.same))
	b.note("noop", "nothing changed", b.small(smallRuns, b.same))
	b.note("one_endpoint", "one endpoint replaced", b.small(smallRuns, b.replaceEndpoint))
	b.kernelShare()
	b.note("scale", "one more, one less", b.small(smallRuns, b.scale))
	b.note("one_service", "a service more, less", b.small(smallRuns, b.oneService))
	b.note("one_endpoint_paced", paced, b.small(pacedRuns, b.replaceAtPace))
	b.note("adopt", "adopt, one replaced", b.large(adoptRuns, b.replaceEndpoint))
	b.besideNeighbour()
	b.holdingUp()
	if b.err == nil {
		_, b.err = b.engine.Cleanup(b.ctx)
	}
	if b.err == nil && b.flows > 0 {
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

// apply applies a state and returns the time, and nil after an error. Without an engine, it first
// creates an engine on a new backend, like a new process.
func (b *benchmark) apply(s servicemodel.State) (took time.Duration, r *dataplane.Result) {
	start := time.Now()
	if b.err == nil && b.backend == nil {
		if b.backend, b.err = b.open[b.name](); b.err == nil {
			b.engine = dataplane.New(b.backend, &dataplane.Config{Strict: true})
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
		messages = max(messages, r.Stats.Messages)
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
			times = append(times, took)
			if r != nil {
				l.Messages, l.Bytes = r.Stats.Messages, r.Stats.Bytes
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
	return b.fleet().Replaced(b.state, b.changes)
}

// replaceAtPace is replaceEndpoint after a pause in which the neighbour commits. The neighbour may
// commit again during the replacement.
func (b *benchmark) replaceAtPace(i int) servicemodel.State {
	time.Sleep(busywriter.Pause + time.Duration(i%10)*time.Millisecond)
	return b.replaceEndpoint(i)
}

// scale adds an endpoint to a service, and removes it again.
func (b *benchmark) scale(i int) servicemodel.State { return b.fleet().Scaled(b.state, i) }

// oneService adds a service, and removes it again.
func (b *benchmark) oneService(i int) servicemodel.State { return b.fleet().OneMore(b.state, i) }

// fleet are the services.
func (b *benchmark) fleet() fleet.Fleet {
	return fleet.Fleet{Services: b.services, Endpoints: b.endpoints}
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

// perSecond is a rate.
type perSecond float64

func (n perSecond) String() string { return fmt.Sprintf("%15.0f times a second", float64(n)) }

// report prints all measurements.
func (b *benchmark) report() error {
	all := map[string]any{"backend": b.name, "services": b.services, "endpoints": b.endpoints}
	var text strings.Builder
	fmt.Fprintf(&text, "%s, %d services of %d endpoints\n%33s %13s %13s\n", b.name, b.services,
		b.endpoints, "median", "p99", "max")
	for _, r := range b.rows {
		all[r.name] = r.value
		fmt.Fprintf(&text, "%-22s%v\n", r.title, r.value)
	}

	if b.output == "json" {
		e := json.NewEncoder(os.Stdout)
		e.SetIndent("", "  ")
		return e.Encode(all)
	}

	_, err := fmt.Print(text.String())
	return err
}
