package nftables

import (
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/servicemodel"
)

// sharedState is what owner "default" holds, which others edit, what another one holds, which
// shares an endpoint and a cluster IP with that, and what a third one holds.
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

// applyParts applies parts as programs would that begin and end.
func applyParts(t *testing.T, ns *netnstest.NS, states map[string]servicemodel.State,
	owners ...string) (messages int) {
	t.Helper()
	for _, owner := range owners {
		b := newBackend(t, ns, nil)
		r, err := dataplane.NewParts(b, nil).Apply(t.Context(), owner, states[owner])
		require.NoError(t, err)
		messages += r.Messages
		require.NoError(t, b.Close())
	}
	return messages
}

// requireShared requires that the kernel holds what owners hold, and nothing else.
func requireShared(t *testing.T, ns *netnstest.NS, states map[string]servicemodel.State,
	drift int) {
	t.Helper()
	o, err := newBackend(t, ns, nil).Observe(t.Context(), nil)
	require.NoError(t, err)
	require.Len(t, o.Drift, drift)
	want := servicemodel.State{}.WithNode(goldenNode())
	for owner, s := range states {
		want = want.WithPart(owner, s)
	}
	all := mustResolve(t, want)
	require.Equal(t, "", servicemodel.Diff(o.Table, all.Arrange(o.Table)).String())
}

// What somebody does by hand is put right when the owner applies its part the next time, without
// loss for those that do not.
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
				left = 1 // no packet meets it; whoever reads everything finds it
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
			_, err := p.Remove(t.Context(), "default", "third", "other")
			require.NoError(t, err)
			requireShared(t, ns, nil, left)
		})
	}
}

// What another version has made is neither changed nor lost: its elements may mean something else.
func TestPartsOfAnotherLayoutStay(t *testing.T) {
	t.Parallel()
	program, err := exec.LookPath("nft")
	if err != nil {
		t.Skip("nft is not installed (Debian package nftables)")
	}
	ns, b := newNS(t)
	states := sharedState()
	applyParts(t, ns, states, "default", "other")
	runNft(t, ns, program, "delete element ip kernlb settings { 0x00000001 }\n"+
		"add element ip kernlb settings { 0x00000001 comment \"layout 1000\" }\n", "-f", "-")
	before := runNft(t, ns, program, "", "list", "ruleset")
	p := dataplane.NewParts(b, nil)
	_, err = p.Apply(t.Context(), "third", states["third"])
	require.ErrorIs(t, err, dataplane.ErrOtherLayout)
	require.ErrorContains(t, err, `"layout 1000", want "layout 2"`)
	_, err = p.Remove(t.Context(), "default")
	require.ErrorIs(t, err, dataplane.ErrOtherLayout)
	require.Equal(t, before, runNft(t, ns, program, "", "list", "ruleset"))
	_, err = dataplane.New(b, nil).Apply(t.Context(), states["third"])
	require.NoError(t, err)
}

// An engine that applies a whole state to an instance of parts removes them, and leaves the index
// empty; the next part makes it anew for all.
func TestAnEngineBesideParts(t *testing.T) {
	t.Parallel()
	ns, b := newNS(t)
	states := sharedState()
	applyParts(t, ns, states, "default", "other", "third")
	whole := states["other"].WithPart("third", states["third"])
	_, err := dataplane.New(b, nil).Apply(t.Context(), whole)
	require.NoError(t, err)
	delete(states, "default")
	requireShared(t, ns, states, 0)
	require.False(t, b.pl.version.owners)
	require.NotEqual(t, dataplane.Broken, look(t, b), "the index is known to be empty")

	changed := sharedState()
	states["third"] = changed["third"].WithEndpoints(servicemodel.Name{Namespace: "third",
		Name: "web"}, goldenEndpoints("10.244.1.7"))
	applyParts(t, ns, states, "third")
	requireShared(t, ns, states, 0)
	requireIndex(t, ns, []string{"other", "third"})
	p := dataplane.NewParts(newBackend(t, ns, nil), nil)
	_, err = p.Remove(t.Context(), "other")
	require.NoError(t, err)
	delete(states, "other")
	requireShared(t, ns, states, 0)
}

// A frontend that another owner has is found by the index: it is no reason to read everything.
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
	o, err := b.ObserveParts(t.Context(), []string{"third"}, mustResolve(t, want))
	require.NoError(t, err)
	require.Empty(t, o.Drift)
	require.False(t, b.pl.owning.whole)
	var found []string
	for fe := range o.Table.Frontends() {
		found = append(found, fmt.Sprint(fe.Key, " ", fe.Service))
	}
	require.Equal(t, []string{"10.96.0.10:81/tcp other/web:http"}, found)
	_, err = dataplane.NewParts(b, nil).Apply(t.Context(), "third", want)
	require.ErrorContains(t, err, "other")
}
