package nftables_test

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/dataplanetest/scenario"
	"github.com/kernlb/kernlb/dataplane/netns"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/test/dataplanetest"
	"github.com/kernlb/kernlb/internal/test/nstest"
	"github.com/kernlb/kernlb/nftables"
	"github.com/kernlb/kernlb/servicemodel"
)

// A sample of the scenarios passes at the lowest and at the highest priorities.
func TestPrioritiesAtTheirLimits(t *testing.T) {
	t.Parallel()
	var some []scenario.Scenario
	for i, s := range dataplanetest.Scenarios() {
		if i%12 == 0 || s.Line == "answers" || s.Line == "2.4" {
			some = append(some, s)
		}
	}

	for _, p := range []nftables.Priorities{{DNAT: -99, Filter: -90, SNAT: -99},
		{DNAT: 99, Filter: 199, SNAT: 199}, {DNAT: 99, Filter: -90, SNAT: -99}} {
		t.Run(fmt.Sprint(p), func(t *testing.T) {
			dataplanetest.RunScenarios(t, at(p), some...)
		})
	}
}

// at returns the backend with other priorities.
func at(p nftables.Priorities) dataplanetest.Backend {
	under := underTest
	under.Open = func(ns netns.Namespace) (backends.Backend, error) {
		return nftables.New(&nftables.Config{NetNS: ns, Priorities: p})
	}
	return under
}

// Configurations that cannot be satisfied are errors that name the field.
func TestPlacesThatAreRefused(t *testing.T) {
	t.Parallel()
	for field, cfg := range map[string]*nftables.Config{
		"Priorities.DNAT":   {Priorities: nftables.Priorities{DNAT: -100}},
		"Priorities.Filter": {Priorities: nftables.Priorities{Filter: 200}},
		"Priorities.SNAT":   {Priorities: nftables.Priorities{SNAT: 200}},
		"BeforeDispatch":    {BeforeDispatch: "mine"},
		"BeforeMasquerade":  {BeforeDispatch: "user-a", BeforeMasquerade: "user-b c"},
	} {
		_, err := nftables.New(cfg)
		var wrong *servicemodel.FieldError
		require.ErrorAs(t, err, &wrong, field)
		require.Equal(t, field, wrong.Field)
	}

	_, err := nftables.New(&nftables.Config{BeforeDispatch: "user-a", BeforeMasquerade: "user-a"})
	require.ErrorContains(t, err, "must differ")
}

// The user's rules decide before the instance does. They outlive commits, repairs and restarts.
func TestChainsOfTheUser(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("nft is not installed (Debian package nftables)")
	}
	c := netnstest.Start(t, netnstest.Options{})
	for _, pod := range c.Pods[1:3] {
		require.NoError(t, pod.Serve(servicemodel.TCP, 8080))
	}
	ns := c.Node.NS
	i := &instance{number: 1, all: true}
	open := func() *dataplane.Engine {
		b := ok(nftables.New(&nftables.Config{NetNS: ns.NetNS(), BeforeDispatch: "user-first",
			BeforeMasquerade: "user-snat"}))(t)
		t.Cleanup(func() { b.Close() })
		return dataplane.New(b, nil)
	}

	apply := func(e *dataplane.Engine, pod int) *dataplane.Result {
		return ok(e.Apply(t.Context(), i.state(c.Pods[pod].IPv4)))(t)
	}
	ask := func() netnstest.Outcome {
		p := netnstest.Probe{From: c.Outside[0], Proto: servicemodel.TCP,
			To: netip.AddrPortFrom(i.address(true), 80)}
		return p.Send(t.Context())
	}

	e := open()
	apply(e, 1)
	require.Equal(t, c.Pods[1].Name, ask().Server)

	own := c.NodeAddrs()[1]
	nstest.Run(t, ns, fmt.Sprintf("nft add rule ip kernlb user-snat ip daddr %s snat to %s",
		c.Pods[2].IPv4, own))
	require.Equal(t, c.Node.IPv4, ask().Source.Addr(), "the rule is about another endpoint")
	apply(e, 2)
	require.Equal(t, own, ask().Source.Addr())

	nstest.Run(t, ns, fmt.Sprintf("nft add rule ip kernlb user-first ip saddr { %s } tcp dport 80 "+
		"accept", c.Outside[0].IPv4))
	require.NotEqual(t, c.Pods[2].Name, ask().Server, "the packet is not the instance's")
	for _, spoil := range []string{"flush chain ip kernlb dispatch",
		"flush set ip kernlb services", "add rule ip kernlb nat-prerouting drop"} {
		nstest.Run(t, ns, "nft "+spoil)
		e.Resync()
		r := apply(e, 1+len(spoil)%2)
		require.True(t, r.IsRepair(), spoil)
		require.NotEqual(t, c.Pods[2].Name, ask().Server, spoil)
	}

	e = open()
	require.Empty(t, apply(e, 2).Drift)
	require.NotEqual(t, c.Pods[2].Name, ask().Server)
	nstest.Run(t, ns, "nft flush chain ip kernlb user-first")
	require.Equal(t, c.Pods[2].Name, ask().Server)
	require.Equal(t, own, ask().Source.Addr())

	// If the chains are not in the configuration, they do not belong, and are deleted with the
	// table.
	b := ok(nftables.New(&nftables.Config{NetNS: ns.NetNS()}))(t)
	t.Cleanup(func() { b.Close() })
	r := apply(dataplane.New(b, nil), 2)
	require.Contains(t, strings.Join(r.Drift, "\n"), "chain user-first does not belong")
	require.Equal(t, c.Node.IPv4, ask().Source.Addr())
	apply(open(), 2)
	ok(open().Cleanup(t.Context()))(t)
	require.NotEqual(t, c.Pods[2].Name, ask().Server)
}
