package silence

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/test/must"
	"github.com/kernlb/kernlb/servicemodel"
)

// world is a service with endpoints in one pool, a judge, and a clock. Questions are answered by
// its field answers, after a tenth of a second.
type world struct {
	*judge
	t         *testing.T
	now       time.Time
	tick      time.Duration
	endpoints []netip.AddrPort
	answers   func(endpoint int) bool
	questions map[int]int
	changes   []Change
	pending   []func() // in the order of their times
	at        []time.Time
}

func newWorld(t *testing.T, endpoints int) *world {
	w := &world{judge: newJudge(0.5), t: t, now: time.Unix(1e9, 0), tick: 20 * time.Millisecond,
		questions: map[int]int{}, answers: func(int) bool { return true }}
	for i := range endpoints {
		w.endpoints = append(w.endpoints, netip.AddrPortFrom(client(i), 80))
	}
	return w
}

func client(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
}

var web = servicemodel.PortName{Name: servicemodel.Name{Namespace: "default", Name: "web"},
	Protocol: servicemodel.TCP}

func (w *world) place(i int) place { return place{web, w.endpoints[i]} }

func (w *world) pools(place) [][]netip.AddrPort { return [][]netip.AddrPort{w.endpoints} }

// later does something after a time.
func (w *world) later(d time.Duration, do func()) {
	at := w.now.Add(d)
	i, _ := slices.BinarySearchFunc(w.at, at.Add(1), time.Time.Compare)
	w.at, w.pending = slices.Insert(w.at, i, at), slices.Insert(w.pending, i, do)
}

// pass lets time pass, and decides at each tick.
func (w *world) pass(d time.Duration) {
	for end := w.now.Add(d); w.now.Before(end); {
		w.now = w.now.Add(w.tick)
		for len(w.at) > 0 && !w.at[0].After(w.now) {
			do := w.pending[0]
			w.at, w.pending = w.at[1:], w.pending[1:]
			do()
		}

		for _, p := range w.next(w.now, w.pools) {
			i := int(p.endpoint.Addr().As4()[3])
			w.questions[i]++
			w.later(100*time.Millisecond, func() { w.heard(p, w.answers(i), w.now) })
		}

		w.changes = append(w.changes, w.news...)
		w.news = nil
	}
}

// connect makes a connection whose answer takes some time; a negative time means never.
func (w *world) connect(endpoint int, from netip.Addr, took time.Duration) {
	s := sample{place: w.place(endpoint), client: from, began: w.now}
	w.later(quick, func() {
		s.answered = took >= 0 && took <= quick
		w.hear(s, w.now)
		if !s.answered {
			w.later(patience-quick, func() {
				s.answered, s.late = took >= 0 && took <= patience, true
				w.hear(s, w.now)
			})
		}
	})
}

// warm makes many connections that are answered.
func (w *world) warm() {
	for range 100 {
		for i := range w.endpoints {
			w.connect(i, client(1000+i), 0)
		}
	}

	w.pass(time.Second)
}

const never = -time.Second

// says returns the changes, as "0 out at 400ms".
func (w *world) says(from time.Time) (out []string) {
	for _, c := range w.changes {
		state := "in"
		if c.Out {
			state = "out"
		} else if c.Trial {
			state = "on trial"
		}

		out = append(out, fmt.Sprintf("%d %s at %s", c.Endpoint.Addr().As4()[3], state,
			c.Time.Sub(from)))
	}

	return out
}

// silent0 answers all questions but those to endpoint 0.
func silent0(i int) bool { return i != 0 }

// judgements are connections to a service, and the changes that they cause.
var judgements = map[string]struct {
	endpoints int
	cold      bool // no connections before
	answers   func(int) bool
	run       func(w *world)
	want      []string
}{
	"silent": {2, false, silent0, func(w *world) {
		w.connect(0, client(1), never)
		w.connect(1, client(2), 0)
		w.pass(100 * time.Millisecond)
		w.connect(0, client(2), never)
		w.connect(1, client(2), 0)
		w.pass(time.Second)
	}, []string{"0 out at 300ms"}},
	"it answers questions": {2, false, nil, func(w *world) {
		for i := range 100 {
			w.connect(0, client(i), never)
			w.connect(1, client(i), 0)
			w.pass(100 * time.Millisecond)
		}
		require.LessOrEqual(w.t, w.questions[0], 12, "one a second")
		require.NotZero(w.t, w.questions[0])
	}, nil},
	"one client": {2, false, silent0, func(w *world) {
		for range 100 {
			w.connect(0, client(1), never)
			w.connect(1, client(2), 0)
			w.pass(100 * time.Millisecond)
		}
	}, nil},
	"clients that no endpoint answers": {2, false, silent0, func(w *world) {
		for i := range 100 {
			w.connect(0, client(i%3), never)
			w.connect(1, client(i%3), never)
			w.connect(1, client(9), 0)
			w.pass(100 * time.Millisecond)
		}
	}, nil},
	"nobody answers": {3, false, func(int) bool { return false }, func(w *world) {
		for i := range 100 {
			w.connect(i%3, client(i), never)
			w.pass(50 * time.Millisecond)
		}
	}, nil},
	"at most a half": {5, false, func(i int) bool { return i > 2 }, func(w *world) {
		for i := range 300 {
			end := 0 * time.Second
			if i%5 < 3 {
				end = never
			}
			w.connect(i%5, client(i), end)
			w.pass(20 * time.Millisecond)
		}
	}, []string{"0 out at 300ms", "1 out at 320ms"}},
	"never seen, and silent": {2, true, silent0, func(w *world) {
		for i := range 40 {
			w.connect(0, client(i), never)
			w.connect(1, client(i), 0)
			w.pass(100 * time.Millisecond)
		}
	}, []string{"0 out at 3.2s"}},
	"slow from the beginning": {2, true, silent0, func(w *world) {
		for i := range 200 {
			w.connect(0, client(i), 2*time.Second)
			w.connect(1, client(i), 0)
			w.pass(50 * time.Millisecond)
		}
	}, nil},
	"becomes slow": {2, false, silent0, func(w *world) {
		for i := range 400 {
			w.connect(0, client(i), 2*time.Second)
			w.connect(1, client(i), 0)
			w.pass(50 * time.Millisecond)
		}
	}, []string{"0 out at 300ms", "0 in at 3s"}},
	"back": {2, false, silent0, func(w *world) {
		w.connect(0, client(1), never)
		w.connect(0, client(2), never)
		w.pass(20 * time.Millisecond)
		w.connect(1, client(2), 0)
		w.pass(2500 * time.Millisecond)
		w.answers = func(int) bool { return true }
		w.pass(10 * time.Second)
	}, []string{"0 out at 300ms", "0 in at 3.4s"}},
	"relapse": {2, false, silent0, func(w *world) {
		w.answers = func(i int) bool {
			return i != 0 || w.changes != nil && w.now.Second()%2 == 0
		}
		for i := range 150 {
			if !w.isOut(w.place(0)) {
				w.connect(0, client(i), never)
			}
			w.connect(1, client(i), 0)
			w.pass(100 * time.Millisecond)
		}
		for i := 1; i+1 < len(w.changes); i += 2 {
			require.True(w.t, w.changes[i+1].Out)
		}
	}, nil},
	"on trial": {2, false, silent0, func(w *world) {
		w.connect(0, client(1), never)
		w.connect(0, client(2), never)
		w.pass(20 * time.Millisecond)
		w.connect(1, client(2), 0)
		w.pass(31 * time.Second)
	}, []string{"0 out at 300ms", "0 on trial at 30.3s"}},
}

func TestJudge(t *testing.T) {
	t.Parallel()
	for name, c := range judgements {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, c.endpoints)
			if !c.cold {
				w.warm()
			}
			if c.answers != nil {
				w.answers = c.answers
			}
			begin := w.now
			c.run(w)
			if name != "relapse" {
				require.Equal(t, c.want, w.says(begin))
			}
			t.Log(w.says(begin), w.questions)
		})
	}
}

// Whatever happens, an endpoint is only ejected while it answers no question, at most half of them
// are out, and those that answer come back.
func TestJudgeLaws(t *testing.T) {
	t.Parallel()
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 1))
		w := newWorld(t, 1+r.IntN(6))
		dead := map[int]bool{}
		w.answers = func(i int) bool { return !dead[i] }
		loss := []float64{0, 0.02, 0.5}[r.IntN(3)]
		for range 300 {
			if r.IntN(20) == 0 {
				i := r.IntN(len(w.endpoints))
				dead[i] = !dead[i]
			}

			i := r.IntN(len(w.endpoints))
			took := time.Duration(0)
			if dead[i] || r.Float64() < loss {
				took = never
			} else if r.IntN(30) == 0 {
				took = time.Duration(r.Int64N(int64(4 * time.Second)))
			}

			if !w.isOut(w.place(i)) {
				w.connect(i, client(r.IntN(50)), took)
			}
			before := len(w.changes)
			w.pass(time.Duration(20+r.IntN(100)) * time.Millisecond)
			for _, c := range w.changes[before:] {
				if c.Out {
					rec := w.records[web][c.Endpoint]
					require.Less(t, c.Time.Sub(rec.silent), between, "seed %d", seed)
					require.GreaterOrEqual(t, c.Clients, 2)
				}
			}

			out := 0
			for _, rec := range w.records[web] {
				if rec.out {
					out++
				}
				require.False(t, rec.out && rec.run.total == 0, "seed %d", seed)
			}

			require.LessOrEqual(t, 2*out, len(w.endpoints), "seed %d", seed)
		}

		clear(dead)
		w.tick = time.Second
		w.pass(2*longest + 2*between)
		for i := range w.endpoints {
			require.False(t, w.isOut(w.place(i)), "seed %d: endpoint %d", seed, i)
		}
	}
}

// Lost packets eject nobody, even if an endpoint answers no question.
func TestLossEjectsNobody(t *testing.T) {
	t.Parallel()
	for seed := range uint64(3) {
		r := rand.New(rand.NewPCG(seed, 2))
		w := newWorld(t, 4)
		w.answers = func(int) bool { return false }
		const step = 50
		for range 20_000 / step {
			for range step {
				took := time.Duration(0)
				if r.Float64() < 0.02 {
					took = time.Second + 5*time.Millisecond // of the second SYN
				}
				w.connect(r.IntN(4), client(r.IntN(1000)), took)
			}

			w.pass(100 * time.Millisecond)
		}

		require.Empty(t, w.changes)
	}
}

// No endpoint that answers is ejected, whatever happens in the network: 1 % of all packets are
// lost, one endpoint takes 2 s, a client gets no answers, and policies drop a client at one
// endpoint and all forged sources of a scan at another endpoint. The questions of the node are
// lost, too. KERNLB_TEST_CONNECTIONS sets the number of connections.
func TestEndpointsThatAnswerAreNotEjected(t *testing.T) {
	t.Parallel()
	connections := 20_000
	if s := os.Getenv("KERNLB_TEST_CONNECTIONS"); s != "" {
		connections = must.OK(strconv.Atoi(s))(t)
	}
	const loss, slow, dropping, scanned = 0.01, 0, 1, 2
	for seed := range uint64(2) {
		r := rand.New(rand.NewPCG(seed, 2))
		w := newWorld(t, 5)
		answered := func(endpoint int, c netip.Addr) time.Duration {
			took, again := time.Duration(0), time.Second
			for r.Float64() < 2*loss { // the SYN, or its answer
				took, again = took+again, 2*again
			}

			if endpoint == slow {
				took += 2 * time.Second
			}
			if c == client(0) || c == client(1) && endpoint == dropping {
				took = never
			}
			return took
		}

		w.answers = func(int) bool {
			for range questions {
				if r.Float64() >= 2*loss {
					return true
				}
			}

			return false
		}

		for made := 0; made < connections; {
			scanning := r.IntN(20) == 0
			for range 25 { // some 500 a second
				made++
				i, from := r.IntN(5), client(r.IntN(200))
				if took := answered(i, from); scanning && i == scanned {
					w.connect(i, client(1000+made), never)
				} else {
					w.connect(i, from, took)
				}
			}

			w.pass(50 * time.Millisecond)
		}

		require.Empty(t, w.changes, "seed %d", seed)
		t.Log(w.questions, "questions")
	}
}

func TestEndpointsThatAreGoneAreForgotten(t *testing.T) {
	t.Parallel()
	suspected := newWorld(t, 2)
	suspected.warm()
	suspected.answers = silent0
	suspected.connect(0, client(1), never)
	suspected.pass(300 * time.Millisecond)
	require.False(t, suspected.isOut(suspected.place(0)))
	require.NotEmpty(t, suspected.open)
	suspected.keep(func(place) bool { return false }, suspected.pools, suspected.now)
	require.Empty(t, suspected.open)

	w := newWorld(t, 2)
	w.warm()
	w.answers = func(int) bool { return false }
	w.connect(0, client(1), never)
	w.connect(0, client(2), never)
	w.pass(20 * time.Millisecond)
	w.connect(1, client(2), 0)
	w.pass(time.Second)
	require.True(t, w.isOut(w.place(0)))
	w.keep(func(p place) bool { return p != w.place(0) }, w.pools, w.now)
	require.False(t, w.isOut(w.place(0)))
	require.Empty(t, w.open)
	w.pass(2 * forget)
	require.Empty(t, w.records)
	require.Empty(t, w.failing)
}

// When most of the other endpoints are gone, those that are out come back, the first ones first.
func TestEndpointsComeBackWhenOthersGo(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 6)
	w.warm()
	w.answers = func(i int) bool { return i > 2 }
	for i := range 3 {
		w.connect(i, client(10*i), never)
		w.connect(i, client(10*i+1), never)
		w.pass(w.tick)
		w.connect(3, client(9), 0)
		w.pass(time.Second)
	}
	begin := w.now
	require.Len(t, w.changes, 3)
	w.changes = nil
	all := w.endpoints
	for _, left := range []int{6, 5, 3, 2} { // the first of them
		w.endpoints = all[:left]
		wanted := func(p place) bool { return slices.Contains(w.endpoints, p.endpoint) }
		w.keep(wanted, w.pools, w.now)
		w.pass(w.tick)
		out := 0
		for i := range w.endpoints {
			if w.isOut(w.place(i)) {
				out++
			}
		}

		require.LessOrEqual(t, 2*out, left)
	}

	require.Equal(t, []string{"0 on trial at 20ms", "1 on trial at 40ms"}, w.says(begin))
}

// An endpoint is compared with the endpoint that last answered a client, and has answered since.
func TestEndpointsAreComparedWithOneThatAnswers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 4)
	_, ok := w.control(w.judge.at(w.place(0)), w.place(0))
	require.False(t, ok)
	w.connect(1, client(1), 0)
	w.pass(w.tick)
	w.connect(2, client(1), 0)
	w.pass(w.tick)
	w.connect(3, client(1), 0)
	w.pass(time.Second)
	w.answers = func(int) bool { return false }
	w.connect(3, client(2), never)
	w.pass(quick + w.tick)
	other, ok := w.control(w.judge.at(w.place(0)), w.place(0))
	require.True(t, ok)
	require.Equal(t, w.endpoints[2], other)
	w.eject(w.judge.at(w.place(0)), w.place(0), w.now)
	_, ok = w.control(w.judge.at(w.place(0)), w.place(0))
	require.False(t, ok, "its return is not compared")
}

// An endpoint on trial is silent until it answers, is removed, or has no connections for long: a
// metric of silent endpoints does not say that it works.
func TestATrialIsNoAnswer(t *testing.T) {
	t.Parallel()
	for end, do := range map[string]func(w *world){
		"answer": func(w *world) { w.connect(0, client(3), 0); w.pass(time.Second) },
		"slow answer": func(w *world) {
			w.records[web][w.endpoints[0]].prompt = false
			w.connect(0, client(3), time.Second)
			w.pass(4 * time.Second)
		},
		"relapse": func(w *world) { w.eject(w.records[web][w.endpoints[0]], w.place(0), w.now) },
		"removed": func(w *world) {
			w.keep(func(p place) bool { return p != w.place(0) }, w.pools, w.now)
		},
		"unused": func(w *world) { w.pass(forget + 2*time.Minute) },
	} {
		t.Run(end, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 2)
			w.warm()
			w.answers = silent0
			w.connect(0, client(1), never)
			w.connect(0, client(2), never)
			w.pass(20 * time.Millisecond)
			w.connect(1, client(2), 0)
			w.pass(20 * time.Second)
			require.Equal(t, w.ejected(), w.silent())
			w.pass(11 * time.Second)
			require.Empty(t, w.ejected())
			require.Empty(t, w.ejected())
			require.Len(t, w.silent(), 1)
			require.True(t, w.silent()[0].Trial)
			require.Contains(t, w.silent()[0].Status(w.now), "on trial for 0s: no answer since")
			do(w)
			require.Equal(t, w.ejected(), w.silent())
		})
	}
}
