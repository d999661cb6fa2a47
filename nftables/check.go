package nftables

import (
	"errors"
	"fmt"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/internal/rendering"
	"github.com/kernlb/kernlb/nftables/internal/form"
	"github.com/kernlb/kernlb/servicemodel"
)

// Check returns the parts of a change set that nftables cannot express on any kernel: schedulers
// other than random, rr, wrr, sh and mh; forwarding other than NAT; pools whose weights, divided by
// their greatest common divisor, add up to more than 65,536; and, in tables that are not made by
// servicemodel.Resolve, source ranges of node ports and some combinations of origins whose packets
// are masqueraded. The errors, which [dataplane.Problems] lists, are *[backends.UnsupportedError]
// values. Check needs neither a kernel nor Linux. The change set of a whole table is
// servicemodel.Diff(nil, table).
func Check(c *servicemodel.ChangeSet) error {
	if c == nil {
		return rendering.NoChanges(Name)
	}
	return rendering.Check(Name, c, abilities)
}

// abilities are what nftables can express.
var abilities = rendering.Abilities{
	Scheduler: func(s servicemodel.Scheduler) bool {
		name, _, _ := s.Split()
		_, ok := form.SchedulerWays[name]
		return ok
	},
	SchedulerHint:  "nftables has random, rr, wrr, sh and mh, and ipvs the others",
	ForwardingHint: "nftables translates addresses", Answers: true, Neighbours: true,
	Pool: func(r *rendering.Refusals, p *servicemodel.Pool) {
		if n := form.EntryCount(p); n == 0 || n > form.MaxSlots {
			r.Refuse(p.ID.Service, backends.FieldWeights, fmt.Sprintf("sum %d", form.SlotCount(p)),
				fmt.Sprintf("the weights of a pool, divided by their greatest common "+
					"divisor, add up to at most %d", form.MaxSlots))
		}
	},
}

// Check returns what the function [Check] returns. If the kernel lacks an expression that tables of
// a family need, it also refuses that family ([backends.FieldFamily]), if the node may do without
// it. An engine then serves the other one.
func (b *backend) Check(c *servicemodel.ChangeSet) error {
	errs := []error{rendering.Check(Name, c, abilities)}
	if c.New.Rules().OnlyFamily == 0 {
		for _, t := range b.pl.TablesToMake(c) {
			if err := b.lacks(t.Family); err != nil {
				errs = append(errs, rendering.RefusedNode(Name, backends.FieldFamily,
					t.Family.Model.String(), err.Error()))
			}
		}
	}
	return errors.Join(errs...)
}

// Plan renders what Commit would send, in nft's language.
func (b *backend) Plan(c *servicemodel.ChangeSet) (backends.Plan, error) {
	if !b.observed {
		return nil, errNotObserved
	}
	if b.pl.Owning != nil && b.pl.Removes(c) {
		return b.pl.Removal(c.New.Len()), nil
	}
	return b.pl.Plan(b.anew(c)), nil
}
