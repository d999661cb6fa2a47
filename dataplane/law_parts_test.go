package dataplane_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/internal/test/randstate"
	"github.com/kernlb/kernlb/servicemodel"
)

// lawParts are parts whose methods are called in any order, by one program or by a new one for each
// call.
type lawParts struct {
	t       *testing.T
	states  *randstate.Source
	state   servicemodel.State
	backend inMemory
	parts   *dataplane.Parts

	node  servicemodel.Node             // whose settings the instance has
	holds map[string]servicemodel.State // by owner
	// excluded has an owner if the settings excluded frontends of its part. These may be missing
	// until the next Apply.
	excluded map[string]bool
	problem  string
}

func beginLawParts(t *testing.T, seed uint64) lawSequence {
	r := rand.New(rand.NewPCG(seed, 1<<41))
	cfg := lawStates()
	cfg.Edit = func(s *servicemodel.Service) { s.SlowStart = 0 }
	l := &lawParts{t: t, states: randstate.New(cfg, r), holds: map[string]servicemodel.State{},
		excluded: map[string]bool{}}
	l.state = l.states.State()
	b := memory.New(nil)
	if l.backend = b; seed%2 > 0 {
		l.backend = &partial{Backend: b}
	}
	l.parts = dataplane.NewParts(l.backend, nil)
	return l
}

// part returns what the state has for an owner.
func (l *lawParts) part(owner string) servicemodel.State {
	s := servicemodel.State{}.WithNode(servicemodel.Node{Name: "node-0", Zone: "z0"})
	for svc := range l.state.Services() {
		if svc.Name.Namespace == owner {
			s = s.WithService(svc).WithEndpoints(svc.Name, l.state.Endpoints(svc.Name))
		}
	}
	return s
}

// of returns the table of a state with the settings of the instance.
func (l *lawParts) of(s servicemodel.State) *servicemodel.Table {
	rules := ok(servicemodel.Resolve(nil, servicemodel.State{}.WithNode(l.node)))(l.t).Rules()
	node := ok(s.Adopt(rules))(l.t)
	return ok(servicemodel.Resolve(nil, s.WithNode(node)))(l.t)
}

func (l *lawParts) step(r *rand.Rand) string {
	l.states = l.states.With(r)
	for range r.IntN(4) {
		l.state = l.states.Change(l.state)
	}
	ctx, owner := l.t.Context(), []string{"default", "kube-system"}[r.IntN(2)]
	if r.IntN(3) == 0 {
		l.parts = dataplane.NewParts(l.backend, nil)
	}
	switch r.IntN(6) {
	case 0, 1, 2:
		s, none := l.part(owner), l.empty()
		_, err := l.parts.Apply(ctx, owner, s)
		switch {
		case errors.Is(err, dataplane.ErrRefused):
			return "apply " + owner + ", which is refused"
		case err != nil:
			l.problem = err.Error()
		case none: // the part brings its settings, the defaults
			l.node, l.holds = servicemodel.Node{}, map[string]servicemodel.State{}
		}
		l.holds[owner] = s
		delete(l.excluded, owner)
		return "apply " + owner
	case 3, 4:
		return l.configure(l.states.Change(servicemodel.State{}).Node(), r)
	}
	_, err := l.parts.Remove(ctx, owner)
	if err != nil {
		l.problem = err.Error()
	}
	delete(l.holds, owner)
	delete(l.excluded, owner)
	return "remove " + owner
}

// empty reports whether no owner holds anything, so that there is no instance.
func (l *lawParts) empty() bool {
	for owner := range l.holds {
		if l.backend.Kernel().Table().Part(owner).Len() > 0 {
			return false
		}
	}
	return true
}

func (l *lawParts) configure(n servicemodel.Node, r *rand.Rand) string {
	for range 100 {
		if n.Name != "" || r.IntN(20) == 0 {
			break
		}
		l.state = l.states.Change(l.state)
		n = l.state.Node()
	}
	n.Name, n.Zone, n.MasqueradeAll = "", "", false
	none := l.empty()
	if _, err := l.parts.Configure(l.t.Context(), n); err != nil {
		l.problem = err.Error()
	}
	if none {
		return "configure nothing"
	}
	l.node = n
	for owner := range l.holds {
		l.excluded[owner] = true
	}
	return fmt.Sprintf("configure %+v", n)
}

func (l *lawParts) wrong() string {
	if l.problem != "" {
		return l.problem
	}
	k := l.backend.Kernel().Table()
	for owner, s := range l.holds {
		held, want := k.Part(owner), l.of(s)
		c := servicemodel.Diff(held, want.Arrange(held))
		c.Rules, c.Health = nil, nil
		if l.excluded[owner] {
			kept := c.Frontends[:0]
			for _, f := range c.Frontends {
				if f.Old != nil {
					kept = append(kept, f)
				}
			}
			c.Frontends, c.Pools, c.ClusterIPs, c.Hairpins = kept, nil, nil, nil
		}
		c.Hairpins = nil // others may need them, too
		if !c.Empty() {
			return owner + " lacks:\n" + c.String()
		}
	}
	return ""
}

func (l *lawParts) end() {}

func TestWhatPartsHoldKeepsItsMeaning(t *testing.T) { lawful(t, beginLawParts) }
