package iptables

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	sm "github.com/kernlb/kernlb/servicemodel"
)

func TestCheckNamesWhatCannotBeExpressed(t *testing.T) {
	t.Parallel()
	name := sm.PortName{Name: svcName("web"), Port: "http", Protocol: sm.TCP}
	slots := []sm.Slot{{Endpoint: netip.MustParseAddrPort("10.244.1.1:8080"), Weight: 1}}
	frontend := func(change func(*sm.Frontend)) sm.Contents {
		key := sm.FrontendKey{Addr: netip.MustParseAddr("10.96.0.10"), Protocol: sm.TCP, Port: 80}
		f := &sm.Frontend{Key: key, Service: name, Internal: sm.Reject}
		change(f)
		return sm.Contents{Frontends: []*sm.Frontend{f}}
	}
	pool := func(change func(*sm.Pool)) sm.Contents {
		p := &sm.Pool{ID: sm.PoolID{Service: name, Family: sm.IPv4}, Slots: slots}
		change(p)
		c := frontend(func(f *sm.Frontend) {
			f.Internal, f.External = sm.BalanceCluster, sm.BalanceCluster
		})
		c.Pools = []*sm.Pool{p}
		return c
	}
	mixed := frontend(func(f *sm.Frontend) { f.Affinity = time.Minute })
	other := *mixed.Frontends[0]
	other.Key.Port, other.Affinity = 81, time.Hour
	mixed.Frontends = append(mixed.Frontends, &other)
	for _, c := range []struct {
		name, field string
		contents    sm.Contents
	}{
		{"fine", "", pool(func(*sm.Pool) {})},
		{"round robin is fine", "", pool(func(p *sm.Pool) { p.Scheduler = sm.RoundRobin })},
		{"least connections", "scheduler", pool(func(p *sm.Pool) { p.Scheduler = sm.LeastConn })},
		{"direct routing", "forwarding", pool(func(p *sm.Pool) {
			p.Forwarding = sm.ForwardDirect
		})},
		{"a name too long for a comment", "name", frontend(func(f *sm.Frontend) {
			f.Service.Name.Name = strings.Repeat("x", 200)
		})},
		{"affinity without xt_recent", "sessionAffinity", frontend(func(f *sm.Frontend) {
			f.Affinity = time.Minute
		})},
		{"sctp without xt_sctp", "protocol", frontend(func(f *sm.Frontend) {
			f.Key.Protocol = sm.SCTP
		})},
		{"source ranges of a node port", "sources", frontend(func(f *sm.Frontend) {
			f.Key.Addr, f.Sources = netip.IPv4Unspecified(), prefixes("10.0.0.0/8")
		})},
		{"two timeouts for one service port", "sessionAffinity.timeout", mixed},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			table, err := sm.NewTable(c.contents)
			require.NoError(t, err)
			lacks := &lacking{recent: c.field == "sessionAffinity", sctp: true}
			err = check(sm.Diff(nil, table), lacks)
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
