package iptables

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	sm "github.com/kernlb/kernlb/servicemodel"
)

// The comment of a slot fits even if the service's name has the maximum length.
func TestCommentsOfTheLongestNames(t *testing.T) {
	t.Parallel()
	name := sm.PortName{
		Name: sm.Name{Namespace: "n", Name: strings.Repeat("s", 187)}, Port: "p",
		Protocol: sm.TCP,
	}
	require.Len(t, name.String(), 191)
	p := &sm.Pool{
		ID: sm.PoolID{Service: name}, Scheduler: sm.RoundRobin, Slots: []sm.Slot{{Weight: 65535}},
	}
	require.LessOrEqual(t, len(slotComment(p, 0)), maxComment)
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
		for _, was := range []localnet{{}, {before: true}, {kept: true},
			{before: true, kept: true}} {
			l := newLayout(DefaultPrefix)
			rules := l.settingRules(&state{rules: r, localnet: was})
			got, n, err := parseSettings(rules)
			require.NoError(t, err)
			require.True(t, r.Equal(got), "%+v", got)
			if !r.LocalhostNodePorts {
				was = localnet{}
			}
			require.Equal(t, was, n)
		}
	}
	for _, c := range []string{"", "colour blue", "pod-cidr x", "masquerade-mark many"} {
		_, _, err := parseSettings([]rule{{comment: "masquerade-mark 0x4000"}, {comment: c}})
		require.Error(t, err, c)
	}
	_, _, err := parseSettings(nil)
	require.Error(t, err)
}

// Applying the edits to the first list gives the second one. The edits touch as few rules as
// possible.
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
		at, kept := 0, 0
		for _, e := range editsBetween(a, b) {
			require.Equal(t, at, e.at, "seed %d", seed)
			if e.kind != editInsert {
				at++
			}
			switch e.kind {
			case editKeep:
				kept++
				got = append(got, a[e.at])
			case editInsert, editReplace:
				got = append(got, b[e.rule])
			}
		}
		require.Equal(t, len(a), at)
		require.True(t, sameRules(b, got), "seed %d: %v to %v", seed, a, b)
		require.Equal(t, mostKept(a, b), kept, "seed %d: %v to %v", seed, a, b)
	}
}

// mostKept returns how many rules can stay when one list becomes another.
func mostKept(a, b []rule) int {
	switch {
	case len(a) == 0 || len(b) == 0:
		return 0
	case a[0].same(&b[0]):
		return 1 + mostKept(a[1:], b[1:])
	}
	return max(mostKept(a[1:], b), mostKept(a, b[1:]))
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
