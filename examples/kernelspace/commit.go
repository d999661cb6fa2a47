package kernelspace

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/servicemodel"
)

// Commit makes the calls of the plan one after the other, and stops at the first failure. The
// record is saved before the first call and after the last one.
func (b *Backend) Commit(ctx context.Context, c *servicemodel.ChangeSet) (backends.Stats, error) {
	start := time.Now()
	if err := b.enter(ctx, "commit"); err != nil {
		return backends.Stats{}, err
	}
	defer b.mu.Unlock()
	h := b.held
	b.held = nil // until it has succeeded
	if h == nil {
		return backends.Stats{}, fmt.Errorf(
			"%s: commit: nothing was observed since the start or the last error", Name)
	}

	if !c.Old.Equal(h.table) {
		return backends.Stats{}, fmt.Errorf("%s: commit: the change set does not begin from what "+
			"was last observed or committed", Name)
	}

	p := b.plan(h, c.New)
	if err := b.write(ctx, h, c.New, p); err != nil {
		return backends.Stats{}, fmt.Errorf("%s: commit: %w", Name, err)
	}
	b.held = h
	for _, a := range slices.SortedFunc(maps.Keys(p.waits), netip.Addr.Compare) {
		if !b.waits[a] {
			b.cfg.Logger.Warn("endpoint of this node is not in HNS yet", "backend", Name,
				"address", a)
		}
	}

	b.waits = p.waits
	stats := p.Stats()
	stats.Duration = time.Since(start)
	return stats, nil
}

// write saves the record, takes the steps, and saves again.
func (b *Backend) write(ctx context.Context, h *held, t *servicemodel.Table, p *plan) error {
	raw, err := b.cfg.Store.Load()
	switch {
	case err != nil:
		return fmt.Errorf("load the record: %w", err)
	case !bytes.Equal(raw, h.raw):
		return fmt.Errorf("the record has changed: %w", kernelerr.ErrConflict)
	}

	r := &record{Layout: layout, Table: t}
	for _, s := range p.steps {
		if s.writes {
			r.Pending = append(r.Pending, s.spec.key)
		}
	}

	if len(p.steps) > 0 {
		if err := b.save(h, r); err != nil {
			return err
		}
	}

	for _, s := range p.steps {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if err := s.take(); err != nil {
			if errors.Is(err, ErrExists) && s.writes { // another program was faster
				r.Pending = slices.DeleteFunc(r.Pending, func(k servicemodel.FrontendKey) bool {
					return k == s.spec.key
				})
				err = errors.Join(err, b.save(h, r))
			}

			return err
		}
	}

	r.Pending = nil
	if err := b.save(h, r); err != nil {
		return err
	}
	h.table, h.needs, h.extra, h.view.doubles = t, p.needs, nil, nil
	return nil
}

// save saves the record with the known load balancers.
func (b *Backend) save(h *held, r *record) error {
	r.Placed = h.placed
	raw, err := json.Marshal(r)
	if err == nil && !bytes.Equal(raw, h.raw) {
		err = b.cfg.Store.Save(raw)
	}
	if err != nil {
		return fmt.Errorf("save the record: %w", err)
	}
	h.raw = raw
	return nil
}

// take takes one step.
func (s *step) take() error {
	err := s.do()
	switch {
	case errors.Is(err, ErrNotFound), errors.Is(err, ErrExists):
		// Another program created or deleted an object since the reading.
		return fmt.Errorf("%s %s: %w: %w", s.verb, s.object, err, kernelerr.ErrConflict)
	case err != nil:
		return fmt.Errorf("%s %s: %w", s.verb, s.object, err)
	}

	return nil
}

// without turns the error of deleting an object that is already gone into nil.
func without(err error) error {
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}

// place creates the load balancer of s, or changes or replaces the load balancer with an identity.
func (b *Backend) place(h *held, s *spec, id string) error {
	lb, lacks, _ := b.build(s, h.view) // now with the endpoints that were added
	if lb == nil || len(lacks) > 0 {
		return fmt.Errorf("endpoint %v: %w", lacks, ErrNotFound)
	}
	var got *LoadBalancer
	var err error
	modify := id != "" && b.features.ModifyLoadBalancer
	if modify {
		got, err = b.hns.ModifyLoadBalancer(id, lb)
		if errors.Is(err, ErrNotImplemented) { // whatever its version says
			b.features.ModifyLoadBalancer, modify = false, false
		}
	}

	if !modify {
		if id != "" {
			if err := without(b.hns.DeleteLoadBalancer(id)); err != nil {
				return err
			}
		}

		got, err = b.hns.CreateLoadBalancer(lb)
	}

	if err != nil {
		return err
	}
	delete(h.foreign, s.key)
	h.seen[lower(got.ID)] = true
	h.placed[s.key] = placed{ID: got.ID, Sent: *lb, Got: *got}
	return nil
}

// Cleanup deletes our load balancers and endpoints, and the record.
func (b *Backend) Cleanup(ctx context.Context) (backends.Stats, error) {
	start := time.Now()
	if err := b.enter(ctx, "clean up"); err != nil {
		return backends.Stats{}, err
	}
	defer b.mu.Unlock()
	b.held = nil
	h, _, err := b.read(false) // endpoints go with their network
	if err != nil {
		return backends.Stats{}, err
	}
	p := b.plan(h, nil)
	for _, s := range p.steps {
		if err := s.take(); err != nil {
			return backends.Stats{}, fmt.Errorf("%s: clean up: %w", Name, err)
		}
	}

	if err := b.cfg.Store.Save(nil); err != nil {
		return backends.Stats{}, fmt.Errorf("%s: clean up: remove the record: %w", Name, err)
	}
	stats := p.Stats()
	stats.Duration = time.Since(start)
	return stats, nil
}
