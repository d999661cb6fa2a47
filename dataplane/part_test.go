package dataplane_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/internal/test/randstate"
	"github.com/kernlb/kernlb/servicemodel"
)

// published returns the state of an owner that publishes ports of 192.0.2.1 for an endpoint.
func published(owner string, host byte, ports ...uint16) servicemodel.State {
	n := servicemodel.Name{Namespace: owner, Name: "pod"}
	svc := &servicemodel.Service{Name: n,
		ExternalIPs: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, 1})}}
	ep := servicemodel.Endpoint{Addr: netip.AddrFrom4([4]byte{10, 244, 0, host})}
	for _, port := range ports {
		name := fmt.Sprint(port)
		svc.Ports = append(svc.Ports, servicemodel.ServicePort{Name: name,
			Protocol: servicemodel.TCP, Port: port})
		ep.Ports = append(ep.Ports, servicemodel.EndpointPort{Name: name,
			Protocol: servicemodel.TCP, Port: 80})
	}

	return servicemodel.State{}.WithService(svc).WithEndpoints(n, []servicemodel.Endpoint{ep})
}

// partial is a backend in memory that reads only parts.
type partial struct {
	*memory.Backend
	owners []string
}

func (b *partial) ObserveParts(ctx context.Context, owners []string, want *servicemodel.Table) (
	*backends.Observation, error) {
	o, err := b.Observe(ctx, nil)
	if err != nil {
		return nil, err
	}
	b.owners = owners
	o.OnlyOwners = o.Table.WithoutParts(owners...).Len() == 0
	c := servicemodel.Contents{Rules: o.Table.Rules()}
	all := make([]*servicemodel.Table, 0, len(owners)+1)
	for _, owner := range owners {
		all = append(all, o.Table.Part(owner))
	}
	for a := range o.Table.ClusterIPs() {
		if slices.ContainsFunc(append(all, want), func(t *servicemodel.Table) bool {
			return t.HasClusterIP(a)
		}) {
			c.ClusterIPs = append(c.ClusterIPs, a)
		}
	}
	for a := range o.Table.Hairpins() {
		if slices.ContainsFunc(append(all, want), func(t *servicemodel.Table) bool {
			return t.HasHairpin(a)
		}) {
			c.Hairpins = append(c.Hairpins, a)
		}
	}

	for f := range o.Table.Frontends() {
		if slices.Contains(owners, f.Service.Name.Namespace) || want.Frontend(f.Key) != nil {
			c.Frontends = append(c.Frontends, f)
		}
	}

	for p := range o.Table.Pools() {
		if slices.Contains(owners, p.ID.Service.Name.Namespace) {
			c.Pools = append(c.Pools, p)
		}
	}

	o.Table, err = servicemodel.NewTable(c)
	return o, err
}

func (b *partial) Owners(ctx context.Context) ([]string, error) {
	o, err := b.Observe(ctx, nil)
	return slices.Collect(o.Table.Owners()), err
}

func (b *partial) Commit(ctx context.Context, c *servicemodel.ChangeSet) (backends.Stats,
	error) {
	o, err := b.Observe(ctx, nil)
	next := o.Table.Apply(&servicemodel.ChangeSet{Rules: c.Rules})
	parts := map[string]*servicemodel.Table{}
	for _, owner := range b.owners {
		if part := c.New.Part(owner); !part.Equal(c.Old.Part(owner)) { // else refused
			parts[owner] = part
		}
	}

	if err == nil {
		next, err = next.WithParts(parts)
	}
	if err != nil {
		return backends.Stats{}, err
	}
	return b.Backend.Commit(ctx, servicemodel.Diff(o.Table, next))
}

// inMemory is a backend on a kernel in memory.
type inMemory interface {
	backends.Backend
	Kernel() *memory.Kernel
	Calls(of memory.Call) int
	Refuse(f func(*servicemodel.ChangeSet) error)
}

// onBackends runs a test with each of the two ways in which a backend reads parts.
func onBackends(t *testing.T, f func(t *testing.T, b inMemory)) {
	t.Parallel()
	for name, b := range map[string]inMemory{"all": memory.New(nil), "partial": &partial{
		Backend: memory.New(nil)}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, b)
		})
	}
}

// requireOwners requires that the kernel holds exactly the parts of these owners.
func requireOwners(t *testing.T, k *memory.Kernel, states map[string]servicemodel.State) {
	t.Helper()
	var want servicemodel.State
	for owner, s := range states {
		want = want.WithPart(owner, s)
	}
	requireHolds(t, k, want)
}

func TestPartsComeChangeAndGo(t *testing.T) {
	onBackends(t, func(t *testing.T, b inMemory) {
		p, k := dataplane.NewParts(b, nil), b.Kernel()
		a, other := published("a", 7, 80, 81), published("b", 8, 90)
		for owner, s := range map[string]servicemodel.State{"a": a, "b": other} {
			ok(p.Apply(t.Context(), owner, s))(t)
		}
		requireOwners(t, k, map[string]servicemodel.State{"a": a, "b": other})

		r := ok(p.Apply(t.Context(), "a", a))(t)
		require.Zero(t, r.Stats.Messages, "nothing differs")
		a = published("a", 9, 80, 82)
		preview := ok(p.Plan(t.Context(), "a", a))(t)
		r = ok(p.Apply(t.Context(), "a", a))(t)
		require.Equal(t, preview.Changes.String(), r.Changes.String())
		require.Equal(t, servicemodel.Counts{Added: 1, Changed: 1, Removed: 1}, r.Counts)
		requireOwners(t, k, map[string]servicemodel.State{"a": a, "b": other})

		owners := ok(p.Owners(t.Context()))(t)
		require.Equal(t, []string{"a", "b"}, owners)
		r = ok(p.Remove(t.Context(), "a", "nobody"))(t)
		require.Equal(t, servicemodel.Counts{Removed: 2}, r.Counts)
		requireOwners(t, k, map[string]servicemodel.State{"b": other})
	})
}

// A part without services creates no instance, and as the last part it removes the instance.
func TestAPartWithoutServicesLeavesNothing(t *testing.T) {
	t.Parallel()
	b := memory.New(nil)
	p := dataplane.NewParts(b, nil)
	for _, s := range []servicemodel.State{{}, {}, published("a", 7, 80), {}, {}} {
		ok(p.Apply(t.Context(), "a", s))(t)
		rules := b.Kernel().Table().Rules()
		require.Equal(t, s.Len() > 0, rules.MasqueradeMark != 0)
		preview := ok(p.Plan(t.Context(), "a", s))(t)
		require.True(t, preview.Changes.Empty(), preview.Changes)
	}
}

// A part that another program adds while the last part is removed stays.
func TestAPartComesWhileTheLastOneGoes(t *testing.T) {
	t.Parallel()
	b, others := memory.New(nil), map[string]servicemodel.State{"b": published("b", 8, 90)}
	p, q := dataplane.NewParts(b, nil), dataplane.NewParts(memory.New(b.Kernel()), nil)
	ok(p.Apply(t.Context(), "a", published("a", 7, 80)))(t)
	for _, call := range []memory.Call{memory.CallCommit, memory.CallCleanup} {
		b.Before(call, func(ctx context.Context) error {
			_, err := q.Apply(ctx, "b", others["b"])
			return err
		})
	}

	ok(p.Remove(t.Context(), "a"))(t)
	requireOwners(t, b.Kernel(), others)
}

func TestAPartIsRefusedAsAWhole(t *testing.T) {
	t.Parallel()
	b := newBench(nil)
	p := dataplane.NewParts(b, nil)
	b.Refuse(refusePort81)
	_, err := p.Apply(t.Context(), "a", published("a", 7, 80, 81))
	require.ErrorIs(t, err, backends.ErrUnsupported)
	require.ErrorIs(t, err, dataplane.ErrRefused)
	for _, s := range []servicemodel.State{published("b", 7, 80), published("a", 7, 80, 0),
		published("a", 7, 80).WithNode(servicemodel.Node{MasqueradeMark: 3})} {
		_, err = p.Apply(t.Context(), "a", s)
		var field *servicemodel.FieldError
		require.ErrorAs(t, err, &field)
		require.ErrorIs(t, err, dataplane.ErrRefused)
	}

	two := published("a", 7, 80)
	for svc := range two.Services() {
		svc.Name.Name = "other"
		two = two.WithService(svc)
	}

	_, err = p.Apply(t.Context(), "a", two)
	var taken *servicemodel.TakenError
	require.ErrorAs(t, err, &taken, "two services for one port")
	require.ErrorIs(t, err, dataplane.ErrRefused)
	require.Zero(t, b.Calls(memory.CallCommit))
}

// A part has no field that needs a program, because the programs that write parts may end.
func TestNoPartNeedsAProgram(t *testing.T) {
	t.Parallel()
	s := published("a", 1, 80)
	svc := s.Service(servicemodel.Name{Namespace: "a", Name: "pod"})
	svc.SlowStart, svc.SilentEndpoints = time.Minute, servicemodel.SilentEject
	s = s.WithService(svc)
	require.NoError(t, s.ValidatePart("a"))
	needs := []string{"slowStart", "silentEndpoints"}
	for owner, want := range map[string][]string{"a": needs,
		"b": append([]string{"name.namespace", "name.namespace"}, needs...)} {
		_, err := dataplane.NewParts(memory.New(nil), nil).Apply(t.Context(), owner, s)
		var fields []string
		for _, p := range dataplane.Problems(err) {
			fields = append(fields, p.Field)
		}
		require.ElementsMatch(t, want, fields)
	}
}

// A part whose services claim one key twice is refused, whatever the key is. All other parts are in
// the kernel as a whole.
func TestNoPartLosesAFrontend(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	b := memory.New(nil)
	p := dataplane.NewParts(b, nil)
	refused, applied := 0, 0
	for range 200 {
		s := randomPart(r)
		table := ok(servicemodel.Resolve(nil, s))(t)
		before := b.Kernel().Table()
		_, errPlan := p.Plan(t.Context(), "a", s)
		_, err := p.Apply(t.Context(), "a", s)
		conflicts := slices.Collect(table.Conflicts())
		if len(conflicts) == 0 {
			require.NoError(t, errors.Join(errPlan, err))
			require.Equal(t, table.Len(), b.Kernel().Table().Len())
			applied++
			continue
		}

		refused++
		require.ErrorIs(t, err, dataplane.ErrRefused)
		require.EqualError(t, errPlan, strings.Replace(err.Error(), "apply", "plan", 1))
		problems := dataplane.Problems(err)
		require.Len(t, problems, len(conflicts))
		for i, c := range conflicts {
			require.Equal(t, c.Loser.Name, problems[i].Service)
			require.EqualError(t, problems[i].Err, c.Key.String()+" is claimed by "+
				c.Winner.String()+" and "+c.Loser.String())
		}

		require.Same(t, before, b.Kernel().Table())
	}

	require.Positive(t, refused)
	require.Positive(t, applied)
}

// randomPart returns the state of owner a: services with few different addresses and ports.
func randomPart(r *rand.Rand) (s servicemodel.State) {
	for i := range 1 + r.IntN(3) {
		svc := &servicemodel.Service{Name: servicemodel.Name{Namespace: "a", Name: fmt.Sprint(i)},
			Ports: []servicemodel.ServicePort{{Protocol: servicemodel.TCP,
				Port: uint16(1 + r.IntN(6)), NodePort: uint16(r.IntN(9))}}}
		addrs := []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(r.IntN(4))})}
		*[]*[]netip.Addr{&svc.ClusterIPs, &svc.ExternalIPs, &svc.HostIPs}[r.IntN(3)] = addrs
		s = s.WithService(svc).WithEndpoints(svc.Name, []servicemodel.Endpoint{{
			Addr:  netip.AddrFrom4([4]byte{10, 244, 0, 1}),
			Ports: []servicemodel.EndpointPort{{Protocol: servicemodel.TCP, Port: 80}}}})
	}

	return s
}

// ofAnotherVersion is a backend whose instance another version of kernlb created.
type ofAnotherVersion struct{ *memory.Backend }

func (b ofAnotherVersion) Observe(ctx context.Context, want *servicemodel.Table) (
	*backends.Observation, error) {
	o, err := b.Backend.Observe(ctx, want)
	o.OtherLayout, o.Drift = true, []string{"layout 7"}
	return o, err
}

func TestWhatAnotherVersionHasMadeIsLeftAlone(t *testing.T) {
	t.Parallel()
	b := ofAnotherVersion{memory.New(nil)}
	p := dataplane.NewParts(b, nil)
	_, err := p.Apply(t.Context(), "a", published("a", 7, 80))
	require.ErrorIs(t, err, backends.ErrOtherLayout)
	require.ErrorContains(t, err, "layout 7")
	require.ErrorIs(t, errOf(p.Remove(t.Context(), "a")), backends.ErrOtherLayout)
	require.ErrorIs(t, errOf(p.Owners(t.Context())), backends.ErrOtherLayout)
	nobody := func(string) bool { return false }
	require.ErrorIs(t, errOf(p.Keep(t.Context(), nobody)), backends.ErrOtherLayout)
	require.Zero(t, b.Calls(memory.CallCommit))
}

func TestPartsAdoptTheSettingsOfTheInstance(t *testing.T) {
	onBackends(t, func(t *testing.T, b inMemory) {
		p := dataplane.NewParts(b, nil)
		rules := func() servicemodel.Rules { return b.Kernel().Table().Rules() }
		mark := func(m uint32) servicemodel.Node { return servicemodel.Node{MasqueradeMark: m} }
		for _, s := range []struct {
			owner string
			node  servicemodel.Node
			want  uint32 // 0: refused
		}{{"a", mark(1), 1}, {"a", mark(2), 2}, {"b", mark(1), 0}, {"b", mark(2), 2},
			{"a", mark(1), 0}, {"c", servicemodel.Node{}, 2}} {
			_, err := p.Apply(t.Context(), s.owner, published(s.owner, 7,
				80+uint16(s.owner[0])).WithNode(s.node))
			if s.want == 0 {
				var field *servicemodel.FieldError
				require.ErrorAs(t, err, &field)
				require.Equal(t, "masqueradeMark", field.Field)
				continue
			}

			require.NoError(t, err)
			require.Equal(t, s.want, rules().MasqueradeMark)
		}
	})
}

// Many programs change their own owners at the same time. Each call succeeds, and nothing is lost.
func TestManyProgramsChangeTheirParts(t *testing.T) {
	t.Parallel()
	k, turn := &memory.Kernel{}, make(chan struct{}, 1)
	var programs sync.WaitGroup
	states := make([]servicemodel.State, 20)
	name := func(i int) string { return fmt.Sprintf("owner-%02d", i) }
	for i := range states {
		programs.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(i), 1))
			for range 20 {
				p := dataplane.NewParts(&inTurns{memory.New(k), turn}, nil)
				var err error
				states[i] = servicemodel.State{}
				if rng.IntN(3) == 0 {
					_, err = p.Remove(t.Context(), name(i))
				} else {
					states[i] = published(name(i), byte(rng.IntN(200)), uint16(1000+i),
						uint16(2000+100*i+rng.IntN(100)))
					_, err = p.Apply(t.Context(), name(i), states[i])
				}

				if err != nil {
					t.Error(err)
				}
			}
		})
	}

	programs.Wait()
	want := map[string]servicemodel.State{}
	for i, s := range states {
		want[name(i)] = s
	}
	requireOwners(t, k, want)
}

// The flows are notified of the gains and losses of an owner, together with the earlier knowledge
// of other owners.
func TestFlowsAreToldOfParts(t *testing.T) {
	onBackends(t, func(t *testing.T, b inMemory) {
		flows := &told{}
		p := dataplane.NewParts(b, &dataplane.PartsConfig{Flows: flows})
		for _, step := range []struct {
			owner string
			state servicemodel.State
		}{{"a", published("a", 7, 80)}, {"b", published("b", 8, 90)},
			{"a", published("a", 9, 80, 81)}, {"b", servicemodel.State{}}} {
			r := ok(p.Apply(t.Context(), step.owner, step.state))(t)
			c := flows.changes[len(flows.changes)-1]
			require.Equal(t, r.Changes.Frontends, c.Frontends)
			require.Equal(t, r.Changes.Pools, c.Pools)
			last := flows.states[len(flows.states)-1]
			n := servicemodel.Name{Namespace: step.owner, Name: "pod"}
			require.Equal(t, step.state.Service(n), last.Service(n))
		}

		last := flows.changes[len(flows.changes)-1]
		require.Equal(t, 2, last.New.Len(), "what a holds is known still")
		require.Len(t, flows.changes, 4)
		require.Equal(t, 4, flows.settled)
	})
}

func TestWorkThatAPartLeftIsDone(t *testing.T) {
	t.Parallel()
	b := &settling{Backend: memory.New(nil)}
	flows := &told{err: errors.New("no table")}
	p := dataplane.NewParts(b, &dataplane.PartsConfig{Flows: flows})
	var told heard
	p.Subscribe(told.hear)
	r := unsettled(p.Apply(t.Context(), "a", published("a", 7, 80)))(t)
	require.EqualError(t, r.Unsettled, "no table")
	require.Equal(t, 1, r.Changes.New.Len())
	_, err := p.Settle(t.Context())
	requirePhase(t, dataplane.PhaseSettle, err)
	require.EqualError(t, err, "settle parts: no table")
	b.due(-1)
	flows.err = nil
	ok(p.Settle(t.Context()))(t)
	b.requireDone(t, 1, 3)
	require.Equal(t, []string{"applied 0: 1 added, 0 changed, 0 removed",
		"settle parts 0 failed in settle: settle parts of a: no table",
		"settle parts 0 failed in settle: settle parts: no table", "settled, next 0s"}, told.take())
}

func TestWhoWaitsForPartsHeedsItsContext(t *testing.T) {
	t.Parallel()
	b := newBench(nil)
	p := dataplane.NewParts(b, nil)
	inside, leave := make(chan struct{}), make(chan struct{})
	b.Before(memory.CallObserve, func(context.Context) error {
		close(inside)
		<-leave
		return nil
	})

	done := make(chan error)
	go func() {
		_, err := p.Remove(t.Context(), "a")
		done <- err
	}()

	<-inside
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("terminated"))
	require.ErrorIs(t, errOf(p.Owners(ctx)), context.Canceled)
	close(leave)
	require.NoError(t, <-done)
}

func TestGetReturnsWhatAnOwnerHolds(t *testing.T) {
	onBackends(t, func(t *testing.T, b inMemory) {
		p := dataplane.NewParts(b, nil)
		for _, owner := range []string{"a", "b"} {
			ok(p.Apply(t.Context(), owner, published(owner, owner[0],
				80+uint16(owner[0]))))(t)
		}

		got := ok(p.Get(t.Context(), "b"))(t)
		require.Equal(t, 1, got.Len())
		for f := range got.Frontends() {
			require.Equal(t, "b", f.Service.Name.Namespace)
			pool, _ := got.PoolsOf(f)
			require.Equal(t, "10.244.0.98:80", pool.Slots[0].Endpoint.String())
		}

		got = ok(p.Get(t.Context(), "c"))(t)
		require.Zero(t, got.Len())
	})
}

func TestSettingsOfALiveInstanceAreChanged(t *testing.T) {
	onBackends(t, func(t *testing.T, b inMemory) {
		p, k := dataplane.NewParts(b, nil), b.Kernel()
		marked := func(m uint32) servicemodel.Node {
			return servicemodel.Node{MasqueradeMark: m}
		}
		r := ok(p.Configure(t.Context(), marked(2)))(t)
		require.True(t, r.Changes.Empty())
		require.Zero(t, k.Table().Rules().MasqueradeMark, "there is no instance")
		states := map[string]servicemodel.State{}
		for _, owner := range []string{"a", "b"} {
			states[owner] = published(owner, 7, 80+uint16(owner[0])).WithNode(marked(1))
			ok(p.Apply(t.Context(), owner, states[owner]))(t)
		}

		_, err := p.Configure(t.Context(), marked(3))
		require.ErrorIs(t, err, dataplane.ErrRefused)
		require.Equal(t, "masqueradeMark", dataplane.Problems(err)[0].Field)
		for range 2 {
			ok(p.Configure(t.Context(), marked(2)))(t)
		}
		require.Equal(t, 3, b.Calls(memory.CallCommit), "two parts, and one change of settings")
		require.EqualValues(t, 2, k.Table().Rules().MasqueradeMark)
		for _, owner := range []string{"a", "b"} {
			require.Equal(t, 1, k.Table().Part(owner).Len())
		}
		ok(p.Apply(t.Context(), "c", published("c", 7, 90).WithNode(marked(2))))(t)
	})
}

// Configure rewrites the parts as an Apply of each part would, in one commit, for every setting of
// a node and every policy, because the settings of the node are stored apart from the services.
func TestConfigureMakesWhatApplyWouldMake(t *testing.T) {
	t.Parallel()
	name := servicemodel.Name{Namespace: "b", Name: "pod"}
	var states []servicemodel.State
	for _, external := range []servicemodel.TrafficPolicy{"", servicemodel.PolicyLocal} {
		for _, policy := range []servicemodel.MasqueradePolicy{"", "always", "not-pods", "host",
			"never"} {
			svc := &servicemodel.Service{Name: name, ExternalTrafficPolicy: external,
				ClusterIPs: addrs("10.96.0.1", "fd00:10:96::1"),
				HostIPs:    addrs("127.0.0.1", "198.51.100.1", "2001:db8::1"),
				Masquerade: servicemodel.MasqueradeAt(policy),
				Ports: []servicemodel.ServicePort{{Protocol: servicemodel.TCP, Port: 80,
					NodePort: 30080}}}
			var eps []servicemodel.Endpoint
			for _, a := range addrs("10.244.0.1", "fd00:10:244::1") {
				eps = append(eps, servicemodel.Endpoint{Addr: a, Ports: []servicemodel.
					EndpointPort{{Protocol: servicemodel.TCP, Port: 8080}}})
			}

			states = append(states, servicemodel.State{}.WithService(svc).WithEndpoints(name, eps))
		}
	}

	var nodes []servicemodel.Node
	for _, localhost := range []bool{false, true} {
		base := states[0].WithNode(servicemodel.Node{LocalhostNodePorts: localhost,
			NodePortAddresses: servicemodel.NodePortAddresses{CIDRs: []netip.Prefix{
				netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}}})
		for _, v := range randstate.Variants(base, name) {
			if strings.HasPrefix(v.Name, "node") || v.Name == "as it is" {
				n := v.State.Node()
				n.Name, n.Zone, n.MasqueradeAll = "", "", false // no settings of an instance
				nodes = append(nodes, n)
			}
		}
	}

	parts := func(n servicemodel.Node, s servicemodel.State) (*dataplane.Parts, *memory.Kernel) {
		b := memory.New(nil)
		p := dataplane.NewParts(b, nil)
		ok(p.Apply(t.Context(), "a", published("a", 7, 80).WithNode(n)))(t)
		ok(p.Apply(t.Context(), "b", s))(t)
		return p, b.Kernel()
	}

	r := rand.New(rand.NewPCG(1, 2))
	for _, to := range nodes {
		for _, s := range states {
			p, k := parts(nodes[r.IntN(len(nodes))], s)
			held := k.Table()
			res := ok(p.Configure(t.Context(), to))(t)
			require.Equal(t, servicemodel.Diff(held, k.Table()).Counts(), res.Counts)
			_, want := parts(to, s)
			c := servicemodel.Diff(k.Table(), want.Table())
			for _, f := range c.Frontends { // an Apply adds the frontends that the node excluded
				require.Nil(t, f.Old, "%+v: %v", to, c)
				require.Nil(t, held.Frontend(f.New.Key), "%+v: %v", to, c)
			}

			require.Nil(t, c.Rules)
			ok(p.Apply(t.Context(), "b", s))(t)
			ok(p.Apply(t.Context(), "a", published("a", 7, 80)))(t)
			require.True(t, k.Table().Equal(want.Table()), "%+v: %v", to,
				servicemodel.Diff(k.Table(), want.Table()))
		}
	}
}

// A part may have a frontend only because of the settings of the instance. Another owner may hold
// that frontend, and keeps it.
func TestAFrontendThatTheInstanceAllowsMayBeTaken(t *testing.T) {
	onBackends(t, func(t *testing.T, b inMemory) {
		p := dataplane.NewParts(b, nil)
		node := servicemodel.Node{LocalhostNodePorts: true}
		node.NodePortAddresses.CIDRs = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
		at := func(owner string) servicemodel.State {
			s, name := published(owner, 7, 80), servicemodel.Name{Namespace: owner, Name: "pod"}
			svc := s.Service(name)
			svc.ExternalIPs, svc.HostIPs = nil, addrs("127.0.0.1")
			return s.WithService(svc)
		}

		ok(p.Apply(t.Context(), "a", at("a").WithNode(node)))(t)
		_, err := p.Apply(t.Context(), "b", at("b"))
		require.ErrorIs(t, err, dataplane.ErrRefused)
		var taken *servicemodel.TakenError
		require.ErrorAs(t, err, &taken)

		// Node ports at no IPv4 address exclude loopback addresses, too.
		node.NodePortAddresses = servicemodel.NodePortAddresses{Primary: true}
		ok(p.Configure(t.Context(), node))(t)
		require.Zero(t, b.Kernel().Table().Len())
		ok(p.Apply(t.Context(), "c", published("c", 8, 90).WithNode(node)))(t)
		ok(p.Apply(t.Context(), "b", at("b")))(t)
		require.Equal(t, 1, b.Kernel().Table().Len())
	})
}

func addrs(l ...string) []netip.Addr {
	var addrs []netip.Addr
	for _, a := range l {
		addrs = append(addrs, netip.MustParseAddr(a))
	}
	return addrs
}

// emptied is an instance of another layout in which no owner holds anything.
type emptied struct {
	*memory.Backend
	others  bool // except owners that were not asked about
	removed int
}

func (b *emptied) ObserveParts(context.Context, []string, *servicemodel.Table) (
	*backends.Observation, error) {
	return &backends.Observation{Table: &servicemodel.Table{}, Drift: []string{"layout 1000"},
		OtherLayout: true, OnlyOwners: !b.others}, nil
}

func (b *emptied) Owners(context.Context) ([]string, error) { return nil, nil }

func (b *emptied) Commit(context.Context, *servicemodel.ChangeSet) (backends.Stats, error) {
	b.removed++
	return backends.Stats{}, nil
}

// An instance is removed with its last part, even if that part lost its frontends before because of
// settings that exclude their addresses.
func TestAnEmptyInstanceOfAnotherLayoutGoes(t *testing.T) {
	t.Parallel()
	for _, others := range []bool{false, true} {
		b := &emptied{Backend: memory.New(nil), others: others}
		ok(dataplane.NewParts(b, nil).Remove(t.Context(), "a"))(t)
		require.Equal(t, others, b.removed == 0)
	}
}
