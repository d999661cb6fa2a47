package iptables

import (
	"slices"

	"github.com/kernlb/kernlb/dataplane/sysctls"
	"github.com/kernlb/kernlb/internal/nft"
)

// The sysctl route_localnet belongs to the guards. A guard is a rule in a chain KUBE-FIREWALL that
// drops packets from elsewhere to a loopback address. A program that needs node ports at localhost
// adds a guard and then turns the sysctl on. kube-proxy does this, and so does each instance of
// this backend. If the sysctl is on without any guard, the administrator turned it on.
// KUBE-SETTINGS records the sysctl's earlier value. If a program turns the sysctl on when it is
// already on, this leaves no trace.

// localnet is the part of the settings about node ports at localhost.
type localnet struct {
	before string // the earlier value of the sysctl
	// kept says that a guard was in the instance's chain before node ports answered at localhost.
	// Such a guard stays: the kubelet and kube-proxy put the same rule into the same chain.
	kept bool
}

// localnetOf is the record of node ports at localhost in the next settings.
func (k *kernelState) localnetOf(r map[string]string) localnet {
	return localnet{k.sysctls.Plan(r).Records[sysctls.RouteLocalnet], k.kept}
}

// guardsIn reports whether the instance's chain has a guard.
func (l *layout) guardsIn(r *raw) bool {
	c, g := r.chains[filter4.chain(l.names.localnet())], guard(nft.IPv4)
	return c != nil && slices.ContainsFunc(c.rules, func(r rule) bool { return r.same(&g) })
}
