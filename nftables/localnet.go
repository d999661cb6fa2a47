package nftables

import (
	"github.com/kernlb/kernlb/internal/rendering"
	"github.com/kernlb/kernlb/servicemodel"
)

// The sysctl route_localnet is on while a service or node port answers at loopback addresses, and
// only while the guard exists. The transaction that brings the guard writes the earlier value of
// the sysctl as a setting. The sysctl returns to that value before the guard is removed, unless
// another program has a guard and so relies on the sysctl.

// localnet is the backend's knowledge of the sysctl route_localnet.
type localnet struct {
	// before is the value of the sysctl before it was needed.
	before bool
	// off says that the sysctl was found off although it is needed.
	off bool
}

// wantsLocalnet reports whether the sysctl is needed before a change set, and after it.
func (pl *planner) wantsLocalnet(c *servicemodel.ChangeSet) (was, want bool) {
	was = rendering.WantsRouteLocalnet(&pl.rules)
	if c.Rules == nil {
		return was, was
	}
	return was, rendering.WantsRouteLocalnet(c.Rules.New)
}

// planLocalnet puts a change of the sysctl into the plan.
func (pl *planner) planLocalnet(p *plan) {
	switch was, want := pl.wantsLocalnet(p.c); {
	case want && (!was || pl.localnet.off):
		p.sysctl = rendering.RouteLocalnetName + "=1"
	case was && !want && !pl.localnet.before:
		p.sysctl = rendering.RouteLocalnetName + "=0"
	}
}
