package iptables

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/test/must"
	"github.com/kernlb/kernlb/internal/test/randstate"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// memory is a kernel in memory that consists of chains and rules.
type memory struct{ raw raw }

func newMemory() *memory {
	return &memory{raw: raw{tables: [tableCount]bool{true, true, true, true},
		chains: map[chainID]*rawChain{}}}
}

// list returns the chains and rules, with the uses that the kernel would report.
func (m *memory) list() *raw {
	for _, c := range m.raw.chains {
		c.Use = uint32(len(c.rules))
	}
	for id, c := range m.raw.chains {
		for j := range c.rules {
			if to := m.raw.chains[c.rules[j].leads(id)]; to != nil {
				to.Use++
			}
		}
	}

	return &m.raw
}

// rules returns the rules of a chain, or nil if it does not exist.
func (r *raw) rules(id chainID) []rule {
	if c := r.chains[id]; c != nil {
		return c.rules
	}
	return nil
}

// apply executes a plan.
func (m *memory) apply(l *layout, p *plan) {
	if p.version != nil {
		for _, v := range p.version.gone {
			delete(m.raw.chains, v)
		}
		if p.version.made {
			m.raw.put(p.version.next, &rawChain{})
		}
	}

	for _, x := range p.chains {
		if x.removes() {
			delete(m.raw.chains, x.id)
			continue
		}

		c := m.raw.chains[x.id]
		if c == nil {
			c = &rawChain{ChainInfo: nft.ChainInfo{Chain: *chainOf(x.id)}}
			m.raw.put(x.id, c)
		}

		if x.shared {
			c.rules = l.sharedAfter(x, c.rules)
		} else {
			c.rules = slices.Clone(x.after)
		}
	}
}

// damage changes some chains at random.
func (m *memory) damage(rng *rand.Rand) {
	ids := m.raw.sorted()
	for _, id := range ids {
		c, other := m.raw.chains[id], ids[rng.IntN(len(ids))]
		for other.table != id.table {
			other = ids[rng.IntN(len(ids))]
		}
		c.rules = slices.Clone(c.rules)
		switch r := rng.IntN(40); {
		case r == 0:
			delete(m.raw.chains, id)
		case r == 1:
			c.rules = nil
		case r == 2 && len(c.rules) > 0:
			c.rules = slices.Delete(c.rules, 0, 1+rng.IntN(len(c.rules)))
		case r == 3:
			c.rules = slices.Insert(c.rules, rng.IntN(len(c.rules)+1), rule{opaque: true})
		case r == 4:
			c.rules = append(c.rules, rule{target: targetJump, chain: other.name})
		case r == 5 && len(c.rules) > 0:
			x := &c.rules[rng.IntN(len(c.rules))]
			x.comment, x.ports, x.stat = "else", portRange{1, 2}, statMatch{}
		case r == 6 && m.raw.chains[other] != nil:
			c.rules = append(c.rules, m.raw.chains[other].rules...)
		case r == 7:
			m.raw.put(id.table.chain(fmt.Sprintf("KUBE-IP-10.0.%d.0/24", rng.IntN(256))),
				&rawChain{rules: c.rules})
		}
	}
}

// Any contents can be interpreted, and one commit turns them into the wanted contents.
func TestWhateverIsThereBecomesWhatIsWanted(t *testing.T) {
	t.Parallel()
	for seed := range uint64(6) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(seed, 5))
			g := randstate.New(randomConfig(), rng)
			l, m := newLayout(defaultPrefix), newMemory()
			s := g.State()
			for range 25 {
				o := ok(l.interpret(m.list(), nil))(t)
				want := resolve(t, nil, s).Arrange(o.state.table)
				next, ch := l.step(o.state, sm.Diff(o.state.table, want), &o.kernel)
				m.apply(l, l.plan(&o.kernel, next, ch))

				o = ok(l.interpret(m.list(), nil))(t)
				require.Empty(t, o.text)
				requireSameTable(t, want, o.state.table)
				again := l.plan(&o.kernel, o.state, changes{})
				require.True(t, again.empty(), "%s", again)

				m.damage(rng)
				s = g.Change(s)
			}
		})
	}
}

func TestManyDriftedChainsAreSummedUp(t *testing.T) {
	t.Parallel()
	m := newMemory()
	for i := range 500 {
		m.raw.put(nat4.chain("KUBE-SEP-"+hash(fmt.Sprint(i))), &rawChain{})
	}
	o := ok(newLayout(defaultPrefix).interpret(m.list(), nil))(t)
	require.Len(t, o.summary(), maxDrift+1)
	require.Equal(t, "and 451 more chains", o.summary()[maxDrift])
	require.Zero(t, o.state.table.Len())
}

// The rules of health checks are the rules of the wanted table, whatever the kernel holds, and
// whether or not an engine counts the health checks of a reading.
func TestHealthChecksAreThoseThatAreWanted(t *testing.T) {
	t.Parallel()
	balanced := func(s sm.State, name string, port uint16, clusterIP string) sm.State {
		svc := &sm.Service{Name: svcName(name), ExternalTrafficPolicy: sm.PolicyLocal,
			HealthCheckNodePort: port, ClusterIPs: must.Addrs(clusterIP),
			Ports: []sm.ServicePort{{Protocol: sm.TCP, Port: 80}}}
		return s.WithService(svc)
	}

	none := sm.State{}.WithNode(testNode())
	one := balanced(none, "b", 32001, "10.96.0.1")
	two := balanced(balanced(one, "a", 32001, "10.96.0.2"), "c", 32002, "fd00:10:96::1")
	l := newLayout(defaultPrefix)
	for _, counted := range []bool{true, false} {
		m := newMemory()
		step := func(s sm.State, counted bool) (empty bool) {
			o := ok(l.interpret(m.list(), nil))(t)
			have := o.state.table
			if !counted {
				have = have.Apply(&sm.ChangeSet{Old: have})
			}
			c := sm.Diff(have, resolve(t, nil, s).Arrange(have))
			if !counted { // like an engine that ignores health checks
				c.Health = nil
			}
			next, ch := l.step(o.state, c, &kernelState{})
			p := l.plan(&o.kernel, next, ch)
			m.apply(l, p)
			return p.empty()
		}

		for _, c := range []struct {
			state sm.State
			rules [2][]string // by family: the services whose port is open
		}{
			{one, [2][]string{{"b"}, nil}},
			{two, [2][]string{{"a"}, {"c"}}},
			{balanced(two, "c", 32003, "fd00:10:96::1"), [2][]string{{"a"}, {"c"}}},
			{one, [2][]string{{"b"}, nil}},
			{none, [2][]string{}},
		} {
			require.False(t, step(c.state, counted))
			require.True(t, step(c.state, !counted))
			for i, f := range nft.Families {
				var open []string
				for _, r := range m.raw.rules(filter.of(f).chain("KUBE-HEALTH-CHECKS")) {
					name, _, _ := strings.Cut(strings.TrimPrefix(r.comment, "default/"), " ")
					open = append(open, name)
				}

				require.Equal(t, c.rules[i], open)
				input := fmt.Sprint(m.raw.rules(filter.of(f).chain("INPUT")))
				require.Equal(t, open != nil, strings.Contains(input, "KUBE-HEALTH-CHECKS"))
			}
		}
	}
}

// In another program's base chain, jumps of ours are surplus, but the chain itself is not.
func TestSurplusJumpsAreDescribed(t *testing.T) {
	t.Parallel()
	o := &observed{kernel: kernelState{drift: map[chainID]*chainChange{}}}
	o.drifted(&chainChange{id: nat6.chain("OUTPUT"), existed: true, shared: true,
		before: []rule{{target: targetJump, chain: "KUBE-SERVICES"}}})
	require.Equal(t, []string{"chain OUTPUT of table ip6 nat lacks 0 and has 1 surplus rules; " +
		"surplus: -j KUBE-SERVICES"}, o.text)
}
