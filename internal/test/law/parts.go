package law

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/internal/test/must"
	"github.com/kernlb/kernlb/internal/test/randstate"
	"github.com/kernlb/kernlb/servicemodel"
)

// owners are the owners of parts.
var owners = []string{"default", "kube-system"}

// parts is a sequence of calls of parts, by one program or by a new one for each call.
type parts struct {
	*instances
	states  *randstate.Source
	state   servicemodel.State
	backend *backend
	parts   *dataplane.Parts

	node  servicemodel.Node             // whose settings the instance has
	holds map[string]servicemodel.State // by owner
	// excluded has an owner if the settings excluded frontends of its part. These may be missing
	// until the next Apply.
	excluded map[string]bool
	problem  string
}

func beginParts(t *testing.T, seed uint64, m *Machine) sequence {
	r := rand.New(rand.NewPCG(seed, 1<<41))
	cfg := states()
	cfg.Edit = func(s *servicemodel.Service) {
		s.SlowStart, s.SilentEndpoints = 0, servicemodel.SilentDefault
	}
	l := &parts{instances: &instances{Machine: m, t: t}, states: randstate.New(cfg, r),
		holds: map[string]servicemodel.State{}, excluded: map[string]bool{}}
	l.state = l.states.State()
	l.start()
	return l
}

// start begins a new program.
func (l *parts) start() {
	b := l.process(0)
	if l.Part != nil {
		b = l.Part(b)
	}
	l.backend = &backend{Backend: b}
	l.parts = dataplane.NewParts(l.backend, nil)
}

// part returns the part of an owner in the state.
func (l *parts) part(owner string) servicemodel.State {
	s := servicemodel.State{}.WithNode(servicemodel.Node{Name: "node-0", Zone: "z0"})
	for svc := range l.state.Services() {
		if svc.Name.Namespace == owner {
			s = s.WithService(svc).WithEndpoints(svc.Name, l.state.Endpoints(svc.Name))
		}
	}

	return s
}

// of returns the table of a state with the settings of the instance.
func (l *parts) table(s servicemodel.State) *servicemodel.Table {
	rules := must.OK(servicemodel.Resolve(nil, servicemodel.State{}.WithNode(l.node)))(l.t).Rules()
	node := must.OK(s.Adopt(rules))(l.t)
	return must.OK(servicemodel.Resolve(nil, s.WithNode(node)))(l.t)
}

func (l *parts) step(r *rand.Rand) string {
	l.states = l.states.With(r)
	for range r.IntN(4) {
		l.state = l.vary(l.states, l.state)
	}
	ctx, owner := l.t.Context(), owners[r.IntN(len(owners))]
	if r.IntN(3) == 0 {
		l.start()
	}
	switch r.IntN(9) {
	case 8:
		return l.applyAll(ctx)
	case 0, 1, 2:
		return l.apply(ctx, owner, r)
	case 3, 4:
		return l.configure(ctx, r)
	case 5:
		return l.harm(ctx, r)
	case 6:
		_, err := l.parts.Keep(ctx, func(o string) bool { return o != owner })
		return l.removed("keep all but "+owner, owner, err)
	}

	_, err := l.parts.Remove(ctx, owner)
	return l.removed("remove "+owner, owner, err)
}

// removed records that the part of an owner is gone. With the last part, the instance is gone, too.
func (l *parts) removed(name, owner string, err error) string {
	if err != nil {
		l.problem = err.Error()
	}
	delete(l.holds, owner)
	delete(l.excluded, owner)
	if l.empty() { // what another owner holds has no frontends
		l.fresh()
	}
	return name
}

// apply applies a part, after a plan that must have the same changes, or after a failed commit.
func (l *parts) apply(ctx context.Context, owner string, r *rand.Rand) string {
	s, name := l.part(owner), "apply "+owner
	var plan *dataplane.Preview
	var planErr error
	planned := r.IntN(3) == 0
	switch {
	case planned:
		plan, planErr = l.parts.Plan(ctx, owner, s)
	case r.IntN(3) == 0:
		name += l.fail(ctx, owner, s, r)
	}

	res, err := l.applied(ctx, owner, s)
	refused := errors.Is(err, dataplane.ErrRefused)
	if planned && (refused != errors.Is(planErr, dataplane.ErrRefused) ||
		err == nil && own(res.Changes) != own(plan.Changes)) {
		l.problem = fmt.Sprintf("planned %v: %v, and applied %v: %v", plan, planErr, res, err)
	}

	if refused {
		return name + ", which is refused"
	} else if err != nil {
		l.problem = err.Error()
	}

	return name
}

// own describes changes without addresses that another owner may also have. Whether these are new
// depends on the reading: if a set was full, the whole instance was read.
func own(c *servicemodel.ChangeSet) string {
	l := *c
	l.ClusterIPs, l.Hairpins = nil, nil
	return l.String()
}

// fail applies a part while a commit or a call to the kernel fails.
func (l *parts) fail(ctx context.Context, owner string, s servicemodel.State,
	r *rand.Rand) string {
	what, end, none := "a commit that failed", func() {}, l.empty()
	if l.Fault != nil && r.IntN(2) == 0 {
		what, end = l.Fault(r)
	} else {
		l.backend.fails, l.backend.lost = true, r.IntN(2) == 0
	}

	_, _ = l.parts.Apply(ctx, owner, s)
	end()
	l.backend.fails, l.backend.lost = false, false
	if none && !l.empty() { // it took effect
		l.fresh()
	}
	return ", after " + what
}

// applied applies a part, and records that its owner holds it.
func (l *parts) applied(ctx context.Context, owner string, s servicemodel.State) (
	*dataplane.Result, error) {
	none := l.empty()
	r, err := l.parts.Apply(ctx, owner, s)
	if err != nil {
		return nil, err
	}
	if none {
		l.fresh()
	}
	if l.empty() { // the last part has no frontends with these settings, so the instance went
		l.fresh()
		return r, nil
	}

	l.holds[owner] = s
	delete(l.excluded, owner)
	return r, nil
}

// applyAll applies the parts of all owners in one commit. An owner that is refused would be refused
// by itself, too.
func (l *parts) applyAll(ctx context.Context) string {
	none, states, name := l.empty(), map[string]servicemodel.State{}, "apply all"
	for _, owner := range owners {
		states[owner] = l.part(owner)
	}
	res, err := l.parts.ApplyAll(ctx, states)
	if err != nil {
		l.problem = err.Error()
		return name
	}
	if none {
		l.fresh()
	}
	if l.empty() {
		l.fresh()
		return name
	}

	for _, refused := range res.Refused {
		name += ", refused " + refused.Owner
		_, err := l.parts.Plan(ctx, refused.Owner, states[refused.Owner])
		if !errors.Is(err, dataplane.ErrRefused) {
			l.problem = fmt.Sprintf("%v, but then: %v", refused, err)
		}
		delete(states, refused.Owner)
	}

	for owner, s := range states {
		l.holds[owner] = s
		delete(l.excluded, owner)
	}
	return name
}

// fresh records that a part brought its settings, which are the defaults.
func (l *parts) fresh() {
	l.node, l.holds = servicemodel.Node{}, map[string]servicemodel.State{}
}

// empty reports whether there is no instance, because no owner holds anything.
func (l *parts) empty() bool {
	return l.observe(0).Table.Rules().MasqueradeMark == 0
}

func (l *parts) configure(ctx context.Context, r *rand.Rand) string {
	n := l.vary(l.states, servicemodel.State{}).Node()
	for range 100 {
		if n.Name != "" || r.IntN(20) == 0 {
			break
		}
		l.state = l.vary(l.states, l.state)
		n = l.state.Node()
	}

	n.Name, n.Zone, n.MasqueradeAll = "", "", false
	none := l.empty()
	_, err := l.parts.Configure(ctx, n)
	if errors.Is(err, dataplane.ErrRefused) { // the backend lacks a setting
		return fmt.Sprintf("configure %+v, which is refused", n)
	} else if err != nil {
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

// harm damages the instance, and lets the owners repair it.
func (l *parts) harm(ctx context.Context, r *rand.Rand) string {
	h := l.Harms[r.IntN(len(l.Harms))]
	h.Do(0, r)
	if !h.Settings || len(l.holds) == 0 {
		_, err := l.parts.Remove(ctx, owners...)
		if errors.Is(err, backends.ErrOtherLayout) {
			_, err = l.process(0).Cleanup(ctx)
		}
		must.OK(0, err)(l.t)
		l.fresh()
		return h.Name + ", remove all"
	}

	for _, i := range r.Perm(len(owners)) {
		s, holds := l.holds[owners[i]]
		if !holds {
			continue
		}
		_, err := l.applied(ctx, owners[i], s)
		if l.excluded[owners[i]] && errors.Is(err, dataplane.ErrRefused) {
			// The new settings include frontends again that the backend cannot express.
			_, err = l.parts.Remove(ctx, owners[i])
			l.removed("", owners[i], nil)
		}

		if err != nil {
			l.problem = fmt.Sprintf("%s, apply %s: %v", h.Name, owners[i], err)
		}
	}

	return h.Name + ", apply"
}

func (l *parts) wrong() string {
	if l.problem != "" {
		return l.problem
	}
	o := l.observe(0)
	if len(o.Drift) > 0 {
		return fmt.Sprintf("the kernel has drift: %q", o.Drift)
	}
	for owner, s := range l.holds {
		held, want := o.Table.Part(owner), l.table(s)
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

	if l.Users != nil {
		return l.Users.Lost(0, nil)
	}
	return ""
}

func (l *parts) end() { l.close() }
