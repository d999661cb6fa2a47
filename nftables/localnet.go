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
	// left says that the sysctl was needed for a table that must be made anew, or is gone.
	left bool
}

// leftLocalnet is what the backend knows of the sysctl if the settings are gone, such as after a
// flush of the ruleset. The sysctl is then on without a guard, as if the administrator had turned
// it on.
func (pl *planner) leftLocalnet() localnet {
	return localnet{before: pl.localnet.before,
		left: pl.localnet.left || rendering.WantsRouteLocalnet(&pl.rules)}
}

// wantsLocalnet reports whether the sysctl is needed before a change set, and after it. A table
// that is made anew tells no rules. Its sysctl counts only if it is not needed any more.
func (pl *planner) wantsLocalnet(c *servicemodel.ChangeSet) (was, want bool) {
	was = rendering.WantsRouteLocalnet(&pl.rules)
	if c.Rules == nil {
		return was, was
	}
	want = rendering.WantsRouteLocalnet(c.Rules.New)
	return was || pl.localnet.left && !want, want
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
