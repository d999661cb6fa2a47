// Package proportion tests the law that the work for a change is proportional to the change, and
// not to the endpoints of its service or to the other services. It generates its cases: for each
// field of the model, and each change, it compares the cost of the work at several sizes. It
// counts, and never measures time.
package proportion

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/servicemodel"
)

// Cost is the cost of some work.
type Cost struct {
	Elements, Messages, Sent int // of the plan; Sent is in bytes
	Objects, Bytes           int // that were allocated
}

// Subject holds a state. It prepares a change to another state, and returns the work for the
// change. The work returns the cost of the plan. Before each change the subject returns to the
// first state. It returns nil if it cannot express the state.
type Subject func(to servicemodel.State) (work func() backends.Stats)

// Law is the promise of a kind of subjects.
type Law struct {
	// Hold returns a subject that holds a state, or nil if it cannot express the state.
	Hold func(tb testing.TB, s servicemodel.State) Subject
	// Limits hold in all cases. The test that sets them gives the reason.
	Limits
	// Others are the numbers of other services in the compared states. Nil means 30 and 240.
	Others []int
	// Exceptions are cases with other limits.
	Exceptions []Exception
}

// Exception is a group of cases in which the work may grow faster. An exception that no case needs
// is an error.
type Exception struct {
	// Fields and Change are the beginnings of the names of the cases. Empty means all.
	Fields []string
	Change string
	// Because is the reason.
	Because string
	// Limits are added to the limits of the law.
	Limits
}

// Limits are the maximum costs of the work for each endpoint of the changed service, for each
// endpoint at each of its frontends, and for each other service.
type Limits struct{ Endpoint, Pair, Other Cost }

// most returns a limit of the growth between two sizes.
func (l *Limits) most(of func(Cost) int, small, large size) int {
	pairs := large.endpoints*large.frontends - small.endpoints*small.frontends
	return of(l.Endpoint)*(large.endpoints-small.endpoints) + of(l.Pair)*pairs +
		of(l.Other)*(large.others-small.others)
}

// concerns reports whether an exception is for a case.
func (e *Exception) concerns(field, change string) bool {
	return strings.HasPrefix(change, e.Change) && (len(e.Fields) == 0 ||
		slices.ContainsFunc(e.Fields, func(f string) bool { return strings.HasPrefix(field, f) }))
}

// slack is the additional cost that a larger state may always have: maps of the model are deeper
// trees, Go maps and lists grow in steps, and buffers are filled up.
var slack = Cost{Elements: 4, Messages: 4, Sent: 2 << 10, Objects: 200, Bytes: 16 << 10}

// deeper is the additional cost of ten times as many services: a tree of chains has an additional
// level.
var deeper = Cost{Elements: 64, Messages: 80, Sent: 24 << 10, Objects: 1000, Bytes: 64 << 10}

// Holds tests a law.
func (l *Law) Holds(t *testing.T) { l.holds(t, "") }

// HoldsAsItIs tests a law with no field changed, for a subject with another configuration.
func (l *Law) HoldsAsItIs(t *testing.T) { l.holds(t, asItIs) }

// asItIs begins the names of the variants without a changed field.
const asItIs = "as it is"

func (l *Law) holds(t *testing.T, only string) {
	if testing.Short() {
		t.Skip("-short: the race detector allocates, too")
	}
	run := &run{Law: l, needed: make([]bool, len(l.Exceptions))}
	all, ran, expressed := 0, 0, 0
	for _, external := range []servicemodel.TrafficPolicy{servicemodel.PolicyCluster,
		servicemodel.PolicyLocal} {
		for field, grow := range variants(external) {
			if all++; !strings.HasPrefix(field, only) {
				continue
			}
			t.Run(fmt.Sprintf("%s/policy%s", field, external), func(t *testing.T) {
				ran++

				// other services do not have fields of endpoints, and the rest is tested with one
				// policy
				wide := strings.HasPrefix(field, asItIs) ||
					external == servicemodel.PolicyCluster && !strings.HasPrefix(field, "endpoint.")
				if run.compare(t, field, wide, grow) {
					expressed++
				}
			})
		}
	}

	if ran == 0 && only != "" {
		t.Error("no state")
	}
	if ran < all {
		return // some were chosen
	}
	for i, e := range l.Exceptions {
		if !run.needed[i] && !t.Failed() {
			t.Errorf("no case needs the exception %v %q: %s", e.Fields, e.Change, e.Because)
		}
	}

	if expressed < 50 {
		t.Errorf("only %d fields could be expressed", expressed)
	}
}

// sizes returns the sizes of states to compare. With KERNLB_TEST_SIZES=all they reach ten thousand
// endpoints, and ten thousand other services.
func (l *Law) sizes() (sizes []size) {
	endpoints, others := []int{32, 256}, l.Others
	if others == nil {
		others = []int{30, 240}
	}
	if all := os.Getenv("KERNLB_TEST_SIZES") == "all"; all {
		endpoints, others = []int{100, 1000, 10000}, []int{100, 1000, 10000}
		for _, n := range endpoints {
			sizes = append(sizes, size{n, 1, 2})
		}
	}

	for _, n := range endpoints {
		for _, f := range []int{4, 12} {
			if f == 4 || n == endpoints[0] || len(endpoints) > 2 {
				sizes = append(sizes, size{n, f, 2})
			}
		}
	}

	for _, n := range others {
		sizes = append(sizes, size{8, 1, n})
	}
	return sizes
}

// size is the size of a state.
type size struct {
	endpoints, frontends int // of the service that changes
	others               int // other services
}

func (s size) String() string {
	return fmt.Sprintf("%d endpoints, %d frontends, %d others", s.endpoints, s.frontends, s.others)
}

// run is one test of a law.
type run struct {
	*Law
	needed []bool // which exceptions were needed
}

// compare compares the costs of a field at all sizes; with wide, also at sizes with many other
// services. It returns false if no state can be expressed.
func (r *run) compare(t *testing.T, field string, wide bool, grow grower) bool {
	type point struct {
		size
		cost Cost
	}
	points := map[string][]point{}
	for _, at := range r.sizes() {
		if at.others > 2 && !wide {
			continue
		}
		state := grow(at)
		subject := r.Hold(t, state)
		if subject == nil {
			continue
		}
		warm := changes[0].make(state) // of the buffers and caches that a program has
		for i, c := range changes {
			if i == 0 {
				warm = changes[1].make(state)
			}
			cost, ok := measure(subject, warm, c.make(state))
			if !ok {
				continue
			}
			for _, p := range points[c.name] {
				if why := r.grows(field, c.name, p.size, at, p.cost, cost); why != "" {
					again, _ := measure(r.Hold(t, state), warm, c.make(state))
					cost = cost.lesser(again)
				}

				if why := r.grows(field, c.name, p.size, at, p.cost, cost); why != "" {
					t.Errorf("%s: from %v to %v: %s", c.name, p.size, at, why)
				}
			}

			points[c.name] = append(points[c.name], point{at, cost})
		}
	}

	return len(points) > 0
}

// grows describes how the cost of a change grows too fast between two sizes, or returns "". It does
// not compare sizes that differ in two ways, nor a single frontend with several frontends, because
// these have other kinds of addresses.
func (r *run) grows(field, change string, small, large size, before, after Cost) (why string) {
	e, f, o := large.endpoints-small.endpoints, large.frontends, large.others-small.others
	more := f > small.frontends
	if e < 0 || o < 0 || e > 0 && o > 0 || f < small.frontends ||
		more && (e+o > 0 || small.frontends == 1) {
		return ""
	}

	for _, p := range parts {
		got := float64(p.of(after))
		if got <= r.limit(p.of, small, large, before, nil) {
			continue
		}
		var exceptions []*Exception
		for i := range r.Exceptions {
			x := &r.Exceptions[i]
			if x.concerns(field, change) && x.most(p.of, small, large) > 0 {
				r.needed[i], exceptions = true, append(exceptions, x)
			}
		}

		if most := r.limit(p.of, small, large, before, exceptions); got > most {
			why += fmt.Sprintf("%d and then %.0f %s (limit %.0f); ", p.of(before), got, p.what,
				most)
		}
	}

	return strings.TrimSuffix(why, "; ")
}

// limit returns the limit of a part of the cost at a size, from the cost at a smaller size. It
// allows ten percent more, because maps and lists grow in steps.
func (r *run) limit(of func(Cost) int, small, large size, before Cost, also []*Exception) float64 {
	most := float64(of(before))*1.1 + float64(of(slack))
	if large.others >= 10*small.others {
		most += float64(of(deeper))
	}
	if large.frontends > small.frontends && large.endpoints == small.endpoints {
		most = most * float64(large.frontends) / float64(small.frontends)
	}
	most += float64(r.most(of, small, large))
	for _, x := range also {
		most += float64(x.most(of, small, large))
	}
	return most
}

// parts are the parts of a cost.
var parts = []struct {
	what string
	of   func(Cost) int
}{
	{"elements", func(c Cost) int { return c.Elements }},
	{"messages", func(c Cost) int { return c.Messages }},
	{"bytes sent", func(c Cost) int { return c.Sent }},
	{"allocated objects", func(c Cost) int { return c.Objects }},
	{"allocated bytes", func(c Cost) int { return c.Bytes }},
}

func (c Cost) lesser(o Cost) Cost {
	c.Objects, c.Bytes = min(c.Objects, o.Objects), min(c.Bytes, o.Bytes)
	return c
}

// measure returns the cost of a change, after another one.
func measure(s Subject, warm, to servicemodel.State) (c Cost, ok bool) {
	if s == nil {
		return c, false
	}
	if work := s(warm); work != nil {
		work()
	}
	work := s(to)
	if work == nil {
		return c, false
	}
	var stats backends.Stats
	c = Of(func() { stats = work() })
	c.Elements, c.Messages, c.Sent = stats.Elements, stats.Messages, stats.Bytes
	return c, true
}

// Of returns the allocations of a function.
func Of(work func()) (c Cost) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	work()
	runtime.ReadMemStats(&after)
	return Cost{Objects: int(after.Mallocs - before.Mallocs),
		Bytes: int(after.TotalAlloc - before.TotalAlloc)}
}
