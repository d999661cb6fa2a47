package iptables

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/test/must"
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
				CIDRs: must.Prefixes("fd00::/8", "10.244.0.0/16")},
			NodePorts:    must.Prefixes("0.0.0.0/0", "::/0"),
			ServiceCIDRs: must.Prefixes("10.96.0.0/12"), LocalhostNodePorts: true,
		},
		{MasqueradeMark: 1 << 31, LocalPods: sm.PodDetector{InterfacePrefix: "cali"}},
		{MasqueradeMark: 1, LocalPods: sm.PodDetector{Bridge: "cni0"}},
	} {
		for _, was := range []localnet{{before: "0"}, {before: "1"},
			{before: "0", kept: true}, {before: "1", kept: true}} {
			l := newLayout(defaultPrefix)
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
// possible, and the text of a difference counts them.
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
		require.Regexp(t, fmt.Sprintf("^lacks %d and has %d surplus rules;", len(b)-kept,
			len(a)-kept), describeDifference(a, b, sm.IPv4))
	}
}

// mostKept returns the number of rules that can stay when one list becomes another.
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

var checkName = sm.PortName{Name: svcName("web"), Port: "http", Protocol: sm.TCP}

// oneFrontend returns a frontend that rejects, after a change.
func oneFrontend(change func(*sm.Frontend)) sm.Contents {
	key := sm.FrontendKey{Addr: netip.MustParseAddr("10.96.0.10"), Protocol: sm.TCP, Port: 80}
	f := &sm.Frontend{Key: key, Service: checkName, Internal: sm.Reject}
	change(f)
	return sm.Contents{Frontends: []*sm.Frontend{f}}
}

// onePool returns a frontend with a pool, after a change.
func onePool(change func(*sm.Pool)) sm.Contents {
	slots := []sm.Slot{{Endpoint: netip.MustParseAddrPort("10.244.1.1:8080"), Weight: 1}}
	p := &sm.Pool{ID: sm.PoolID{Service: checkName, Family: sm.IPv4}, Slots: slots}
	change(p)
	c := oneFrontend(func(f *sm.Frontend) {
		f.Internal, f.External = sm.BalanceCluster, sm.BalanceCluster
	})
	c.Pools = []*sm.Pool{p}
	return c
}

// twoTimeouts returns two frontends of one service port with different timeouts of affinity.
func twoTimeouts() sm.Contents {
	c := oneFrontend(func(f *sm.Frontend) { f.Affinity = time.Minute })
	other := *c.Frontends[0]
	other.Key.Port, other.Affinity = 81, time.Hour
	c.Frontends = append(c.Frontends, &other)
	return c
}

// checkCases are tables, and the field that iptables cannot express, or "".
var checkCases = []struct {
	name, field string
	contents    sm.Contents
}{
	{"fine", "", onePool(func(*sm.Pool) {})},
	{"round robin is fine", "", onePool(func(p *sm.Pool) { p.Scheduler = sm.RoundRobin })},
	{"source hash is fine", "", onePool(func(p *sm.Pool) { p.Scheduler = "sh+port" })},
	{"source hash without xt_bpf", "scheduler", onePool(func(p *sm.Pool) {
		p.Scheduler = sm.SourceHash
	})},
	{"least connections", "scheduler", onePool(func(p *sm.Pool) { p.Scheduler = sm.LeastConn })},
	{"direct routing", "forwarding", onePool(func(p *sm.Pool) {
		p.Forwarding = sm.ForwardDirect
	})},
	{"affinity without xt_recent", "sessionAffinity", oneFrontend(func(f *sm.Frontend) {
		f.Affinity = time.Minute
	})},
	{"sctp without xt_sctp", "protocol", oneFrontend(func(f *sm.Frontend) {
		f.Key.Protocol = sm.SCTP
	})},
	{"source ranges of a node port", "sources", oneFrontend(func(f *sm.Frontend) {
		f.Key.Addr, f.Sources = netip.IPv4Unspecified(), must.Prefixes("10.0.0.0/8")
	})},
	{"neighbours", "masqueradeNeighbours", sm.Contents{Rules: sm.Rules{MasqueradeMark: 1,
		MasqueradeNeighbours: true}}},
	{"two timeouts for one service port", "sessionAffinity.timeout", twoTimeouts()},
}

func TestCheckNamesWhatCannotBeExpressed(t *testing.T) {
	t.Parallel()
	for _, c := range checkCases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			table := ok(sm.NewTable(c.contents))(t)
			lacks := &lacking{recent: c.field == "sessionAffinity", sctp: true,
				bpf: c.field == "scheduler"}
			err := check(sm.Diff(nil, table), lacks)
			if c.field == "" {
				require.NoError(t, err)
				return
			}

			var u *backends.UnsupportedError
			require.True(t, errors.As(err, &u), "%v", err)
			require.Equal(t, c.field, u.Field)
			require.ErrorIs(t, err, backends.ErrUnsupported)
		})
	}
}

// A scheduler that the backend lacks is refused before the service has endpoints.
func TestSchedulersAreRefusedWithoutEndpoints(t *testing.T) {
	t.Parallel()
	svc := &sm.Service{Name: sm.Name{Namespace: "default", Name: "web"}, Scheduler: sm.LeastConn,
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")},
		Ports:      []sm.ServicePort{{Protocol: sm.TCP, Port: 80}}}
	table := ok(sm.Resolve(nil, sm.State{}.WithService(svc)))(t)
	require.ErrorContains(t, check(sm.Diff(nil, table), &lacking{}), "scheduler: lc")
}

// The service in the package's documentation gets the documented rules.
func TestTheDocumentedRulesAreThere(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	doc, _, _ = bytes.Cut(doc, []byte("# Many services"))
	ports := []sm.EndpointPort{{Name: "http", Protocol: sm.TCP, Port: 8080}}
	s := sm.State{}.WithNode(testNode()).WithService(&sm.Service{
		Name: svcName("web"),
		Ports: []sm.ServicePort{{Name: "http", Protocol: sm.TCP, Port: 80,
			NodePort: 30080}},
		ClusterIPs:      must.Addrs("10.96.0.10"),
		LoadBalancerIPs: []sm.LoadBalancerIP{{Addr: must.Addrs("203.0.113.8")[0]}},
	}).WithEndpoints(svcName("web"), []sm.Endpoint{
		{Addr: must.Addrs("10.244.1.1")[0], Node: "node", Ports: ports},
		{Addr: must.Addrs("10.244.1.2")[0], Node: "another", Ports: ports},
	})
	plan := planFor(t, s)[0].String()
	for _, command := range []string{"-I PREROUTING 1", "-I OUTPUT 1", "-I POSTROUTING 1",
		"-I INPUT 1", "-I FORWARD 1", "-I FORWARD 2"} {
		plan = strings.ReplaceAll(plan, command, "-A "+strings.Fields(command)[1])
	}

	checked := 0
	for line := range strings.Lines(string(doc)) {
		line, ok := strings.CutPrefix(line, "//\t-A ")
		if !ok {
			continue
		}

		// "…" stands for text that is too long to show.
		for part := range strings.SplitSeq(strings.TrimSpace(line), "…") {
			require.Contains(t, plan, part)
			checked++
		}
	}

	require.Greater(t, checked, 25)
}

func TestErrorsShowTheRule(t *testing.T) {
	t.Parallel()
	var b rawnl.Batch
	e := newEncoder(&b)
	id := filter6.chain("KUBE-SERVICES")
	e.rule(id, nft.Last, 0, &rule{dst: must.Prefixes("fd00::1/128")[0],
		target: targetReject})
	require.Equal(t, "rule -d fd00::1/128 -j REJECT --reject-with icmp6-port-unreachable",
		ruleOf(b.Bytes(), 0))
	b.Reset()
	e.of(id).FlushChain(id.name)
	require.Equal(t, "rule", ruleOf(b.Bytes(), 0))
	require.Equal(t, "rule", ruleOf(nil, 0))
}
