package kernelspace

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/servicemodel"
)

// Observe reads the record, the network with its endpoints, and all load balancers. The table has a
// frontend of the record if its load balancers are correct for the present endpoints of the
// network. All our other objects are drift. The hint is not used.
func (b *Backend) Observe(ctx context.Context, _ *servicemodel.Table) (*backends.Observation,
	error) {
	if err := b.enter(ctx, "observe"); err != nil {
		return nil, err
	}
	defer b.mu.Unlock()
	b.held = nil
	h, recorded, err := b.read(true)
	if err != nil {
		return nil, err
	}
	p := b.plan(h, recorded)
	h.needs = p.needs
	o := &backends.Observation{}
	wrong := map[servicemodel.FrontendKey]bool{}
	for _, s := range p.steps {
		if s.drift != "" {
			o.Drift = append(o.Drift, s.drift)
		}
		if s.spec != nil {
			for _, k := range s.spec.frontends {
				wrong[k] = true
			}
		}
	}

	slices.Sort(o.Drift)
	c := servicemodel.Contents{Rules: recorded.Rules(),
		ClusterIPs: slices.Collect(recorded.ClusterIPs()),
		Hairpins:   slices.Collect(recorded.Hairpins())}
	used := map[servicemodel.PoolID]bool{}
	for f := range recorded.Frontends() {
		if wrong[f.Key] {
			continue
		}
		c.Frontends = append(c.Frontends, f)
		for _, v := range [...]servicemodel.Verdict{f.Internal, f.External} {
			if id, ok := f.Pool(v); ok {
				used[id] = true
			}
		}
	}

	for p := range recorded.Pools() {
		if used[p.ID] {
			c.Pools = append(c.Pools, p)
		}
	}

	if h.table, err = servicemodel.NewTable(c); err != nil {
		return nil, fmt.Errorf("%s: the record: %w", Name, err)
	}
	b.held, o.Table = h, h.table
	return o, nil
}

// read reads everything, and separates our load balancers from other programs' load balancers. It
// also returns the table of the record. An unreadable record counts as a missing record. network
// says that it is an error if the network does not exist.
func (b *Backend) read(network bool) (*held, *servicemodel.Table, error) {
	raw, err := b.cfg.Store.Load()
	if err != nil {
		return nil, nil, fmt.Errorf("%s: load the record: %w", Name, err)
	}
	var r record
	if len(raw) > 0 && (json.Unmarshal(raw, &r) != nil || r.Layout != layout) {
		r = record{}
	}
	ids, _, err := b.hns.IDs()
	if err != nil {
		return nil, nil, fmt.Errorf("%s: list identities: %w", Name, err)
	}
	v, err := b.look(ids)
	if errors.Is(err, errNoNetwork) && !network {
		v, err = &view{}, nil
	}
	if err != nil {
		return nil, nil, err
	}
	lbs, err := b.hns.LoadBalancers()
	if err != nil {
		return nil, nil, fmt.Errorf("%s: list load balancers: %w", Name, interrupted(err))
	}
	h := &held{raw: raw, view: v, placed: map[servicemodel.FrontendKey]placed{},
		foreign: map[servicemodel.FrontendKey]string{}, seen: map[string]bool{}}
	h.divide(lbs, &r)
	return h, r.Table, nil
}

// interrupted turns a missing object into a conflict. A list first gets the identities, and then
// queries each object.
func interrupted(err error) error {
	if errors.Is(err, ErrNotFound) {
		err = fmt.Errorf("%w: %w", err, kernelerr.ErrConflict)
	}
	return err
}

// divide finds the owner of each load balancer. Our load balancers have an identity in the record,
// or are at a pending place: no other program had a load balancer there when the commit began, and
// HNS has only one at each place.
func (h *held) divide(lbs []LoadBalancer, r *record) {
	ours := map[string]servicemodel.FrontendKey{}
	for k, p := range r.Placed {
		ours[lower(p.ID)] = k
	}
	pending := map[servicemodel.FrontendKey]bool{}
	for _, k := range r.Pending {
		pending[k] = true
	}
	for i := range lbs {
		lb := &lbs[i]
		h.seen[lower(lb.ID)] = true
		k, ok := lb.Key()
		at, known := ours[lower(lb.ID)]
		p := r.Placed[at]
		switch {
		case known && at == k && !pending[k] && lb.same(&p.Got):
			h.placed[k] = p
		case known && !ok, known && h.placed[k].ID != "":
			h.extra = append(h.extra, lb.ID)
		case known || pending[k]:
			h.placed[k] = placed{ID: lb.ID} // its content is not what was sent
		case ok:
			h.foreign[k] = lb.ID
		}
	}
}
