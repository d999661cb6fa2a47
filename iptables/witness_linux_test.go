package iptables

import (
	"testing"

	"github.com/kernlb/kernlb/internal/test/dataplanetest"
)

// The kernel says which program undoes the backend's work.
func TestWhoUndoesItIsTold(t *testing.T) {
	t.Parallel()
	dataplanetest.Witnessed(t, underTest,
		"nft flush ruleset", "iptables -F", "iptables -t nat -F PREROUTING",
		"iptables -t nat -A KUBE-SERVICES")
}
