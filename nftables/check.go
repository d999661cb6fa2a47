package nftables

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/internal/rendering"
	"github.com/kernlb/kernlb/nftables/internal/form"
	"github.com/kernlb/kernlb/servicemodel"
)

// Check returns the parts of a change set that nftables cannot express on any kernel: schedulers
// other than random, rr, wrr, sh, mh, lc and wlc; forwarding other than NAT; pools whose weights,
// divided by their greatest common divisor, add up to more than 65,536; and, in tables not made by
// servicemodel.Resolve, source ranges of node ports and some combinations of origins whose packets
// are masqueraded. The errors are *[backends.UnsupportedError] values, which [dataplane.Problems]
// lists. Check needs neither a kernel nor Linux. To check a whole table, pass
// servicemodel.Diff(nil, table).
//
// For ranges of ports, Check also refuses endpoints with different ports, the schedulers sh and mh,
// and affinity of prefixes and of whole services. For ranges of node ports, it refuses all
// affinity, and MasqueradeIPs.
func Check(c *servicemodel.ChangeSet) error {
	if c == nil {
		return rendering.NoChanges(Name)
	}
	return errors.Join(rendering.Check(Name, c, abilities), checkRanges(c))
}

// checkRanges refuses ranges of ports whose endpoints have different ports or are chosen by a hash.
func checkRanges(c *servicemodel.ChangeSet) error {
	var errs []error
	refused := map[servicemodel.PortName]bool{}
	refuse := func(fe *servicemodel.Frontend, field, value, hint string) {
		refused[fe.Service] = true
		errs = append(errs, &backends.UnsupportedError{Backend: Name, Service: fe.Service.Name,
			Object: "service " + fe.Service.String(), Field: field, Value: value, Hint: hint})
	}

	check := func(fe *servicemodel.Frontend) {
		if fe == nil || fe.Key.EndPort == 0 || refused[fe.Service] {
			return
		}
		internal, external := c.New.PoolsOf(fe)
		for _, p := range []*servicemodel.Pool{internal, external} {
			if !form.TakesRanges(p) {
				refuse(fe, backends.FieldScheduler, string(p.Scheduler),
					"for ranges of ports, nftables has random, rr, wrr, lc and wlc")
				return
			}
		}
		if _, ok := form.RangePort(internal, external); !ok {
			refuse(fe, backends.FieldEndPort, strconv.Itoa(int(fe.Key.EndPort)),
				"on nftables the endpoints of a range have one port, or all have port 0")
		}
	}

	for _, fc := range c.Frontends {
		check(fc.New)
	}
	for _, pc := range c.Pools {
		if pc.Old != nil && pc.New != nil {
			for _, fe := range c.New.FrontendsOf(pc.New.ID.Service) {
				check(fe)
			}
		}
	}

	return errors.Join(errs...)
}

// checkParts refuses lc and wlc in parts: a program that applies a part runs only for one change,
// and cannot feed shares back.
func checkParts(c *servicemodel.ChangeSet) error {
	can := abilities
	can.Frontend, can.Pool = nil, nil // checked without parts, too
	can.AnyOrigins, can.ForwardingHint = true, ""
	can.SchedulerHint = "nftables has random, rr, wrr, sh and mh in parts"
	can.Scheduler = func(s servicemodel.Scheduler) bool {
		return abilities.Scheduler(s) && !s.Fed()
	}
	return rendering.Check(Name, c, can)
}

// abilities are the features that nftables can express.
var abilities = rendering.Abilities{
	Scheduler: func(s servicemodel.Scheduler) bool {
		name, _, _ := s.Split()
		_, ok := form.SchedulerWays[name]
		return ok
	},
	SchedulerHint: "nftables has random, rr, wrr, sh, mh, lc and wlc, and ipvs the others",

	ForwardingHint: "nftables only translates addresses", Answers: true, Neighbours: true,
	Ranges: true, NodeRanges: true, Shifted: true, MasqueradeIPs: true,
	Frontend: func(r *rendering.Refusals, fe *servicemodel.Frontend) {
		const nodeRange = "not at ranges of node ports"
		switch node := fe.Key.NodePort(); {
		case fe.Key.EndPort == 0:
		case node && fe.Affinity > 0:
			r.Refuse(fe.Service, backends.FieldSessionAffinity, "ClientIP", nodeRange)
		case node && fe.MasqueradeIP.IsValid():
			r.Refuse(fe.Service, backends.FieldMasqueradeIPs, fe.MasqueradeIP.String(), nodeRange)
		case fe.AffinityService:
			r.Refuse(fe.Service, backends.FieldAffinityService, "true", "not at ranges of ports")
		case fe.AffinityBits > 0:
			r.Refuse(fe.Service, backends.FieldAffinityBits, strconv.Itoa(int(fe.AffinityBits)),
				"not at ranges of ports")
		}
	},
	Pool: func(r *rendering.Refusals, p *servicemodel.Pool) {
		if n := form.EntryCount(p); n == 0 || n > form.MaxSlots {
			r.Refuse(p.ID.Service, backends.FieldWeights, fmt.Sprintf("sum %d", form.SlotCount(p)),
				fmt.Sprintf("the weights of a pool, divided by their greatest common "+
					"divisor, add up to at most %d", form.MaxSlots))
		}
	},
}

// Check returns the result of the function [Check]. If the kernel lacks an expression that the
// tables of a family need, and the node can do without that family, Check also refuses the family
// ([backends.FieldFamily]). An engine then serves the other family.
func (b *backend) Check(c *servicemodel.ChangeSet) error {
	errs := []error{Check(c)}
	if b.pl.Owning != nil {
		errs = append(errs, checkParts(c))
	}
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

// Plan renders the messages that Commit would send, in nft's language.
func (b *backend) Plan(c *servicemodel.ChangeSet) (backends.Plan, error) {
	if !b.observed {
		return nil, errNotObserved
	}
	if b.pl.Owning != nil && b.pl.Removes(c) {
		return b.pl.Removal(c.New.Len()), nil
	}
	return b.pl.Plan(b.anew(c)), nil
}
