package dataplane_test

import (
	"encoding/json"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/servicemodel"
)

// Two owners swap their ports in one commit. Flows and observers hear of both owners.
func TestOwnersSwapPortsInOneCommit(t *testing.T) {
	onBackends(t, func(t *testing.T, b inMemory) {
		flows := &told{}
		p := dataplane.NewParts(b, &dataplane.PartsConfig{Flows: flows})
		ok(p.ApplyAll(t.Context(), map[string]servicemodel.State{
			"a": published("a", 7, 80), "b": published("b", 8, 90)}))(t)
		require.Equal(t, 1, b.Calls(memory.CallCommit))

		var heard heard
		p.Subscribe(heard.hear)
		swapped := map[string]servicemodel.State{
			"a": published("a", 7, 90), "b": published("b", 8, 80)}
		r := ok(p.ApplyAll(t.Context(), swapped))(t)
		require.Equal(t, 2, b.Calls(memory.CallCommit))
		require.Equal(t, []string{"a", "b"}, r.Owners)
		for _, f := range r.Changes.Frontends {
			require.NotNil(t, f.Old, "no address is without a service in between")
			require.NotNil(t, f.New)
		}

		requireOwners(t, b.Kernel(), swapped)
		require.Len(t, heard.take(), 1)
		require.Len(t, flows.changes, 2)
		last := flows.states[1]
		for owner, s := range swapped {
			n := servicemodel.Name{Namespace: owner, Name: "pod"}
			require.Equal(t, s.Service(n), last.Service(n))
		}
		r = ok(p.ApplyAll(t.Context(), swapped))(t)
		require.True(t, r.Changes.Empty(), r.Changes)
		r = ok(p.ApplyAll(t.Context(), nil))(t)
		require.True(t, r.Changes.Empty(), r.Changes)
	})
}

// The flows keep the knowledge of all owners of a commit, even if another program removed an owner
// that this one knows.
func TestFlowsKnowAllOwnersOfACommit(t *testing.T) {
	onBackends(t, func(t *testing.T, b inMemory) {
		flows := &told{}
		p := dataplane.NewParts(b, &dataplane.PartsConfig{Flows: flows})
		ok(p.Apply(t.Context(), "a", published("a", 6, 80)))(t)
		ok(dataplane.NewParts(memory.New(b.Kernel()), nil).Remove(t.Context(), "a"))(t)
		ok(p.ApplyAll(t.Context(), map[string]servicemodel.State{
			"b": published("b", 7, 90), "c": published("c", 8, 80)}))(t)
		ok(p.Apply(t.Context(), "d", published("d", 9, 70)))(t)
		last := flows.changes[len(flows.changes)-1]
		require.Equal(t, 3, last.New.Len())
	})
}

// Each refused owner is named with its own problems, and the other owners are applied.
func TestRefusedOwnersAreNamed(t *testing.T) {
	t.Parallel()
	b := newBench(nil)
	b.Refuse(refusePort81)
	p := dataplane.NewParts(b, nil)
	ok(p.Apply(t.Context(), "z", published("z", 6, 70)))(t)
	var heard heard
	p.Subscribe(heard.hear)
	r := ok(p.ApplyAll(t.Context(), map[string]servicemodel.State{
		"a": published("a", 7, 80), "invalid": published("invalid", 8, 0),
		"other": published("b", 8, 90), "taken": published("taken", 8, 70),
		"late":        published("late", 8, 80, 82),
		"settings":    published("settings", 8, 83).WithNode(servicemodel.Node{MasqueradeMark: 3}),
		"unsupported": published("unsupported", 8, 81)}))(t)
	require.Equal(t, []string{"a"}, r.Owners)
	requireOwners(t, b.Kernel(), map[string]servicemodel.State{"a": published("a", 7, 80),
		"z": published("z", 6, 70)})
	fields := map[string]string{}
	for _, refused := range r.Refused {
		problem := dataplane.Problems(refused.Err)[0]
		fields[refused.Owner] = problem.Object + " " + problem.Field
	}

	require.Equal(t, map[string]string{
		"invalid": "service invalid/pod ports[0].port", "late": "192.0.2.1:80/tcp ports[0].port",
		"other":       "service b/pod name.namespace",
		"settings":    "node masqueradeMark",
		"taken":       "192.0.2.1:70/tcp ports[0].port",
		"unsupported": "service unsupported/pod:81 port"}, fields)
	require.Len(t, heard.take(), 7)
	text := ok(json.Marshal(r))(t)
	require.Contains(t, string(text), `"refused":[{"owner":"invalid","problems":[{"object":`)
	require.Contains(t, r.Refused[0].String(), "invalid: service invalid/pod: ports[0].port")
}

// Owners that are applied together get what they would get one after the other, if they do not want
// each other's ports. If they do, every port has one owner, no refused owner loses or gains
// anything, and an owner is refused only if it would be refused by itself, too.
func TestOwnersAreAppliedTogether(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	refusals, moves := 0, 0
	for range 100 {
		b := memory.New(nil)
		b.Refuse(refusePort81)
		p := dataplane.NewParts(b, nil)
		holds := map[string][]uint16{}
		for range 8 {
			wants, states := map[string][]uint16{}, map[string]servicemodel.State{}
			for _, owner := range []string{"a", "b", "c", "d"} {
				if r.IntN(4) > 0 {
					wants[owner] = nil
					ports := []uint16{80, 82, 83, 84, 85, 86, 87, 88}
					for range r.IntN(4) {
						i := r.IntN(len(ports))
						wants[owner] = append(wants[owner], ports[i])
						ports = slices.Delete(ports, i, i+1)
					}
					slices.Sort(wants[owner])
					if r.IntN(12) == 0 {
						wants[owner] = append(wants[owner], 81)
					}
					states[owner] = published(owner, owner[0], wants[owner]...)
				}
			}

			after, before := maps.Clone(holds), b.Calls(memory.CallCommit)
			maps.Copy(after, wants)
			possible := disjoint(after)
			res := ok(p.ApplyAll(t.Context(), states))(t)
			require.LessOrEqual(t, b.Calls(memory.CallCommit), before+1)
			for _, refused := range res.Refused {
				require.False(t, possible, "%v wants %v: %v", holds, wants, refused)
				after[refused.Owner] = holds[refused.Owner]
				_, err := p.Plan(t.Context(), refused.Owner, states[refused.Owner])
				require.ErrorIs(t, err, dataplane.ErrRefused, "%v wants %v", holds, wants)
				refusals++
			}

			require.True(t, disjoint(after))
			inTurn := applyInTurn(t, holds, wants)
			require.False(t, inTurn == nil && len(res.Refused) > 0, res.Refused)
			if possible && inTurn != nil {
				moves++
			}
			holds = after
			want := map[string]servicemodel.State{}
			for owner, ports := range holds {
				want[owner] = published(owner, owner[0], ports...)
			}
			if b.Kernel().Table().Len() > 0 { // else there is no instance
				requireOwners(t, b.Kernel(), want)
				continue
			}
			require.Empty(t, slices.Concat(slices.Collect(maps.Values(holds))...))
		}
	}

	require.Positive(t, refusals)
	require.Positive(t, moves)
}

// disjoint reports whether no two owners have the same port, and the backend has all ports.
func disjoint(all map[string][]uint16) bool {
	seen := map[uint16]bool{81: true}
	for _, ports := range all {
		for _, port := range ports {
			if seen[port] {
				return false
			}
			seen[port] = true
		}
	}

	return true
}

// applyInTurn applies the ports of owners on a new kernel, one owner after the other.
func applyInTurn(t *testing.T, steps ...map[string][]uint16) error {
	b := memory.New(nil)
	b.Refuse(refusePort81)
	p := dataplane.NewParts(b, nil)
	for _, step := range steps {
		for _, owner := range slices.Sorted(maps.Keys(step)) {
			s := published(owner, owner[0], step[owner]...)
			if _, err := p.Apply(t.Context(), owner, s); err != nil {
				return err
			}
		}
	}

	return nil
}

// A refused owner gets what it wants if the owner that stood in its way is refused after it.
func TestARefusedOwnerIsTriedAgain(t *testing.T) {
	t.Parallel()
	b := memory.New(nil)
	p := dataplane.NewParts(b, nil)
	ok(p.Apply(t.Context(), "z", published("z", 1, 80)))(t)
	r := ok(p.ApplyAll(t.Context(), map[string]servicemodel.State{
		"a": published("a", 7, 80, 90), // 80 is held by z
		"b": published("b", 8, 90)}))(t)
	require.Equal(t, []string{"b"}, r.Owners)
	require.Len(t, r.Refused, 1)
	require.Equal(t, "a", r.Refused[0].Owner)
	ok(p.Remove(t.Context(), "b"))(t)

	r = ok(p.ApplyAll(t.Context(), map[string]servicemodel.State{
		"a": published("a", 7, 80, 90), // 80 moves from z, if z is not refused
		"b": published("b", 8, 90), "z": published("z", 1, 80, 0)}))(t)
	require.Equal(t, []string{"b"}, r.Owners)
	r = ok(p.ApplyAll(t.Context(), map[string]servicemodel.State{
		"a": published("a", 7, 80), "b": published("b", 8, 90),
		"c": published("c", 8, 90), "z": published("z", 1, 70, 90)}))(t)
	require.Equal(t, []string{"b"}, r.Owners)
	require.Len(t, r.Refused, 3)
}

// If a backend blames a part that stays, no owner of the call can be left out, and the call fails.
func TestARefusalOfAPartThatStaysEndsTheCall(t *testing.T) {
	t.Parallel()
	b := memory.New(nil)
	p := dataplane.NewParts(b, nil)
	ok(p.Apply(t.Context(), "z", published("z", 6, 70)))(t)
	b.Refuse(func(*servicemodel.ChangeSet) error {
		return &backends.UnsupportedError{Backend: "memory",
			Service: servicemodel.Name{Namespace: "z", Name: "pod"}}
	})
	_, err := p.ApplyAll(t.Context(), map[string]servicemodel.State{
		"a": published("a", 7, 80), "b": published("b", 8, 90)})
	require.ErrorIs(t, err, dataplane.ErrRefused)
	require.Equal(t, 1, b.Calls(memory.CallCommit))
}
