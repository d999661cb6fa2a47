package nftables

import (
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/test/rawnltest"
	"github.com/kernlb/kernlb/servicemodel"
)

// sharedState has three owners. The test edits the objects of "default". The second owner shares an
// endpoint and a cluster IP with "default".
func sharedState() map[string]servicemodel.State {
	with := func(owner, ip string, port uint16, endpoints ...string) servicemodel.State {
		svc := goldenService(func(s *servicemodel.Service) {
			s.Name.Namespace, s.ClusterIPs = owner, []netip.Addr{netip.MustParseAddr(ip)}
			s.Ports[0].Port, s.Ports[0].NodePort = port, 0
		})
		return servicemodel.State{}.WithNode(goldenNode()).WithService(svc).
			WithEndpoints(svc.Name, goldenEndpoints(endpoints...))
	}

	return map[string]servicemodel.State{"default": editedState(),
		"other": with("other", "10.96.0.10", 81, "10.244.1.1", "10.244.1.9"),
		"third": with("third", "10.96.0.30", 80, "10.244.1.2")}
}

// applyParts applies each part like a separate program that starts and ends.
func applyParts(t *testing.T, ns *netnstest.NS, states map[string]servicemodel.State,
	owners ...string) (messages int) {
	t.Helper()
	for _, owner := range owners {
		b := newBackend(t, ns, nil)
		r := ok(dataplane.NewParts(b, nil).Apply(t.Context(), owner, states[owner]))(t)
		messages += r.Stats.Messages
		require.NoError(t, b.Close())
	}

	return messages
}

// requireShared requires that the kernel holds exactly the objects of the owners.
func requireShared(t *testing.T, ns *netnstest.NS, states map[string]servicemodel.State,
	drift int) {
	t.Helper()
	o := ok(newBackend(t, ns, nil).Observe(t.Context(), nil))(t)
	elements := 0
	for _, text := range o.Drift {
		if !strings.Contains(text, " has no element ") {
			elements++
		}
	}
	require.Equal(t, drift, elements, o.Drift)
	want := servicemodel.State{}.WithNode(goldenNode())
	for owner, s := range states {
		want = want.WithPart(owner, s)
	}
	all := mustResolve(t, want)
	require.Equal(t, "", servicemodel.Diff(o.Table, all.Arrange(o.Table)).String())
}

// An owner's next apply of its part repairs edits by hand. Owners that do not apply lose nothing.
func TestPartsAreRepaired(t *testing.T) {
	t.Parallel()
	program, err := exec.LookPath("nft")
	if err != nil {
		t.Skip("nft is not installed (Debian package nftables)")
	}
	edits := append(slices.Clone(handEdits),
		handEdit{"the index is emptied", "flush map ip kernlb owner-frontends; " +
			"flush set ip kernlb owner-hairpins"},
		handEdit{"nothing is done", ""})
	for _, tc := range edits {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			ns, _ := newNS(t)
			states := sharedState()
			applyParts(t, ns, states, "default", "other", "third")
			requireShared(t, ns, states, 0)
			lost := tc.nft == "flush ruleset" || tc.nft == "delete table ip kernlb"

			editByHand(t, ns, program, tc.nft)
			left := 0
			if strings.HasSuffix(tc.name, "is added") && strings.Contains(tc.nft, "-endpoints") {
				left = 1 // no packet meets it, and a reading of everything finds it
			}
			n := applyParts(t, ns, states, "default", "other")
			require.Equal(t, tc.nft == "" || left > 0, n == 0)
			if lost {
				applyParts(t, ns, states, "third")
			}
			requireShared(t, ns, states, left)
			if left == 0 {
				requireIndex(t, ns, []string{"default", "other", "third"})
			}
			p := dataplane.NewParts(newBackend(t, ns, nil), nil)
			ok(p.Remove(t.Context(), "default", "third", "other"))(t)
			require.Empty(t, runNft(t, ns, program, "", "list", "ruleset"))
		})
	}
}

// asOtherLayout makes the table resemble a table of another version.
func asOtherLayout(t *testing.T, ns *netnstest.NS) {
	t.Helper()
	runNft(t, ns, nftPrograms(t)[0], `flush set ip kernlb settings
add element ip kernlb settings { 0x00000001 comment "layout 1000" }`, "-f", "-")
}

// Each owner can be removed from an instance that another version created. The last owner removes
// the instance. Until then no owner can be added, because the objects of the other owners would be
// lost.
func TestPartsOfAnotherLayoutAreRemoved(t *testing.T) {
	t.Parallel()
	ns, b := newNS(t)
	program := nftPrograms(t)[0]
	states := sharedState()
	applyParts(t, ns, states, "default", "other")
	asOtherLayout(t, ns)
	runNft(t, ns, program, "add set ip kernlb new { type ipv4_addr . inet_proto . inet_service; "+
		"elements = { 10.96.0.10 . tcp . 80, 10.96.0.10 . tcp . 81 }; }", "-f", "-")
	p := dataplane.NewParts(b, nil)
	before := runNft(t, ns, program, "", "list", "ruleset")
	for _, fn := range []func() error{
		func() error { _, err := p.Apply(t.Context(), "third", states["third"]); return err },
		func() error { _, err := p.Plan(t.Context(), "default", states["default"]); return err },
		func() error { _, err := p.Settle(t.Context()); return err },
	} {
		err := fn()
		require.ErrorIs(t, err, backends.ErrOtherLayout)
		require.ErrorContains(t, err, `"layout 1000", want "layout `)
	}

	for _, owner := range []string{"nobody", "third"} {
		ok(p.Remove(t.Context(), owner))(t)
	}
	require.Equal(t, before, runNft(t, ns, program, "", "list", "ruleset"))

	r := ok(p.Remove(t.Context(), "default"))(t)
	require.Positive(t, r.Counts.Removed)
	require.Empty(t, r.Drift, "it is replaced later")
	left := runNft(t, ns, program, "", "list", "ruleset")
	left = strings.ReplaceAll(left, ": 10.96.0.10 . tcp . 80", "") // the index stays as it is
	require.False(t, strings.Contains(left, `"default/`))
	require.False(t, strings.Contains(left, "10.96.0.10 . tcp . 80"), "it is in no set")
	require.True(t, strings.Contains(left, "10.96.0.10 . tcp . 81 . 1 : 10.244.1.9"), "another's")
	owners := ok(p.Owners(t.Context()))(t)
	require.Equal(t, []string{"other"}, owners)

	ok(p.Keep(t.Context(), func(string) bool { return false }))(t)
	require.Empty(t, runNft(t, ns, program, "", "list", "ruleset"))
	applyParts(t, ns, states, "third")
	requireShared(t, ns, map[string]servicemodel.State{"third": states["third"]}, 0)
}

// The recorded previous layout can be read to this extent.
func TestPartsOfTheLayoutBeforeAreRemoved(t *testing.T) {
	t.Parallel()
	ns, b := newNS(t)
	program := nftPrograms(t)[0]
	runNft(t, ns, program, "", "-f", "testdata/layouts/c6e37d1.nft")
	p := dataplane.NewParts(b, nil)
	owners := ok(p.Owners(t.Context()))(t)
	require.Equal(t, []string{"default"}, owners)
	_, err := p.Apply(t.Context(), "other", sharedState()["other"])
	require.ErrorIs(t, err, backends.ErrOtherLayout)
	r := ok(p.Remove(t.Context(), "default"))(t)
	require.Positive(t, r.Counts.Removed)
	require.Empty(t, runNft(t, ns, program, "", "list", "ruleset"))
}

// If no other owner has objects, an instance of another version is replaced.
func TestTheOnlyOwnerReplacesAnotherLayout(t *testing.T) {
	t.Parallel()
	for _, holder := range []string{"nobody", "itself"} {
		t.Run(holder, func(t *testing.T) {
			t.Parallel()
			ns, b := newNS(t)
			states := sharedState()
			if holder == "nobody" { // an engine without services
				ok(dataplane.New(b, nil).Apply(t.Context(), servicemodel.State{}))(t)
			} else {
				applyParts(t, ns, states, "default")
			}

			asOtherLayout(t, ns)
			applyParts(t, ns, states, "default")
			requireShared(t, ns, map[string]servicemodel.State{"default": states["default"]}, 0)
		})
	}
}

// If the frontends of another version cannot be distinguished, or no version guards them, nothing
// is changed. A program that removes its part gets an error.
func TestAnotherLayoutThatCannotBeReadStays(t *testing.T) {
	t.Parallel()
	for name, edit := range map[string]string{
		"no version":  "delete set ip kernlb VERSION",
		"no registry": "delete table ip kernlb\ntable ip kernlb {\nset settings {\ntype mark\n}\n}",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ns, b := newNS(t)
			program := nftPrograms(t)[0]
			applyParts(t, ns, sharedState(), "default")
			editByHand(t, ns, program, edit)
			asOtherLayout(t, ns)
			before := runNft(t, ns, program, "", "list", "ruleset")
			_, err := dataplane.NewParts(b, nil).Remove(t.Context(), "default")
			require.ErrorIs(t, err, backends.ErrOtherLayout)
			require.Equal(t, before, runNft(t, ns, program, "", "list", "ruleset"))
		})
	}
}

// An engine that applies a whole state to an instance of parts removes the parts and leaves the
// index empty. The next part rebuilds the index for all owners.
func TestAnEngineBesideParts(t *testing.T) {
	t.Parallel()
	ns, b := newNS(t)
	states := sharedState()
	applyParts(t, ns, states, "default", "other", "third")
	whole := states["other"].WithPart("third", states["third"])
	ok(dataplane.New(b, nil).Apply(t.Context(), whole))(t)
	delete(states, "default")
	requireShared(t, ns, states, 0)
	require.False(t, b.pl.Version.Owners)
	require.NotEqual(t, backends.Broken, look(t, b), "the index is known to be empty")

	changed := sharedState()
	states["third"] = changed["third"].WithEndpoints(servicemodel.Name{Namespace: "third",
		Name: "web"}, goldenEndpoints("10.244.1.7"))
	applyParts(t, ns, states, "third")
	requireShared(t, ns, states, 0)
	requireIndex(t, ns, []string{"other", "third"})
	p := dataplane.NewParts(newBackend(t, ns, nil), nil)
	ok(p.Remove(t.Context(), "other"))(t)
	delete(states, "other")
	requireShared(t, ns, states, 0)
}

// A part finds a frontend of another owner by the index, and need not read everything.
func TestAFrontendOfAnotherOwnerIsFound(t *testing.T) {
	t.Parallel()
	ns, b := newNS(t)
	states := sharedState()
	applyParts(t, ns, states, "default", "other")
	want := inOwner("third", states["other"]).WithPart("third", states["third"])
	for svc := range states["other"].Services() {
		svc.Name.Namespace = "third"
		want = want.WithService(svc)
	}

	o := ok(b.ObserveParts(t.Context(), []string{"third"}, mustResolve(t, want)))(t)
	require.Empty(t, o.Drift)
	require.False(t, b.pl.Owning.Whole)
	var found []string
	for fe := range o.Table.Frontends() {
		found = append(found, fmt.Sprint(fe.Key, " ", fe.Service))
	}
	require.Equal(t, []string{"10.96.0.10:81/tcp other/web:http"}, found)
	_, err := dataplane.NewParts(b, nil).Apply(t.Context(), "third", want)
	require.ErrorContains(t, err, "other")
}

// A commit that writes nothing leaves the index of owners as it is.
func TestACommitOfNothingKeepsTheIndex(t *testing.T) {
	t.Parallel()
	ns, _ := newNS(t)
	applyParts(t, ns, sharedState(), "default", "other")
	b := newBackend(t, ns, nil)
	o := ok(b.Observe(t.Context(), nil))(t)
	require.Zero(t, ok(b.Commit(t.Context(), servicemodel.Diff(o.Table, o.Table)))(t).Messages)
	runNft(t, ns, nftPrograms(t)[0], "add table ip foreign", "-f", "-")
	require.NotEqual(t, backends.Broken, integrity(t, b))
}

// route_localnet stays on until the last owner is removed from an instance, whatever its layout. If
// the tables cannot be deleted, their guard stays, and the sysctl stays on.
func TestTheLastPartNeedsRouteLocalnet(t *testing.T) {
	t.Parallel()
	const sysctl = "net/ipv4/conf/all/route_localnet"
	states, node := sharedState(), goldenNode()
	node.LocalhostNodePorts = true
	for owner := range states {
		states[owner] = states[owner].WithNode(node)
	}
	for _, before := range []string{"0", "1"} {
		for _, edit := range []string{"", "delete element ip kernlb settings { 0x00000001 }\n" +
			`add element ip kernlb settings { 0x00000001 comment "layout 1000" }`} {
			ns, b := newNS(t)
			require.NoError(t, ns.SetSysctl(sysctl, before))
			applyParts(t, ns, states, "default", "other")
			runNft(t, ns, nftPrograms(t)[0], edit, "-f", "-")
			p := dataplane.NewParts(b, nil)
			ok(p.Remove(t.Context(), "default"))(t)
			require.Equal(t, "1", ok(ns.Sysctl(sysctl))(t), "the other owner needs it")

			rawnltest.FailEach(t, "remove the last part", func(ctx context.Context) error {
				_, err := p.Remove(ctx, "other")
				owners := ok(p.Owners(t.Context()))(t)
				on := ok(ns.Sysctl(sysctl))(t) == "1"
				require.Equal(t, before == "1" || len(owners) > 0, on, "%v of %q", err, owners)
				return err
			})
		}
	}
}
