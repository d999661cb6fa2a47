package iptables

import (
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	sm "github.com/kernlb/kernlb/servicemodel"
)

func TestFrontendsAsComments(t *testing.T) {
	t.Parallel()
	name := sm.PortName{Name: svcName("web"), Port: "http", Protocol: sm.TCP}
	key := sm.FrontendKey{Addr: netip.MustParseAddr("10.96.0.10"), Protocol: sm.TCP, Port: 80}
	for want, f := range map[string]sm.Frontend{
		"default/web:http cluster IP": {
			Kind: sm.ClusterIP, Internal: sm.BalanceCluster, External: sm.BalanceCluster,
			Masquerade: sm.FromHost | sm.FromOutside,
		},
		"default/web:http loadbalancer IP": {
			Kind: sm.LoadBalancer, Internal: sm.BalanceCluster, External: sm.BalanceCluster,
			Masquerade: sm.FromAnywhere,
		},
		"default/web:http node port internal=cluster external=drop masquerade=host": {
			Kind: sm.NodePort, Internal: sm.BalanceCluster, External: sm.Drop,
			Masquerade: sm.FromHost,
		},
		"default/web:http external IP verdict=reject masquerade=none affinity=10800": {
			Kind: sm.ExternalIP, Affinity: 10800 * time.Second,
		},
	} {
		f.Key, f.Service = key, name
		require.Equal(t, want, frontendComment(&f))
		got, err := parseFrontend(want, key)
		require.NoError(t, err)
		require.True(t, f.Equal(got), "%+v", got)
	}
}

// Where the name is as long as Kubernetes allows, whatever is unusual about a frontend still
// fits.
func TestCommentsOfTheLongestNames(t *testing.T) {
	t.Parallel()
	long := func(c string) string { return strings.Repeat(c, 63) }
	name := sm.PortName{
		Name: sm.Name{Namespace: long("n"), Name: long("s")}, Port: long("p"), Protocol: sm.TCP,
	}
	require.Len(t, name.String(), maxServiceName)
	key := sm.FrontendKey{Addr: netip.MustParseAddr("10.96.0.10"), Protocol: sm.TCP, Port: 80}
	for kind := range kindWords {
		for m := range sm.FromAnywhere + 1 {
			for in := range sm.BalanceLocal + 1 {
				for out := range sm.BalanceLocal + 1 {
					f := &sm.Frontend{
						Key: key, Service: name, Kind: sm.Kind(kind), Internal: in, External: out,
						Masquerade: m, Affinity: 86400 * time.Second,
					}
					c := frontendComment(f)
					require.LessOrEqual(t, len(c), maxComment)
					got, err := parseFrontend(c, key)
					require.NoError(t, err)
					require.True(t, f.Equal(got), "%s: %+v", c, got)
				}
			}
		}
	}
	p := &sm.Pool{
		ID: sm.PoolID{Service: name}, Scheduler: sm.RoundRobin, Slots: []sm.Slot{{Weight: 65535}},
	}
	require.LessOrEqual(t, len(slotComment(p, 0)), maxComment)
}

func TestCommentsThatAreNotOurs(t *testing.T) {
	t.Parallel()
	for _, c := range []string{
		"", "web cluster IP", "default/web:http", "default/web:http cluster IPs",
		"default/web cluster IP verdict=maybe",
		"default/web cluster IP affinity=0",
	} {
		_, err := parseFrontend(c, sm.FrontendKey{})
		require.Error(t, err, c)
	}
}

func TestSlotsAsComments(t *testing.T) {
	t.Parallel()
	p := &sm.Pool{
		ID:        sm.PoolID{Service: sm.PortName{Name: svcName("web"), Protocol: sm.TCP}},
		Scheduler: sm.RoundRobin,
		Slots:     []sm.Slot{{Weight: 3}, {Weight: 1}, {Weight: 7}},
	}
	for i, want := range []string{"default/web scheduler=rr weight=3", "", "weight=7"} {
		require.Equal(t, want, slotComment(p, i))
		_, weight, err := parseSlot(want)
		require.NoError(t, err)
		require.Equal(t, p.Slots[i].Weight, weight)
	}
	_, _, err := parseSlot("weight=0")
	require.Error(t, err)
}

func FuzzParseFrontend(f *testing.F) {
	f.Add("default/web:http cluster IP verdict=reject masquerade=none affinity=10800")
	f.Add("a/b node port internal=cluster external=local masquerade=pods,host")
	key := sm.FrontendKey{Addr: netip.MustParseAddr("10.96.0.10"), Protocol: sm.TCP, Port: 80}
	f.Fuzz(func(t *testing.T, comment string) {
		fe, err := parseFrontend(comment, key)
		if err != nil {
			return
		}
		again, err := parseFrontend(frontendComment(fe), key)
		require.NoError(t, err)
		require.True(t, fe.Equal(again), "%q: %+v and %+v", comment, fe, again)
	})
}

func TestSettingsAsComments(t *testing.T) {
	t.Parallel()
	for _, r := range []sm.Rules{
		{MasqueradeMark: 0x4000},
		{
			MasqueradeMark: 1, LocalPods: sm.PodDetector{
				CIDRs: prefixes("fd00::/8", "10.244.0.0/16")}, NodePorts: prefixes("0.0.0.0/0",
				"::/0"),
			ServiceCIDRs: prefixes("10.96.0.0/12"), LocalhostNodePorts: true,
		},
		{MasqueradeMark: 1 << 31, LocalPods: sm.PodDetector{InterfacePrefix: "cali"}},
		{MasqueradeMark: 1, LocalPods: sm.PodDetector{Bridge: "cni0"}},
	} {
		for _, before := range []bool{false, true} {
			l := newLayout(DefaultPrefix)
			rules := l.settingRules(&state{rules: r, localnetBefore: before})
			got, was, err := parseSettings(rules)
			require.NoError(t, err)
			require.True(t, r.Equal(got), "%+v", got)
			require.Equal(t, before && r.LocalhostNodePorts, was)
		}
	}
	for _, c := range []string{"", "colour blue", "pod-cidr x", "masquerade-mark many"} {
		_, _, err := parseSettings([]rule{{comment: "masquerade-mark 0x4000"}, {comment: c}})
		require.Error(t, err, c)
	}
	_, _, err := parseSettings(nil)
	require.Error(t, err)
}

// Applying the steps between two lists gives the second, and no more rules are touched than must
// be.
func TestEditsLeadFromOneListToTheOther(t *testing.T) {
	t.Parallel()
	const seed = 4
	rng := rand.New(rand.NewPCG(seed, 0))
	list := func() []rule {
		l := make([]rule, rng.IntN(8))
		for i := range l {
			l[i] = rule{target: targetAccept, ports: single(uint16(1 + rng.IntN(5)))}
		}
		return l
	}
	for range 5000 {
		a, b := list(), list()
		var got []rule
		at := 0
		for _, e := range editsBetween(a, b) {
			require.Equal(t, at, e.at, "seed %d", seed)
			if e.kind != editInsert {
				at++
			}
			switch e.kind {
			case editKeep:
				got = append(got, a[e.at])
			case editInsert, editReplace:
				got = append(got, b[e.rule])
			}
		}
		require.Equal(t, len(a), at)
		require.True(t, sameRules(b, got), "seed %d: %v to %v", seed, a, b)
	}
}

func TestALongListIsComparedInBoundedTime(t *testing.T) {
	t.Parallel()
	var a, b []rule
	for i := range 3000 {
		a = append(a, rule{target: targetAccept, ports: single(uint16(i + 1))})
		b = append(b, rule{target: targetDrop, ports: single(uint16(i + 1))})
	}
	require.Len(t, editsBetween(a, b), 3000)
	require.Len(t, editsBetween(a, append(b[:1:1], a[1:]...)), 3000)
}
