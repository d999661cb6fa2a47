package servicemodel_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	sm "github.com/kernlb/kernlb/servicemodel"
)

func slowly(d time.Duration) func(*sm.Service) {
	return func(s *sm.Service) { s.SlowStart = d }
}

func weighing(w uint16) func(*sm.Endpoint) { return func(e *sm.Endpoint) { e.Weight = w } }

// ramp is a table that changes with time, as in an engine.
type ramp struct {
	t    testing.TB
	now  time.Time
	held *sm.Table
}

func newRamp(t testing.TB, s sm.State) *ramp {
	r := &ramp{t: t, now: time.Unix(1e9, 0), held: &sm.Table{}}
	r.apply(s)
	return r
}

func (r *ramp) clock() time.Time { return r.now }

func (r *ramp) apply(s sm.State) *ramp {
	r.held = mustResolve(r.t, r.held, s).At(r.clock, r.held)
	return r
}

// restart forgets everything except the contents of a kernel.
func (r *ramp) restart(s sm.State) *ramp {
	read := ok(sm.NewTable(r.held.Contents()))(r.t)
	r.held = mustResolve(r.t, nil, s).At(r.clock, read)
	return r
}

// step waits until the next step, and makes the step late by the given time.
func (r *ramp) step(s sm.State, late time.Duration) *ramp {
	r.now = r.held.NextStep().Add(late)
	return r.apply(s)
}

func (r *ramp) grows() bool { return !r.held.NextStep().IsZero() }

// after makes all steps until the given time has passed.
func (r *ramp) after(d time.Duration, s sm.State) *ramp {
	for end := r.now.Add(d); ; {
		if next := r.held.NextStep(); next.IsZero() || next.After(end) {
			r.now = end
			return r
		}

		r.step(s, 0)
	}
}

// weights returns the weights of default/web by address.
func (r *ramp) weights() map[string]uint16 {
	all := map[string]uint16{}
	for _, s := range r.held.Pool(sm.PoolID{Service: webHTTP, Family: sm.IPv4}).Slots {
		all[s.Endpoint.Addr().String()] = s.Weight
	}
	return all
}

// At any time a weight is within 5 % of the line, it never decreases, and there are at most ten
// steps per second, although each step may be 20 ms late.
func TestEndpointsGrowAlongALine(t *testing.T) {
	t.Parallel()
	src := newSource(t)
	for range 40 {
		takes := time.Duration(5+src.IntN(pick(src, 1, 20, 3600))) * time.Second
		svc := webService(slowly(takes))
		eps := []sm.Endpoint{endpoint(addrA, weighing(uint16(1+src.IntN(9))))}
		if src.chance(50) {
			svc.Prefer = "zone"
			eps = append(eps, endpoint("10.64.0.9", notReady, inZone("z1")))
		}

		r := newRamp(t, stateOf(thisNode, svc, eps...))
		require.False(t, r.grows(), "a new service has whole weights")
		var began []time.Time
		addrs := []string{addrB, addrC}[:1+src.IntN(2)]
		var s sm.State
		for _, a := range addrs {
			r.now = r.now.Add(time.Duration(src.IntN(int(takes / 4))))
			eps = append(eps, endpoint(a, weighing(uint16(1+src.IntN(9)))))
			s = stateOf(thisNode, svc, eps...)
			r.apply(s)
			began = append(began, r.now)
		}

		whole := newRamp(t, s).weights()
		var steps []time.Time
		for last := r.weights(); r.grows(); last = r.weights() {
			before := r.now
			r.step(s, time.Duration(src.IntN(20))*time.Millisecond)
			for i, a := range addrs { // just before the step, and after it
				for _, held := range []uint16{last[a], r.weights()[a]} {
					line := min(1, .1+.9*float64(r.now.Sub(began[i]))/float64(takes))
					require.InDelta(t, line, float64(held)/float64(whole[a]), .05,
						"%v of %v since the last step at %v", r.now.Sub(began[i]), takes, before)
				}

				require.GreaterOrEqual(t, r.weights()[a], last[a])
			}

			require.Equal(t, whole[addrA], r.weights()[addrA])
			steps = append(steps, r.now)
			if n := len(steps); n > 10 {
				require.Greater(t, steps[n-1].Sub(steps[n-11]), time.Second)
			}
		}

		require.Equal(t, whole, r.weights())
		require.LessOrEqual(t, len(steps), 40*len(addrs))
		require.Same(t, r.held, r.apply(s).held)
	}
}

func TestAStepTouchesOneSlot(t *testing.T) {
	t.Parallel()
	svc := webService(slowly(20 * time.Second))
	s := stateOf(thisNode, svc, endpoint(addrA), endpoint(addrB))
	r := newRamp(t, s)
	s = s.WithEndpoints(web, []sm.Endpoint{endpoint(addrA), endpoint(addrB), endpoint(addrC)})
	for r.apply(s); r.grows(); {
		before := r.held
		r.step(s, 0)
		c := sm.Diff(before, r.held)
		require.LessOrEqual(t, c.Counts().Changed, 1, "%v", c)
		c.Pools = nil
		require.True(t, c.Empty())
	}
}

// slowService returns the service of the cases of growths.
func slowService(edits ...func(*sm.Service)) *sm.Service {
	return webService(append([]func(*sm.Service){slowly(20 * time.Second)}, edits...)...)
}

// threeWith returns a state with A, B and C, after an edit.
func threeWith(svc *sm.Service, edit func([]sm.Endpoint)) sm.State {
	own := slices.Clone(three)
	edit(own)
	return stateOf(thisNode, svc, own...)
}

func unready(i int) func([]sm.Endpoint) {
	return func(e []sm.Endpoint) { notReady(&e[i]) }
}

var (
	three = []sm.Endpoint{endpoint(addrA), endpoint(addrB), endpoint(addrC)}
	begun = stateOf(thisNode, slowService(), three...)
)

// growths begin with A and B whole, and C halfway through 20 s.
var growths = []struct {
	name string
	then func(*ramp)
	want string
}{
	{"nothing", func(*ramp) {}, "A20 B20 C11"},
	{"it goes on", func(r *ramp) { r.after(4*time.Second, begun) }, "A20 B20 C15"},
	{"another service changes", func(r *ramp) {
		r.apply(begun.WithService(webService(named("www"))))
	}, "A20 B20 C11"},
	{"a restart goes on", func(r *ramp) { r.restart(begun).after(4*time.Second, begun) },
		"A20 B20 C15"},
	{"a restart without the slow start ends it", func(r *ramp) {
		r.restart(stateOf(thisNode, webService(), three...))
	}, "A1 B1 C1"},
	{"a new weight holds in part", func(r *ramp) {
		r.apply(threeWith(slowService(), func(e []sm.Endpoint) { e[2].Weight = 3 }))
	}, "A20 B20 C33"},
	{"the weight of another holds at once", func(r *ramp) {
		r.apply(threeWith(slowService(), func(e []sm.Endpoint) { e[0].Weight = 3 }))
	}, "A60 B20 C11"},
	{"a quiesced endpoint goes, and begins anew", func(r *ramp) {
		quiesced := func(e []sm.Endpoint) { e[2].Condition = sm.Quiesced }
		r.apply(threeWith(slowService(), quiesced)).apply(begun)
	}, "A20 B20 C2"},
	{"one that was unready begins anew", func(r *ramp) {
		r.apply(threeWith(slowService(), unready(2))).apply(begun)
	}, "A20 B20 C2"},
	{"whole ones begin anew, too", func(r *ramp) {
		r.apply(threeWith(slowService(), unready(0))).apply(begun)
	}, "A2 B20 C11"},
	{"a longer time keeps the part", func(r *ramp) {
		long := stateOf(thisNode, slowService(slowly(40*time.Second)), three...)
		r.apply(long).after(8*time.Second, long)
	}, "A20 B20 C15"},
	{"a shorter time keeps the part", func(r *ramp) {
		short := stateOf(thisNode, slowService(slowly(10*time.Second)), three...)
		r.apply(short).after(2*time.Second, short)
	}, "A20 B20 C15"},
	{"without slow start the weights are whole at once", func(r *ramp) {
		r.apply(stateOf(thisNode, webService(), three...))
	}, "A1 B1 C1"},
	{"a slow start that is added concerns later endpoints", func(r *ramp) {
		r.apply(stateOf(thisNode, webService(), three...)).apply(begun)
	}, "A20 B20 C20"},
	{"a service that comes back has whole weights", func(r *ramp) {
		r.apply(sm.State{}).apply(begun)
	}, "A20 B20 C20"},
	{"endpoints that stay in use while none is ready", func(r *ramp) {
		r.apply(threeWith(slowService(), func(e []sm.Endpoint) {
			for i := range e {
				terminating(&e[i])
			}
		})).apply(begun)
	}, "A20 B20 C11"},
	{"an endpoint that was ready, and was not needed, is whole", func(r *ramp) {
		near := slowService(prefers("node"))
		place := func(e []sm.Endpoint) { here(&e[0]); here(&e[1]) }
		r.apply(threeWith(near, place)).after(time.Minute, begun)
		r.apply(threeWith(near, func(e []sm.Endpoint) { place(e); notReady(&e[0]) }))
	}, "B49 C21"},
}

func TestChangesWhileAnEndpointGrows(t *testing.T) {
	t.Parallel()
	for _, tt := range growths {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRamp(t, threeWith(slowService(), unready(2)))
			r.apply(begun).after(10*time.Second, begun)
			tt.then(r)
			got := ""
			for i, a := range []string{addrA, addrB, addrC} {
				if w, ok := r.weights()[a]; ok {
					got += fmt.Sprintf(" %c%d", 'A'+i, w)
				}
			}

			require.Equal(t, tt.want, got[1:])
		})
	}
}

func TestOthersPayNothingForSlowStarts(t *testing.T) {
	t.Parallel()
	prev := tableOf(t, thisNode, webService(), endpoint(addrA))
	next := mustResolve(t, prev, stateOf(thisNode, webService(), endpoint(addrB)))
	never := func() time.Time { panic("the time is not asked for") }
	require.Same(t, next, next.At(never, prev))
}

func TestStretchedWeightsStayBounded(t *testing.T) {
	t.Parallel()
	table := tableOf(t, thisNode, webService(slowly(time.Minute)), endpoint(addrA, weighing(9999)),
		endpoint(addrB))
	require.Equal(t, []string{"default/web:http/tcp IPv4 cluster: 10.64.0.1:8080 weight 59994, " +
		"10.64.0.2:8080 weight 6"}, texts(table.Pools()))
}

// A pool of sh whose weights no backend can express by units has no units: a thousand endpoints
// would need gigabytes.
func TestHeavyHashesHaveNoUnits(t *testing.T) { // alone, because it counts what is allocated
	for _, takes := range []time.Duration{0, time.Minute} {
		svc := webService(slowly(takes), func(s *sm.Service) { s.Scheduler = sm.SourceHash })
		eps := []sm.Endpoint{}
		for i := range 50 {
			eps = append(eps, endpoint(fmt.Sprint("10.64.9.", i+1), weighing(uint16(65535-i))))
		}
		light := stateOf(thisNode, svc, endpoint(addrA, weighing(3)), endpoint(addrB))
		r := newRamp(t, light)
		for _, s := range []sm.State{stateOf(thisNode, svc, eps[1:]...),
			stateOf(thisNode, svc, eps...), light} {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			r.apply(s)
			runtime.ReadMemStats(&after)
			require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(3<<20))
			for p := range r.held.Pools() {
				require.Less(t, len(p.Units), 1<<16)
			}
		}
	}
}

func TestTraceSaysWhatGrows(t *testing.T) {
	t.Parallel()
	svc := webService(slowly(20 * time.Second))
	r := newRamp(t, stateOf(thisNode, svc, endpoint(addrA)))
	s := stateOf(thisNode, svc, endpoint(addrA), endpoint(addrB))
	text := r.apply(s).after(10*time.Second, s).held.Trace(sm.Packet{Protocol: sm.TCP,
		Src: netip.MustParseAddrPort("10.64.0.1:40000"),
		Dst: netip.MustParseAddrPort("10.96.0.1:80")}, nil).String()
	require.Contains(t, text, "growing      10.64.0.2:8080 has 55 % of its weight\n")
}

func TestServicesInJSONHaveTheirSlowStartAsText(t *testing.T) {
	t.Parallel()
	svc := webService(slowly(time.Minute))
	text := ok(json.Marshal(svc))(t)
	require.Contains(t, string(text), `"slowStart":"1m0s"`)
	var read sm.Service
	require.NoError(t, json.Unmarshal(text, &read))
	require.Equal(t, svc, &read)
	require.ErrorContains(t, json.Unmarshal([]byte(`{"slowStart": "soon"}`), &read), "soon")
	require.ErrorContains(t, json.Unmarshal([]byte(`{"slowstrat": "1m"}`), &read), "slowstrat")
}

// growingServices returns five services; in the first n services, a third endpoint is in slow
// start.
func growingServices(n int) sm.State {
	s := sm.State{}.WithNode(thisNode)
	for i := range 5 {
		svc := webService(slowly(5*time.Second), named(fmt.Sprint("web", i)))
		svc.ClusterIPs, svc.Ports[0].NodePort = addrs(fmt.Sprint("10.96.0.", 1+i)), 0
		eps := []sm.Endpoint{endpoint(addrA), endpoint(addrB)}
		if i < n {
			eps = append(eps, endpoint(addrC))
		}
		s = s.WithService(svc).WithEndpoints(svc.Name, eps)
	}

	return s
}

func (r *ramp) pools() []string { return texts(r.held.Pools()) }

// If the state changes less than 100 ms after a step, all endpoints in slow start keep their
// weights, although some were ready earlier than others.
func TestChangesBetweenStepsLeaveWhatGrows(t *testing.T) {
	t.Parallel()
	r := newRamp(t, growingServices(0))
	for i := range 3 {
		r.apply(growingServices(i + 1))
		r.now = r.now.Add(60 * time.Millisecond)
	}

	s := growingServices(3)
	for r.step(s, 0); r.grows(); r.step(s, 0) {
		stepped, held := r.now, r.pools()
		for _, ms := range []int{10, 40, 99} {
			r.now = stepped.Add(time.Duration(ms) * time.Millisecond)
			r.apply(s.WithService(webService(named("other"), func(svc *sm.Service) {
				svc.ClusterIPs, svc.Ports[0].NodePort = addrs(fmt.Sprint("10.96.1.", ms)), 0
			})))
			require.Equal(t, held, r.pools(), "%d ms after a step", ms)
		}
	}
}

// If the slow start of a service ends, for whatever reason, the other services stay as they are.
func TestServicesGrowIndependently(t *testing.T) {
	t.Parallel()
	s := growingServices(3)
	name := sm.Name{Namespace: "default", Name: "web0"}
	for what, change := range map[string]sm.State{
		"removed":           s.WithoutService(name).WithEndpoints(name, nil),
		"without endpoints": s.WithEndpoints(name, nil),
		"without slow start": s.WithService(webService(named("web0"), func(svc *sm.Service) {
			svc.ClusterIPs, svc.Ports[0].NodePort = addrs("10.96.0.1"), 0
		})),
	} {
		r := newRamp(t, growingServices(0)).apply(s).after(time.Second, s)
		held := slices.DeleteFunc(r.pools(), isOf(name))
		r.apply(change)
		require.Equal(t, held, slices.DeleteFunc(r.pools(), isOf(name)), what)
		require.True(t, r.grows(), what)
	}
}

func isOf(n sm.Name) func(string) bool {
	return func(pool string) bool { return strings.HasPrefix(pool, n.String()+":") }
}
