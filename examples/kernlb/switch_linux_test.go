package main

import (
	"testing"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/dataplanetest"
	"github.com/kernlb/kernlb/iptables"
	"github.com/kernlb/kernlb/ipvs"
	"github.com/kernlb/kernlb/nftables"
)

func openNftables(ns int) (dataplane.Backend, error) {
	return nftables.New(&nftables.Config{NetNS: ns})
}

func openIPTables(ns int) (dataplane.Backend, error) {
	return iptables.New(&iptables.Config{NetNS: ns})
}

func openIPVS(ns int) (dataplane.Backend, error) { return ipvs.New(&ipvs.Config{NetNS: ns}) }

// No packet is lost while an engine changes its backend.
func TestSwitchOfBackends(t *testing.T) {
	t.Parallel()
	dataplanetest.Switched(t, openNftables, openIPTables)
}

func TestConformanceOfSwitchesToIPVS(t *testing.T) {
	t.Parallel()
	if err := ipvs.Candidate(nil).Probe(t.Context()); err != nil {
		t.Skipf("ipvs is not supported: %v", err)
	}
	t.Run("nftables", func(t *testing.T) { dataplanetest.Switched(t, openNftables, openIPVS) })
	t.Run("iptables", func(t *testing.T) { dataplanetest.Switched(t, openIPTables, openIPVS) })
}
