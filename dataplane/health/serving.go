package health

import (
	"cmp"
	"sync/atomic"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/servicemodel"
)

// Serving counts the desired services by the outcome for their clients at this node. It describes
// the kernel's table, and does not say whether endpoints answer.
type Serving struct {
	// Services is the number of desired services. Each service is counted in exactly one of the
	// next five fields.
	Services int `json:"services"`
	// Serve counts the services that are balanced at each of their addresses.
	Serve int `json:"serve"`
	// Local counts the services whose traffic policy is Local and that have no endpoint on this
	// node. External load balancers use other nodes for them.
	Local int `json:"local,omitzero"`
	// Reject counts the services with an address that has no endpoints. Connections to it are
	// rejected, or dropped if [servicemodel.Node.NoEndpoints] says so.
	Reject int `json:"reject,omitzero"`
	// Nowhere counts the services without an address at which this node answers, for example
	// because they are not applied yet.
	Nowhere int `json:"nowhere,omitzero"`
	// Refused counts the services that were left out as a whole ([dataplane.Refusal]).
	Refused int `json:"refused,omitzero"`

	// Kept counts the refused services whose earlier definition is still served.
	Kept int `json:"kept,omitzero"`
	// Conflicts is the number of addresses and ports that services lost to other services, and
	// Warnings the number of warnings.
	Conflicts int `json:"conflicts,omitzero"`
	Warnings  int `json:"warnings,omitzero"`
	// Lost contains the first [MaxRejected] of these conflicts.
	Lost []servicemodel.Conflict `json:"lost,omitempty"`
	// Rejected contains the causes for the first [MaxRejected] services of Reject, in the order of
	// their names, with one address for each service.
	Rejected []servicemodel.Cause `json:"rejected,omitempty"`
}

// MaxRejected is the maximum length of [Serving.Rejected].
const MaxRejected = 20

// All reports whether clients can use all desired services, here or at other nodes.
func (s *Serving) All() bool { return s.Reject+s.Nowhere+s.Refused+s.Kept+s.Conflicts == 0 }

// Outcomes returns the five numbers that add up to Services, by their JSON names.
func (s *Serving) Outcomes() map[string]int {
	return map[string]int{"serve": s.Serve, "local": s.Local, "reject": s.Reject,
		"nowhere": s.Nowhere, "refused": s.Refused}
}

// ServingOf counts the services of an engine. It returns nil if the engine does not know the
// kernel's contents, for example before its first apply or after an error. Its time grows with the
// number of addresses.
func ServingOf(s dataplane.Status) *Serving {
	if s.Held == nil {
		return nil
	}
	v := &Serving{Services: s.State.Len(), Conflicts: len(s.Conflicts),
		Lost:     s.Conflicts[:min(MaxRejected, len(s.Conflicts))],
		Warnings: s.Warnings.Len()}
	refused := map[servicemodel.Name]bool{}
	for _, r := range s.Refused {
		if r.Kept {
			v.Kept++
		} else if r.Family == 0 && len(r.Endpoints) == 0 {
			refused[r.Service] = true
		}
	}

	for svc := range s.State.Services() {
		if refused[svc.Name] {
			v.Refused++
			continue
		}

		v.count(s.Held, s.Held.FrontendsOfService(svc.Name))
	}

	return v
}

// ServingCache keeps the result of [ServingOf] until the desired state or the kernel's table
// changes. The zero ServingCache is ready for one engine. Its method is safe for concurrent use.
type ServingCache struct{ last atomic.Pointer[counted] }

// counted is the result of [ServingOf] for these revisions and this table.
type counted struct {
	wanted, applied dataplane.Revision
	held            *servicemodel.Table
	serving         *Serving
}

// Of returns the result of [ServingOf]. Callers share the result and must not change it.
func (c *ServingCache) Of(s dataplane.Status) *Serving {
	l := c.last.Load()
	if l == nil || l.wanted != s.Wanted || l.applied != s.Applied || l.held != s.Held {
		l = &counted{s.Wanted, s.Applied, s.Held, ServingOf(s)}
		c.last.Store(l)
	}

	return l.serving
}

// count counts one service with its frontends.
func (v *Serving) count(held *servicemodel.Table, frontends []*servicemodel.Frontend) {
	var local bool
	var rejects *servicemodel.Frontend
	for _, f := range frontends {
		switch {
		case f.Internal == servicemodel.Reject || f.External == servicemodel.Reject:
			rejects = cmp.Or(rejects, f)
		case f.Internal == servicemodel.Drop || f.External == servicemodel.Drop:
			local = true
		}
	}

	switch {
	case len(frontends) == 0:
		v.Nowhere++
	case rejects != nil:
		if v.Reject++; len(v.Rejected) < MaxRejected {
			v.Rejected = append(v.Rejected, held.Cause(rejects))
		}
	case local:
		v.Local++
	default:
		v.Serve++
	}
}
