package nftables

import (
	"github.com/kernlb/kernlb/internal/rendering"
	"github.com/kernlb/kernlb/nftables/internal/form"
	"github.com/kernlb/kernlb/nftables/internal/plan"
	"github.com/kernlb/kernlb/servicemodel"
)

// leftLocalnet is what the backend knows of the sysctl if the settings are gone, such as after a
// flush of the ruleset. The sysctl is then on without a guard, as if the administrator had turned
// it on.
func (b *backend) leftLocalnet() form.Localnet {
	return form.Localnet{Before: b.pl.Localnet.Before,
		Left: b.pl.Localnet.Left || rendering.WantsRouteLocalnet(&b.pl.Rules)}
}

// wantsLocalnet reports whether the sysctl is needed before a change set, and after it. A table
// that is made anew tells no rules. Its sysctl counts only if it is not needed any more.
func (b *backend) wantsLocalnet(c *servicemodel.ChangeSet) (was, want bool) {
	was = rendering.WantsRouteLocalnet(&b.pl.Rules)
	if c.Rules == nil {
		return was, was
	}
	want = rendering.WantsRouteLocalnet(c.Rules.New)
	return was || b.pl.Localnet.Left && !want, want
}

// planLocalnet puts a change of the sysctl into the plan.
func (b *backend) planLocalnet(p *plan.Plan) {
	switch was, want := b.wantsLocalnet(p.Changes); {
	case want && (!was || b.pl.Localnet.Off):
		p.Sysctl = rendering.RouteLocalnetName + "=1"
	case was && !want && !b.pl.Localnet.Before:
		p.Sysctl = rendering.RouteLocalnetName + "=0"
	}
}
