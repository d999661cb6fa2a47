package nftables

import (
	"fmt"
	"net/netip"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/nftables/internal/plan"
	"github.com/kernlb/kernlb/servicemodel"
)

// Elements that are not in the index make a part fail once. Then everything is read.
func TestAPartThatMeetsStrayElements(t *testing.T) {
	t.Parallel()
	program, err := exec.LookPath("nft")
	if err != nil {
		t.Skip("nft is not installed (Debian package nftables)")
	}
	ns, _ := newNS(t)
	states := sharedState()
	applyParts(t, ns, states, "default", "other", "third")
	editByHand(t, ns, program, "add element ip kernlb hairpins { 10.244.1.77 . 10.244.1.77 }; "+
		"add element ip kernlb service-endpoints "+
		"{ 10.96.0.10 . tcp . 80 . 2 : 10.244.9.9 . 8080 }")
	name := servicemodel.Name{Namespace: "default", Name: "web"}
	states["default"] = states["default"].WithEndpoints(name,
		goldenEndpoints("10.244.1.1", "10.244.1.2", "10.244.1.3", "10.244.1.77"))
	applyParts(t, ns, states, "default")
	requireShared(t, ns, states, 0)
	requireIndex(t, ns, []string{"default", "other", "third"})
}

// If a set is full, the tables are replaced, with the objects of all owners.
func TestAPartThatFindsASetFull(t *testing.T) {
	t.Parallel()
	ns, b := newNS(t)
	states := sharedState()
	b.pl.Capacity = func(n int) uint32 { return uint32(n) }
	ok(dataplane.NewParts(b, nil).Apply(t.Context(), "default", states["default"]))(t)
	applyParts(t, ns, states, "other", "third")
	requireShared(t, ns, states, 0)
	requireIndex(t, ns, []string{"default", "other", "third"})
}

// A part that is too large for one transaction is committed in several transactions.
func TestALargePartComesInParts(t *testing.T) {
	t.Parallel()
	ns, _ := newNS(t)
	states := sharedState()
	applyParts(t, ns, states, "default", "other", "third")
	b := limited(t, ns, 50_000)
	large := inOwner("large", manyServices(300)).WithNode(goldenNode())
	for svc := range large.Services() { // different addresses from those of the other owners
		a := svc.ClusterIPs[0].As4()
		svc.ClusterIPs[0] = netip.AddrFrom4([4]byte{a[0], 97, a[2], a[3]})
		large = large.WithService(svc)
	}

	states["large"] = large
	r := ok(dataplane.NewParts(b, nil).Apply(t.Context(), "large", large))(t)
	require.Greater(t, r.Stats.Bytes, 100_000)
	requireShared(t, ns, states, 0)
	requireIndex(t, ns, []string{"default", "large", "other", "third"})
}

// A program is killed before it has forgotten clients. The next program forgets them, although it
// changes something else.
func TestAPartEndsASweep(t *testing.T) {
	t.Parallel()
	ns, b := newNS(t)
	states := sharedState()
	applyParts(t, ns, states, "default", "other")
	ok(b.ObserveParts(t.Context(), []string{"default"}, nil))(t)
	p := &plan.Plan{Table: b.pl.Table, Have: b.pl.Version,
		Next: b.pl.Version.Next(false, nil, nil, true, true), Mark: true}
	b.kernel.batch.Reset()
	p.Encode(&b.kernel.batch)
	ok(b.kernel.commit(t.Context()))(t)

	applyParts(t, ns, states, "third")
	requireShared(t, ns, states, 0)
	v := ok(b.kernel.reader.Version(t.Context(), defaultTable))(t)
	require.False(t, v.Unswept)
	require.True(t, v.Owners)
}

// The index, and the numbers of owners of an address, survive saving and restoring the ruleset as
// text.
func TestTheIndexSurvivesText(t *testing.T) {
	t.Parallel()
	for _, program := range nftPrograms(t) {
		ns, _ := newNS(t)
		states := sharedState()
		name := servicemodel.Name{Namespace: "default", Name: "web"}
		svc := states["default"].Service(name) // nft cannot load either of these features from text
		svc.SessionAffinity, svc.LoadBalancerSourceRanges = servicemodel.SessionAffinity{}, nil
		states["default"] = states["default"].WithService(svc)
		applyParts(t, ns, states, "default", "other", "third")
		list := runNft(t, ns, program, "", "list", "ruleset")
		require.Contains(t, list, `"2 owners"`)
		runNft(t, ns, program, "flush ruleset\n"+list, "-f", "-")
		p := dataplane.NewParts(newBackend(t, ns, nil), nil)
		r := ok(p.Remove(t.Context(), "other"))(t) // loaded rules also have no hashes
		require.NotContains(t, fmt.Sprint(r.Drift), "owners")
		delete(states, "other")
		requireShared(t, ns, states, 0)
		requireIndex(t, ns, []string{"default", "third"})
	}
}

// A UDP node port must know the other frontends with its port number.
func TestAPartSeesFrontendsWithItsNodePort(t *testing.T) {
	t.Parallel()
	ns, _ := newNS(t)
	udp := func(owner string, edit func(*servicemodel.Service)) servicemodel.State {
		svc := goldenService(func(s *servicemodel.Service) {
			s.Name.Namespace, s.ClusterIPs = owner, nil
			s.Ports[0].Protocol, s.Ports[0].Port, s.Ports[0].NodePort = servicemodel.UDP, 53, 0
		}, edit)
		return servicemodel.State{}.WithNode(goldenNode()).WithService(svc)
	}

	states := map[string]servicemodel.State{
		"default": udp("default", func(s *servicemodel.Service) {
			s.ExternalIPs = append(s.ExternalIPs, goldenNode().Addresses[0])
		}),
		"other": udp("other", func(s *servicemodel.Service) { s.Ports[0].NodePort = 53 })}
	applyParts(t, ns, states, "default")
	b := newBackend(t, ns, nil)
	o := ok(b.ObserveParts(t.Context(), []string{"other"}, mustResolve(t, states["other"])))(t)
	require.Equal(t, 1, o.Table.Len())
	require.NotNil(t, o.Table.Frontend(servicemodel.FrontendKey{Addr: goldenNode().Addresses[0],
		Protocol: servicemodel.UDP, Port: 53}))
}

// The last part can be removed, although the tables have lost their version.
func TestTheLastPartGoesFromTablesWithoutAVersion(t *testing.T) {
	t.Parallel()
	program, err := exec.LookPath("nft")
	if err != nil {
		t.Skip("nft is not installed (Debian package nftables)")
	}
	ns, _ := newNS(t)
	applyParts(t, ns, sharedState(), "default")
	editByHand(t, ns, program, "delete set ip kernlb VERSION")
	ok(dataplane.NewParts(newBackend(t, ns, nil), nil).Remove(t.Context(), "default"))(t)
	require.Empty(t, runNft(t, ns, program, "", "list", "ruleset"))
}
