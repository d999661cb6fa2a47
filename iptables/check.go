package iptables

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/comment"
	"github.com/kernlb/kernlb/internal/shared"
	"github.com/kernlb/kernlb/servicemodel"
)

// check reports what of a change set cannot be expressed.
func check(c *servicemodel.ChangeSet, lacks *lacking) error {
	k := &checker{lacks: lacks}
	for _, fc := range c.Frontends {
		if fc.New != nil {
			k.frontend(c.New, fc.New)
		}
	}
	for _, pc := range c.Pools {
		if pc.New != nil {
			k.pool(pc.New)
		}
	}
	if c.Rules != nil && c.Rules.New.MasqueradeNeighbours {
		k.errs = append(k.errs, &dataplane.UnsupportedError{Backend: Name, Object: "node",
			Field: "masqueradeNeighbours", Value: "true", Hint: "nftables can"})
	}
	return errors.Join(k.errs...)
}

// lacking are abilities that the kernel does not have.
type lacking struct {
	recent bool // xt_recent
	sctp   bool // xt_sctp
}

type checker struct {
	lacks *lacking
	errs  []error
}

func (k *checker) refuse(n servicemodel.PortName, field, value, hint string) {
	k.errs = append(k.errs, &dataplane.UnsupportedError{
		Backend: Name, Service: n.Name, Object: "service " + n.String(),
		Field: field, Value: value, Hint: hint,
	})
}

func (k *checker) frontend(t *servicemodel.Table, fe *servicemodel.Frontend) {
	n := fe.Service
	if l := len(n.String()) - comment.MaxName; l > 0 {
		k.refuse(n, "name", n.String(),
			fmt.Sprintf("with its port it is %d bytes too long for a comment", l))
	}
	if fe.Affinity > 0 && k.lacks.recent {
		k.refuse(n, "sessionAffinity", "ClientIP", "the kernel lacks xt_recent")
	}
	if fe.Key.Protocol == servicemodel.SCTP && k.lacks.sctp {
		k.refuse(n, "protocol", "sctp", "the kernel lacks xt_sctp")
	}
	if fe.Sources != nil && fe.Key.NodePort() {
		k.refuse(n, "sources", "on a node port", "")
	}
	if fe.Affinity != commonAffinity(t, fe) {
		k.refuse(n, "sessionAffinity.timeout", fe.Affinity.String(),
			"all addresses of a service port remember clients equally long")
	}
}

// commonAffinity returns the affinity of the first frontend of the same service port and family.
func commonAffinity(t *servicemodel.Table, fe *servicemodel.Frontend) time.Duration {
	for _, o := range shared.Of(t).FrontendsOf(fe.Service) {
		if o.Key.Family() == fe.Key.Family() {
			return o.Affinity
		}
	}
	return fe.Affinity
}

// expressible are the schedulers that iptables can be.
var expressible = []servicemodel.Scheduler{servicemodel.SchedulerDefault, servicemodel.Random,
	servicemodel.RoundRobin}

func (k *checker) pool(p *servicemodel.Pool) {
	n := p.ID.Service
	if !slices.Contains(expressible, p.Scheduler) {
		k.refuse(n, "scheduler", string(p.Scheduler),
			"iptables chooses at random or in turn")
	}
	if p.Forwarding != servicemodel.ForwardNAT {
		k.refuse(n, "forwarding", p.Forwarding.String(), "iptables translates addresses")
	}
}
