package main

import (
	"testing"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/test/dataplanetest"
	"github.com/kernlb/kernlb/iptables"
	"github.com/kernlb/kernlb/ipvs"
	"github.com/kernlb/kernlb/nftables"
)

var (
	onNftables = dataplanetest.Backend{Open: func(ns int) (dataplane.Backend, error) {
		return nftables.New(&nftables.Config{NetNS: ns})
	}}
	onIPTables = dataplanetest.Backend{Open: func(ns int) (dataplane.Backend, error) {
		return iptables.New(&iptables.Config{NetNS: ns})
	}}
	onIPVS = dataplanetest.Backend{Require: needIPVS, OwnConnections: true,
		Open: func(ns int) (dataplane.Backend, error) { return ipvs.New(&ipvs.Config{NetNS: ns}) }}
)

func needIPVS(t *testing.T) {
	t.Helper()
	if err := ipvs.Candidate(nil).Probe(t.Context()); err != nil {
		t.Skipf("ipvs is not supported: %v", err)
	}
}

// No packet is lost while an engine changes its backend.
func TestSwitchOfBackends(t *testing.T) {
	t.Parallel()
	dataplanetest.Switched(t, onNftables, onIPTables)
}

func TestConformanceOfSwitchesToIPVS(t *testing.T) {
	t.Parallel()
	t.Run("nftables", func(t *testing.T) { dataplanetest.Switched(t, onNftables, onIPVS) })
	t.Run("iptables", func(t *testing.T) { dataplanetest.Switched(t, onIPTables, onIPVS) })
}
