package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/kernlb/kernlb/internal/test/busywriter"
)

// report is the output of bench. Times are of calls to the public API, from the changed state to
// the committed kernel. Messages are the kernel messages of one such change.
type report struct {
	Backend   string `json:"backend"`
	Services  int    `json:"services"`
	Endpoints int    `json:"endpoints"`

	FullSync large `json:"full_sync"`

	Noop        timing `json:"noop"`
	OneEndpoint timing `json:"one_endpoint"`
	// The share of the kernel: see [benchmark.kernelShare].
	EmptyTransaction timing `json:"kernel_empty_transaction"`
	BareElement      timing `json:"kernel_bare_element"`

	Scale      timing `json:"scale"`
	OneService timing `json:"one_service"`
	// Paced replaces one endpoint every 20 ms or more, and the program sleeps in between.
	Paced timing `json:"one_endpoint_paced"`

	// Adopt is the time until a new process has adopted the kernel's contents and changed one
	// endpoint.
	Adopt large `json:"adopt"`

	// The same beside a neighbour that commits to nf_tables 50 times a second.
	BusyPaced        timing  `json:"busy_one_endpoint_paced"`
	BusyAdopt        large   `json:"busy_adopt"`
	NeighbourCommits float64 `json:"neighbour_commits_per_second"`

	// A full sync beside that neighbour, and how long each commit of the neighbour takes meanwhile:
	// in the same network namespace, and in another one.
	BusySync           large  `json:"busy_full_sync"`
	Neighbour          timing `json:"neighbour_during_full_sync"`
	NeighbourElsewhere timing `json:"neighbour_elsewhere_during_full_sync"`

	Flows *flowReport `json:"flows,omitempty"` // with -flows
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

func (p *program) printReport(r *report) error {
	if p.opts.output == "json" {
		return p.printJSON(r)
	}
	_, err := fmt.Fprintf(p.stdout, `%s, %d services of %d endpoints
                           median           p99           max
full sync            %v
nothing changed      %v
one endpoint replaced%v
  an empty transaction%v
  a bare element     %v
one more, one less   %v
a service more, less %v
one replaced in %d ms%v
adopt, one replaced  %v
beside a neighbour that commits %.0f times a second:
one replaced in %d ms%v
adopt, one replaced  %v
full sync            %v
that neighbour's commits during full syncs:
in the same namespace%v
in another namespace %v
`, r.Backend, r.Services, r.Endpoints, r.FullSync, r.Noop, r.OneEndpoint,
		r.EmptyTransaction, r.BareElement, r.Scale, r.OneService,
		busywriter.Pause.Milliseconds(), r.Paced, r.Adopt,
		r.NeighbourCommits, busywriter.Pause.Milliseconds(), r.BusyPaced, r.BusyAdopt,
		r.BusySync, r.Neighbour, r.NeighbourElsewhere)
	return err
}
