package iptables

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	sm "github.com/kernlb/kernlb/servicemodel"
)

var checkName = sm.PortName{Name: svcName("web"), Port: "http", Protocol: sm.TCP}

// oneFrontend is a frontend that rejects, with a change.
func oneFrontend(change func(*sm.Frontend)) sm.Contents {
	key := sm.FrontendKey{Addr: netip.MustParseAddr("10.96.0.10"), Protocol: sm.TCP, Port: 80}
	f := &sm.Frontend{Key: key, Service: checkName, Internal: sm.Reject}
	change(f)
	return sm.Contents{Frontends: []*sm.Frontend{f}}
}

// onePool is a frontend with a pool, with a change.
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

// twoTimeouts are two frontends of one service port with different timeouts of affinity.
func twoTimeouts() sm.Contents {
	c := oneFrontend(func(f *sm.Frontend) { f.Affinity = time.Minute })
	other := *c.Frontends[0]
	other.Key.Port, other.Affinity = 81, time.Hour
	c.Frontends = append(c.Frontends, &other)
	return c
}

// checkCases are tables, and the field that iptables cannot express, "" if there is none.
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
		f.Key.Addr, f.Sources = netip.IPv4Unspecified(), prefixes("10.0.0.0/8")
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
			var u *dataplane.UnsupportedError
			require.True(t, errors.As(err, &u), "%v", err)
			require.Equal(t, c.field, u.Field)
			require.ErrorIs(t, err, dataplane.ErrUnsupported)
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
