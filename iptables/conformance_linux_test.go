package iptables_test

import (
	"testing"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/dataplanetest"
	"github.com/kernlb/kernlb/iptables"
)

func open(netns int) (dataplane.Backend, error) {
	return iptables.New(&iptables.Config{NetNS: netns})
}

func TestConformance(t *testing.T) {
	t.Parallel()
	dataplanetest.Run(t, open)
}

func TestRandomPackets(t *testing.T) {
	t.Parallel()
	dataplanetest.Random(t, open, dataplanetest.RandomOptions{})
}
