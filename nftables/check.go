package nftables

import (
	"errors"
	"fmt"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/comment"
	"github.com/kernlb/kernlb/servicemodel"
)

// check reports what of a change set cannot be expressed.
func check(c *servicemodel.ChangeSet) error {
	var errs []error
	var about servicemodel.Name // the service being checked; zero for the node
	refuse := func(object, field, value, hint string) {
		errs = append(errs, &dataplane.UnsupportedError{Backend: Name, Service: about,
			Object: object, Field: field, Value: value, Hint: hint})
	}
	for _, fc := range c.Frontends {
		if fe := fc.New; fe != nil {
			about = fe.Service.Name
			checkFrontend(fe, refuse)
		}
	}
	for _, pc := range c.Pools {
		p := pc.New
		if p == nil {
			continue
		}
		about = p.ID.Service.Name
		object := "service " + p.ID.Service.String()
		if p.Scheduler != servicemodel.SchedulerDefault && p.Scheduler != servicemodel.Random {
			refuse(object, "scheduler", string(p.Scheduler), "nftables chooses at random")
		}
		if p.Forwarding != servicemodel.ForwardNAT {
			refuse(object, "forwarding", p.Forwarding.String(),
				"nftables translates addresses")
		}
		if n := slotCount(p); n > maxSlots {
			refuse(object, "weights", fmt.Sprintf("sum %d", n),
				fmt.Sprintf(
					"the weights of a pool, divided by their greatest common divisor, add up to "+
						"at most %d", maxSlots))
		}
	}
	return errors.Join(errs...)
}

// maxSlots bounds the elements of one pool.
const maxSlots = 1 << 16

func checkFrontend(fe *servicemodel.Frontend, refuse func(object, field, value, hint string)) {
	object := "service " + fe.Service.String()
	switch fe.Masquerade {
	case 0, servicemodel.FromAnywhere, servicemodel.FromHost, servicemodel.FromHost |
		servicemodel.FromOutside:
	default:
		refuse(object, "masquerade", fe.Masquerade.String(), "")
	}
	if fe.Sources != nil && fe.Key.NodePort() {
		refuse(object, "sources", "on a node port", "")
	}
	if n := len(fe.Service.String()) - comment.MaxName; n > 0 {
		refuse(object, "name", fe.Service.String(),
			fmt.Sprintf("with its port it is %d bytes too long for a comment", n))
	}
}
