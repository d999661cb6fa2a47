package iptables

import (
	"testing"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/test/dataplanetest"
)

// underTest is the backend for the tests of package dataplanetest.
var underTest = dataplanetest.Backend{Loopback: true, Open: func(netns int) (
	dataplane.Backend, error) {
	return openBackend(&Config{NetNS: netns})
}}

func TestConformance(t *testing.T) {
	t.Parallel()
	dataplanetest.Run(t, underTest)
}

func TestRandomPackets(t *testing.T) {
	t.Parallel()
	dataplanetest.Random(t, underTest, dataplanetest.RandomOptions{})
}

func TestEveryField(t *testing.T) {
	t.Parallel()
	dataplanetest.EveryField(t, underTest, dataplanetest.FieldsOptions{
		Second: func(netns int) (dataplane.Backend, error) {
			return openBackend(&Config{NetNS: netns, Prefix: "SECOND"})
		}})
}
