package ipvs

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/netns"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/test/dataplanetest"
	"github.com/kernlb/kernlb/internal/test/ipvsfake"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// change returns a backend that has observed the kernel, and the changes of a state there.
func (r *rig) change(s sm.State, cfg ...Config) (*backend, *sm.ChangeSet) {
	r.t.Helper()
	b := r.backend(cfg...)
	o := ok(b.Observe(r.t.Context(), nil))(r.t)
	t := ok(sm.Resolve(nil, s))(r.t)
	t = t.Arrange(o.Table)
	return b, sm.Diff(o.Table, t)
}

// stepStories are changes, each from one state to another.
var stepStories = []struct {
	name     string
	from, to sm.State
}{
	{"first", sm.State{},
		rigState([]string{"10.244.1.1", "10.244.2.2"}, restrictedTo("198.51.100.0/24"))},
	{"restricted is added", sm.State{}.WithNode(goldenNode()),
		rigState([]string{"10.244.1.1"}, restrictedTo("198.51.100.0/24"))},
	{"restricted goes", rigState([]string{"10.244.1.1"}, restrictedTo("198.51.100.0/24")),
		sm.State{}.WithNode(goldenNode())},
	{"becomes restricted, other endpoints", rigState([]string{"10.244.1.1"}, restrictedTo()),
		rigState([]string{"10.244.2.2"}, restrictedTo("198.51.100.0/24"))},
	{"is no longer restricted, other endpoints", rigState([]string{"10.244.1.1"},
		restrictedTo("198.51.100.0/24")), rigState([]string{"10.244.2.2"}, restrictedTo())},
	{"other ranges, other endpoints", rigState([]string{"10.244.1.1"},
		restrictedTo("198.51.100.0/24")), rigState([]string{"10.244.2.2"},
		restrictedTo("192.0.2.0/24"))},
	{"other ranges", rigState([]string{"10.244.1.1"}, restrictedTo("198.51.100.0/24")),
		rigState([]string{"10.244.1.1"}, restrictedTo("198.51.0.0/16"))},
	{"endpoints come", rigState(nil), rigState([]string{"10.244.1.1", "10.244.2.2"})},
	{"endpoints go", rigState([]string{"10.244.1.1", "10.244.2.2"}), rigState(nil)},
	{"local", rigState([]string{"10.244.1.1", "10.244.2.2"}),
		rigState([]string{"10.244.1.1", "10.244.2.2"},
			func(s *sm.Service) { s.ExternalTrafficPolicy = sm.PolicyLocal })},
	{"local no more", rigState([]string{"10.244.1.1", "10.244.2.2"},
		func(s *sm.Service) { s.ExternalTrafficPolicy = sm.PolicyLocal }),
		rigState([]string{"10.244.1.1", "10.244.2.2"})},
	{"other rules, and restricted goes",
		rigState([]string{"10.244.1.1"}, restrictedTo("198.51.100.0/24")),
		sm.State{}.WithNode(sm.Node{Name: "this", Addresses: []netip.Addr{goldenAddr}})},
}

var restrictedKey = sm.FrontendKey{Addr: netip.MustParseAddr("203.0.113.20"),
	Protocol: sm.TCP, Port: 80}

// requireClosed requires that exactly the clients of one of the states reach the restricted
// address.
func (r *rig) requireClosed(states ...sm.State) {
	r.t.Helper()
	key := ipvsnl.AddressService(ipvsnl.TCP,
		netip.AddrPortFrom(restrictedKey.Addr, restrictedKey.Port))
	if !slices.Contains(r.fake.Keys(), key) {
		return
	}
	c, drift, err := r.backend().kernel.readCompanion(r.t.Context())
	require.NoError(r.t, err)
	require.Empty(r.t, drift)
	have := c.records[restrictedKey]
	require.NotNil(r.t, have, "a virtual server that the companion does not know")
	var allowed [][]netip.Prefix
	for _, s := range states {
		t := ok(sm.Resolve(nil, s))(r.t)
		if fe := t.Frontend(restrictedKey); fe != nil {
			allowed = append(allowed, fe.Sources)
		}
	}

	require.Contains(r.t, allowed, have.fe.Sources)
}

// requireRecorded requires that the earlier value of a sysctl is recorded, or still set.
func (r *rig) requireRecorded() {
	r.t.Helper()
	c, _, err := r.backend().kernel.readCompanion(r.t.Context())
	require.NoError(r.t, err)
	for name := range rigSysctls {
		if r.sysctl(name) != "0" {
			require.Equal(r.t, "0", c.tunables[name], name)
		}
	}
}

// A commit may end after any step. Source ranges restrict the existing frontends, the earlier
// values of sysctls are not lost, and the next apply results in the state.
func TestACommitMayEndAfterAnyStep(t *testing.T) {
	t.Parallel()
	for _, story := range stepStories {
		t.Run(story.name, func(t *testing.T) {
			t.Parallel()
			clean := newRig(t)
			clean.apply(clean.engine(Config{DrainLimit: -1}), story.to)
			want := clean.state()
			for n := 0; ; n++ {
				r := newRig(t)
				if story.from != (sm.State{}) {
					applied(t, r.engine(Config{DrainLimit: -1}), story.from)
				}
				b, c := r.change(story.to)
				b.cfg.DrainLimit = -1
				steps := b.steps(b.pl.plan(c))
				if n > len(steps) {
					break
				}
				for _, s := range steps[:n] {
					require.NoError(t, s.do(t.Context()))
					r.requireClosed(story.from, story.to)
				}

				r.requireRecorded()
				applied(t, r.engine(Config{DrainLimit: -1}), story.to)
				require.Equal(t, want, r.state(), "%d steps", n)
				r.apply(r.engine(Config{DrainLimit: -1}), story.to)
			}
		})
	}
}

// The same for a cleanup: a second cleanup leaves nothing, and another apply results in the state.
func TestACleanupMayEndAfterAnyStep(t *testing.T) {
	t.Parallel()
	state := rigState([]string{"10.244.1.1", "10.244.2.2"}, restrictedTo("198.51.100.0/24"))
	for n := 0; ; n++ {
		r := newRig(t)
		nothing := r.state()
		r.apply(r.engine(), state)
		want := r.state()
		for _, again := range []bool{true, false} {
			b, _ := r.change(state)
			steps := b.cleanupSteps(b.pl.planCleanup())
			if n > len(steps) {
				return
			}
			for _, s := range steps[:n] {
				require.NoError(t, s.do(t.Context()))
				r.requireClosed(state)
			}

			v := ok(b.kernel.readVersion(t.Context()))(t)
			require.Equal(t, n > 0 && n < len(steps), v.writing)
			r.requireRecorded()
			if again {
				applied(t, r.engine(), state)
				require.Equal(t, want, r.state(), "%d steps", n)
				continue
			}

			cleanUp(t, r.engine())
			require.Equal(t, nothing, r.state(), "%d steps", n)
			for name := range rigSysctls {
				require.Equal(t, "0", r.sysctl(name))
			}
		}
	}
}

// onFake is the backend on its own fake IPVS, with access to its connections.
func onFake() dataplanetest.FaultyBackend {
	fake := ipvsfake.New()
	open := func(c rawnl.Config) (backends.Backend, error) {
		b, err := openOn(fake, Config{NetNS: c.NetNS, DrainLimit: -1, Logger: c.Logger}, c)
		if err != nil {
			return nil, err
		}

		// The number of requests must not depend on the time, nor on the turn of virtual servers.
		b.scrub.share, b.kernel.outlines.read = 0, nil
		return b, nil
	}

	return dataplanetest.FaultyBackend{
		Backend: dataplanetest.Backend{Open: func(ns netns.Namespace) (backends.Backend, error) {
			return open(rawnl.Config{NetNS: ns})
		}},
		OpenWith: open,
		Between:  func(*netnstest.NS, []sm.State) error { return nil },
	}
}

// Each call to IPVS and to nf_tables fails once. A failed apply may leave part of its work, because
// IPVS has no transactions. The tests of killed processes show that clients are still treated
// correctly.
func TestEachCallGoesWrong(t *testing.T) {
	t.Parallel()
	dataplanetest.Faulted(t, onFake)
}

func TestObstacles(t *testing.T) {
	t.Parallel()
	o := dataplanetest.Obstacles{Machine: onFake, Faked: true, Instance: defaultTable,
		Crowded:  []string{"ip foreign"},
		Culprits: []string{"nft flush ruleset", "nft delete table ip " + defaultTable}}
	o.Run(t)
}
