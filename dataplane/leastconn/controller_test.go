package leastconn

import (
	"container/heap"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/servicemodel"
)

// ending says when a connection of an endpoint ends.
type ending struct {
	at       float64
	endpoint int
	id       uint32
}

type endings []ending

func (e endings) Len() int           { return len(e) }
func (e endings) Less(i, j int) bool { return e[i].at < e[j].at }
func (e endings) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *endings) Push(x any)        { *e = append(*e, x.(ending)) }
func (e *endings) Pop() any {
	l := *e
	x := l[len(l)-1]
	*e = l[:len(l)-1]
	return x
}

// simulation is a service whose connections come at random and live exponentially.
type simulation struct {
	r       *rand.Rand
	fed     bool
	life    float64   // in seconds
	rate    float64   // new connections a second
	lives   []float64 // of an endpoint's connections, in the mean lives of others
	weights []float64

	pool         pool
	now, counted float64
	next         uint32
	ends         endings
	open         []float64 // connections of each endpoint
	moved, fedIn int
}

func newSimulation(seed uint64, fed bool, endpoints int, open, life float64) *simulation {
	s := &simulation{r: rand.New(rand.NewPCG(seed, 1)), fed: fed, life: life,
		rate: float64(endpoints) * open / life}
	for range endpoints {
		s.weights, s.lives = append(s.weights, 1), append(s.lives, 1)
	}

	s.open = make([]float64, endpoints)
	s.pool.weights, s.pool.endpoints = s.weights, make([]netip.AddrPort, endpoints)
	s.pool.units = servicemodel.Apportion(s.weights, endpoints)
	return s
}

// loads returns the open connections of each endpoint in relation to the mean.
func (s *simulation) loads() []float64 {
	out, sum := slices.Clone(s.open), 0.
	for _, n := range out {
		sum += n
	}
	for i := range out {
		out[i] *= float64(len(out)) / max(sum, 1)
	}
	return out
}

// run continues until a time. each is called eight times in a mean life.
func (s *simulation) run(until float64, each func()) {
	period, sampled := shortest.Seconds(), s.now
	for s.now < until {
		s.now += s.r.ExpFloat64() / s.rate
		for s.counted+period <= s.now {
			s.counted += period
			s.end(s.counted)
			if s.fed {
				s.feed(time.Duration(period * float64(time.Second)))
			}
			period = s.pool.pause().Seconds()
		}

		for ; sampled+s.life/8 <= s.now; sampled += s.life / 8 {
			s.end(sampled)
			each()
		}

		s.end(s.now)
		s.begin()
	}
}

// end ends the connections that end until a time.
func (s *simulation) end(until float64) {
	for len(s.ends) > 0 && s.ends[0].at <= until {
		e := heap.Pop(&s.ends).(ending)
		s.open[e.endpoint]--
	}
}

// begin begins a connection.
func (s *simulation) begin() {
	units := 0
	for _, n := range s.pool.units {
		units += n
	}

	to, at := 0, s.r.IntN(units)
	for ; at >= s.pool.units[to]; to++ {
		at -= s.pool.units[to]
	}
	s.next++
	s.open[to]++
	heap.Push(&s.ends, ending{s.now + s.r.ExpFloat64()*s.life*s.lives[to], to, s.next})
}

func (s *simulation) feed(passed time.Duration) {
	s.pool.begin()
	for _, e := range s.ends {
		s.pool.add(e.endpoint, e.id)
	}

	s.pool.learn(passed)
	units := s.pool.next(passed)
	for i, n := range units {
		s.moved += max(0, n-s.pool.units[i])
	}
	s.pool.units = units
	s.fedIn++
}

// greatest returns the mean and the 99th percentile of the greatest load in a number of lives,
// after the first ten, and the mean load of the first endpoint.
func (s *simulation) greatest(lives float64) (mean, p99, first float64) {
	var samples []float64
	s.run((10+lives)*s.life, func() {
		if s.now > 10*s.life {
			loads := s.loads()
			samples = append(samples, slices.Max(loads))
			mean, first = mean+slices.Max(loads), first+loads[0]
		}
	})

	slices.Sort(samples)
	n := float64(len(samples))
	return mean / n, samples[len(samples)*99/100], first / n
}

// With ten endpoints of 100 open connections, the greatest load stays near the mean, and an
// endpoint that keeps its connections three times as long gets fewer connections.
func TestLoadsAreNearlyEqual(t *testing.T) {
	t.Parallel()
	for _, life := range []float64{1, 10, 60} {
		for seed := range uint64(2) {
			mean, p99, _ := newSimulation(seed, true, 10, 100, life).greatest(40)
			t.Logf("life %v s: mean %.3f, p99 %.3f", life, mean, p99)
			require.Less(t, mean, 1.08)
			require.Less(t, p99, 1.15)
			slow := newSimulation(seed, true, 10, 100, life)
			slow.lives[0] = 3
			_, _, first := slow.greatest(40)
			t.Logf("three times as long: %.3f; %.1f units move", first,
				float64(slow.moved)/float64(slow.fedIn))
			require.Less(t, first, 1.13)
			require.LessOrEqual(t, float64(slow.moved)/float64(slow.fedIn), 8.)
		}
	}
}

// Under any load, shares that are fed back are at least as good as random choice.
func TestNeverWorseThanRandom(t *testing.T) {
	t.Parallel()
	for _, endpoints := range []int{2, 10, 30} {
		for _, open := range []float64{1, 10, 50} {
			for _, life := range []float64{.02, .1, 1, 10} {
				lives := max(20_000/float64(endpoints)/open, 50)
				fed, _, _ := newSimulation(1, true, endpoints, open, life).greatest(lives)
				random, _, _ := newSimulation(1, false, endpoints, open, life).greatest(lives)

				t.Logf("%d endpoints × %v open of %v s: fed %.3f, random %.3f", endpoints, open,
					life, fed, random)
				require.Less(t, fed-1, 1.02*(random-1)+.01)
			}
		}
	}
}

// When the load doubles, and an endpoint joins without connections, loads do not swing: they
// approach the mean, and stay near it.
func TestAStepDoesNotSwing(t *testing.T) {
	t.Parallel()
	for _, life := range []float64{1, 10, 60} {
		s := newSimulation(7, true, 10, 100, life)
		s.run(10*life, func() {})
		s.rate *= 2
		s.open[3] = 0 // as if it had restarted
		s.ends = slices.DeleteFunc(s.ends, func(e ending) bool { return e.endpoint == 3 })
		heap.Init(&s.ends)
		most := 0.
		s.run(30*life, func() {
			loads := s.loads()
			most = max(most, loads[3])
			if s.now > 13*life {
				require.InDelta(t, 1, loads[3], .2, "life %v at %v", life, s.now/life-10)
			}
		})

		t.Logf("life %v s: at most %.3f", life, most)
		require.Less(t, most, 1.2)
	}
}

// The mean life is found, from counts alone.
func TestLivesAreMeasured(t *testing.T) {
	t.Parallel()
	for _, life := range []float64{.5, 1, 10, 60} {
		s := newSimulation(3, true, 10, 100, life)
		s.run(20*life, func() {})
		require.InEpsilon(t, life, s.pool.life().Seconds(), .25)
	}
}

func TestWeightsAndLimits(t *testing.T) {
	t.Parallel()
	equal := []float64{1, 1, 1, 1}
	for _, tt := range []struct {
		name          string
		units         []int
		weights, open []float64
		gain          float64
		want          []int
	}{
		{"no connections", []int{16, 16, 16, 16}, equal, []float64{0, 0, 0, 0}, 10,
			[]int{16, 16, 16, 16}},
		{"equal connections", []int{16, 16, 16, 16}, equal, []float64{5, 5, 5, 5}, 10,
			[]int{16, 16, 16, 16}},
		{"eight units move at most", []int{16, 16, 16, 16}, equal, []float64{50, 5, 5, 5}, 10,
			[]int{8, 19, 19, 18}},
		{"one unit stays", []int{1, 21, 21, 21}, equal, []float64{50, 5, 5, 5}, 10,
			[]int{1, 21, 21, 21}},
		{"another weight", []int{16, 16, 16, 16}, []float64{3, 1, 1, 1}, []float64{9, 3, 3, 3}, 10,
			[]int{24, 13, 13, 14}},
		{"connections too short to count", []int{10, 22, 16, 16}, []float64{2, 1, 1, 1},
			[]float64{9, 0, 0, 0}, .2, []int{2, 1, 1, 1}},
		{"long enough again", []int{1, 1, 1, 1}, equal, []float64{6, 5, 5, 5}, .5,
			[]int{15, 17, 16, 16}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := pool{units: tt.units, weights: tt.weights, open: tt.open, ended: 1,
				time: 2 * tt.gain}
			require.Equal(t, tt.want, p.next(time.Second))
		})
	}
}
