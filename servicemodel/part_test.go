package servicemodel_test

import (
	"errors"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	sm "github.com/kernlb/kernlb/servicemodel"
)

// partOf returns the services and endpoints of a state that are in a namespace.
func partOf(s sm.State, owner string) sm.State {
	part := sm.State{}.WithNode(s.Node())
	for _, name := range []string{"s0", "s1", "s2", "s3", "s4", "s5"} {
		n := sm.Name{Namespace: owner, Name: name}
		part = part.WithService(s.Service(n)).WithEndpoints(n, s.Endpoints(n))
	}

	return part
}

// Parts are added, changed and removed one after the other. The table always holds, for each owner,
// the result of the owner's state, and no change affects other owners. Every claim of a frontend
// that another owner, or another service of the part, holds is refused.
func TestPartsAreApart(t *testing.T) {
	t.Parallel()
	r := newSource(t)
	refused, merged := 0, 0
	for range 60 {
		var table *sm.Table
		held := map[string]*sm.Table{}
		for range 20 {
			owner := pick(r, "a", "b")
			s := steady(r.state()).WithNode(sm.Node{Name: "n1"})
			own := mustResolve(t, nil, partOf(s, owner))
			if r.chance(20) {
				own = nil
			}
			next, err := table.WithPart(owner, own)
			if taken := claimed(own, held[other(owner)]); len(taken) > 0 {
				require.Nil(t, next)
				require.ElementsMatch(t, taken, takenBy(err))
				refused++
				continue
			}

			require.NoError(t, err)
			both := mustResolve(t, nil, partOf(s, other(owner)))
			if last, err := next.WithPart(other(owner), both); err == nil {
				at := map[string]*sm.Table{owner: own, other(owner): both}
				together, err := table.WithParts(at)
				require.NoError(t, err)
				c := sm.Diff(last, together)
				for _, h := range c.Hairpins { // kept in turn for an endpoint of the other owner
					require.False(t, h.Added, c)
				}
				c.Hairpins = nil
				require.True(t, c.Empty(), c)
			}
			held[owner] = own
			if own == nil {
				delete(held, owner)
			}
			requireParts(t, next, held)
			require.True(t, table.Apply(sm.Diff(table, next)).Equal(next))
			rest := sm.Diff(table.WithoutParts(owner),
				next.WithoutParts(owner))
			require.Empty(t, rest.Frontends)
			require.Empty(t, rest.Pools)
			require.Empty(t, rest.ClusterIPs)
			table = next
			merged += next.Len()
		}

		third := table.WithoutParts("a", "b")
		require.Zero(t, third.WithoutParts("c").Len())
		require.Empty(t, slices.Collect(third.Hairpins()))
		require.Empty(t, slices.Collect(third.ClusterIPs()))
	}

	require.Positive(t, refused)
	require.Positive(t, merged)
}

func other(owner string) string { return map[string]string{"a": "b", "b": "a"}[owner] }

// claimed returns the keys that two services of a part claim, and the keys of other owners that
// have a port in common with the part.
func claimed(part, others *sm.Table) (keys []sm.FrontendKey) {
	for c := range part.Conflicts() {
		keys = append(keys, c.Key)
	}
	for f := range part.Frontends() {
		for o := range others.Frontends() {
			if o.Key.Addr == f.Key.Addr && o.Key.Protocol == f.Key.Protocol &&
				o.Key.Port <= f.Key.LastPort() && f.Key.Port <= o.Key.LastPort() {
				keys = append(keys, o.Key)
			}
		}
	}

	return keys
}

func takenBy(err error) (keys []sm.FrontendKey) {
	for _, e := range err.(interface{ Unwrap() []error }).Unwrap() {
		var taken *sm.TakenError
		if errors.As(e, &taken) {
			keys = append(keys, taken.Key)
		}
	}

	return keys
}

// requireParts requires that a table holds the parts of all owners, and nothing else.
func requireParts(t *testing.T, table *sm.Table, held map[string]*sm.Table) {
	t.Helper()
	frontends := 0
	clusterIPs, hairpins, endpoints := map[netip.Addr]bool{}, map[netip.Addr]bool{},
		map[netip.Addr]bool{}
	var owners []string
	for owner, want := range held {
		got := table.Part(owner)
		c := sm.Diff(got, want.Arrange(got))
		require.Empty(t, c.Frontends)
		require.Empty(t, c.Pools)
		require.Empty(t, c.Rules)
		for f := range want.Frontends() {
			require.Equal(t, want.FrontendsOf(f.Service), table.FrontendsOf(f.Service))
		}
		frontends += want.Len()
		if want.Len() > 0 {
			owners = append(owners, owner)
		}
		for a := range want.ClusterIPs() {
			clusterIPs[a] = true
		}
		for a := range want.Hairpins() {
			hairpins[a] = true
			require.True(t, got.HasHairpin(a))
		}

		for p := range want.Pools() {
			for _, s := range p.Slots {
				endpoints[s.Endpoint.Addr()] = true
			}
		}
	}

	slices.Sort(owners)
	require.Equal(t, owners, slices.Collect(table.Owners()))
	require.Equal(t, frontends, table.Len())
	for a := range table.ClusterIPs() {
		require.True(t, clusterIPs[a])
		delete(clusterIPs, a)
	}

	require.Empty(t, clusterIPs)
	for a := range table.Hairpins() {
		// a hairpin stays as long as any owner has the endpoint
		require.True(t, hairpins[a] || endpoints[a])
		delete(hairpins, a)
	}

	require.Empty(t, hairpins)
}

func TestTwoPartsAreTheTableOfBothStates(t *testing.T) {
	t.Parallel()
	r := newSource(t)
	both := 0
	for range 200 {
		s := steady(r.state())
		a, b := partOf(s, "a"), partOf(s, "b")
		whole := mustResolve(t, nil, s)
		table, err := mustResolve(t, nil, a).WithPart("b", mustResolve(t, nil, b))
		if err != nil {
			require.NotEmpty(t, claimed(mustResolve(t, nil, b), mustResolve(t, nil, a)))
			continue
		}

		both++
		c := sm.Diff(table, whole.Arrange(table))
		require.True(t, c.Empty(), c.String())
	}

	require.Positive(t, both)
}

func TestWhoHoldsAFrontendKeepsIt(t *testing.T) {
	t.Parallel()
	first := tableOf(t, thisNode, webService(func(s *sm.Service) {
		s.Name.Namespace, s.ClusterIPs, s.ExternalIPs = "first", nil, addrs("192.0.2.7")
	}))
	second := tableOf(t, thisNode, webService(func(s *sm.Service) {
		s.Name.Namespace, s.ClusterIPs = "second", addrs("192.0.2.7")
	}))
	_, err := first.WithPart("second", second)
	require.EqualError(t, err, "*4:30080/tcp is held by first/web:http, and claimed by "+
		"second/web:http\n"+
		"192.0.2.7:80/tcp is held by first/web:http, and claimed by second/web:http")
	var taken *sm.TakenError
	require.ErrorAs(t, err, &taken)
	require.Equal(t, "first", taken.Holder.Name.Namespace)

	inRange := tableOf(t, thisNode, webService(func(s *sm.Service) {
		s.Name.Namespace, s.ClusterIPs, s.ExternalIPs = "third", nil, addrs("192.0.2.7")
		s.Ports[0].NodePort, s.Ports[0].Port, s.Ports[0].EndPort = 0, 70, 90
	}))
	_, err = inRange.WithPart("first", first)
	require.EqualError(t, err, "192.0.2.7:70-90/tcp is held by third/web:http, and overlaps "+
		"192.0.2.7:80/tcp, claimed by first/web:http")
}

// Between owners, all ports of a range belong to the first owner.
func TestWhoHoldsARangeKeepsItsPorts(t *testing.T) {
	t.Parallel()
	at := func(owner string, port, end uint16) *sm.Table {
		return tableOf(t, thisNode, webService(func(s *sm.Service) {
			s.Name.Namespace, s.ClusterIPs = owner, addrs("192.0.2.7")
			s.Ports[0].Port, s.Ports[0].EndPort, s.Ports[0].NodePort = port, end, 0
		}))
	}

	for _, tc := range []struct {
		held, claimed [2]uint16
		taken         bool
	}{
		{[2]uint16{80, 0}, [2]uint16{81, 90}, false},
		{[2]uint16{80, 0}, [2]uint16{80, 90}, true},
		{[2]uint16{90, 0}, [2]uint16{80, 90}, true},
		{[2]uint16{80, 90}, [2]uint16{85, 0}, true},
		{[2]uint16{80, 90}, [2]uint16{91, 0}, false},
		{[2]uint16{80, 90}, [2]uint16{90, 99}, true},
		{[2]uint16{80, 90}, [2]uint16{1, 65535}, true},
		{[2]uint16{80, 90}, [2]uint16{82, 84}, true},
		{[2]uint16{80, 90}, [2]uint16{91, 92}, false},
	} {
		first := at("first", tc.held[0], tc.held[1])
		next, err := first.WithPart("second", at("second", tc.claimed[0], tc.claimed[1]))
		var taken *sm.TakenError
		require.Equal(t, tc.taken, errors.As(err, &taken), "%v, %v", tc.held, tc.claimed)
		require.Equal(t, tc.taken, next == nil)
		if tc.taken {
			require.Equal(t, tc.held[0], taken.Key.Port)
		}

		_, err = first.WithPart("first", at("first", tc.claimed[0], tc.claimed[1]))
		require.NoError(t, err)
	}
}

func TestAStateWithPartsHasTheServicesOfEachOwner(t *testing.T) {
	t.Parallel()
	r := newSource(t)
	for range 100 {
		s, next := steady(r.state()), steady(r.state())
		require.NoError(t, partOf(s, "a").ValidatePart("a"))
		got := s.WithPart("a", partOf(next, "a"))
		requireSame(t, mustResolve(t, nil, partOf(s, "b")), mustResolve(t, nil, partOf(got, "b")))
		requireSame(t, mustResolve(t, nil, partOf(next, "a").WithNode(s.Node())),
			mustResolve(t, nil, partOf(got, "a")))
	}
}

func TestWhatIsNoPart(t *testing.T) {
	t.Parallel()
	s := stateOf(thisNode, webService(), endpoint("10.64.0.1"))
	requireProblems(t, []string{`part "": owner: required`,
		`service default/web: name.namespace: "default": must be the owner, ""`,
		`endpoints default/web: name.namespace: "default": must be the owner, ""`,
	}, s.ValidatePart(""))
	requireProblems(t, []string{`part "a/b": owner: "a/b": only printable ASCII without spaces, ` +
		`"/", ":" and quotes is allowed`}, sm.State{}.ValidatePart("a/b"))
	requireProblems(t, []string{`service /: name.namespace: "": must be the owner, "default"`},
		sm.State{}.WithService(&sm.Service{}).ValidatePart("default"))
	require.NoError(t, s.ValidatePart("default"))
}

// A node adopts every setting that it leaves unset. The error names every setting that differs.
func TestAPartAdoptsWhatTheInstanceHas(t *testing.T) {
	t.Parallel()
	full := sm.Node{MasqueradeMark: 1, LocalPods: sm.PodDetector{Bridge: "br0"},
		NodePortAddresses: sm.NodePortAddresses{CIDRs: prefixes("192.0.2.0/24", "2001:db8::/64")},
		ServiceCIDRs:      prefixes("10.96.0.0/12"), LocalhostNodePorts: true,
		MasqueradeNeighbours: true, OnlyFamily: sm.IPv4, NoEndpoints: "reset",
		Forbidden: "reject"}
	held := mustResolve(t, nil, sm.State{}.WithNode(full)).Rules()
	v := reflect.ValueOf(held)
	for i := range v.NumField() {
		require.False(t, v.Field(i).IsZero(), "the test must set %s", v.Type().Field(i).Name)
	}
	for _, n := range []sm.Node{{}, full, {Name: "n1", ServiceCIDRs: prefixes("10.96.1.1/12")}} {
		adopted := ok(sm.State{}.WithNode(n).Adopt(held))(t)
		require.Equal(t, n.Name, adopted.Name)
		rules := mustResolve(t, nil, sm.State{}.WithNode(adopted)).Rules()
		require.True(t, held.Equal(rules), "%+v", rules)
	}

	_, err := sm.State{}.WithNode((sm.Node{MasqueradeMark: 2, OnlyFamily: sm.IPv6,
		LocalPods:         sm.PodDetector{InterfacePrefix: "veth"},
		NodePortAddresses: sm.NodePortAddresses{Primary: true}, LocalhostNodePorts: true,
		ServiceCIDRs: prefixes("10.0.0.0/8")})).Adopt(held)
	requireProblems(t, []string{
		"node: masqueradeMark: 0x2: the instance has 0x1",
		"node: onlyFamily: IPv6 only: the instance has IPv4 only",
		"node: localPods: interfaces veth*: the instance has bridge br0",
		"node: nodePortAddresses: none: the instance has 192.0.2.0/24",
		"node: serviceCIDRs: none: the instance has 10.96.0.0/12",
	}, err)
}

// steady returns a state without the fields that need a program, because parts refuse these fields.
func steady(s sm.State) sm.State {
	for svc := range s.Services() {
		svc.SlowStart, svc.SilentEndpoints = 0, sm.SilentDefault
		s = s.WithService(svc)
	}

	return s
}

func TestPartsRefuseWhatNeedsAProgram(t *testing.T) {
	t.Parallel()
	requireProblems(t, []string{"service default/web: silentEndpoints: eject: must not be " +
		"set in a part: no program would notice silent endpoints"},
		stateOf(thisNode, webService(func(s *sm.Service) {
			s.SilentEndpoints = sm.SilentEject
		})).ValidateUnattended())
	requireProblems(t, []string{"service default/web: slowStart: 1m0s: must not be set in a part" +
		": no program would let endpoints grow"},
		stateOf(thisNode, webService(slowly(time.Minute))).ValidateUnattended())
}
