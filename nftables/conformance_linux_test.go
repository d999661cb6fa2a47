package nftables_test

import (
	"testing"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/netns"
	"github.com/kernlb/kernlb/internal/test/dataplanetest"
	"github.com/kernlb/kernlb/nftables"
)

// underTest is the backend for the tests of package dataplanetest.
var underTest = dataplanetest.Backend{Loopback: true, Neighbours: true, Answers: true,
	Ranges: true, NodeRanges: true, Shifted: true, MasqueradeIPs: true,
	Open: func(ns netns.Namespace) (backends.Backend, error) {
		return nftables.New(&nftables.Config{NetNS: ns})
	}}

func TestConformance(t *testing.T) {
	t.Parallel()
	dataplanetest.Run(t, underTest)
}

func TestRandomPackets(t *testing.T) {
	t.Parallel()
	dataplanetest.Random(t, underTest, 0)
}

func TestEveryField(t *testing.T) {
	t.Parallel()
	dataplanetest.EveryField(t, underTest, dataplanetest.FieldsOptions{
		Ranges: true, MasqueradeIPs: true,
		Refused: []string{"endpoint.Ports[last].Port", "service.Forwarding",
			"service.Ports[last].NodePort", "service.Scheduler", "service.SessionAffinity.Bits4",
			"service.SessionAffinity.Bits6", "service.SessionAffinity.WholeService"},
		Second: func(ns netns.Namespace) (backends.Backend, error) {
			return nftables.New(&nftables.Config{NetNS: ns, Table: "second"})
		}})
}
