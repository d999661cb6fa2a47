package kernelspace

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/servicemodel"
)

// Commit makes the calls of the plan one after the other, and stops at the first failure. The
// record is saved before the first call and after the last one.
func (b *Backend) Commit(ctx context.Context, c *servicemodel.ChangeSet) (dataplane.Stats, error) {
	start := time.Now()
	if err := b.enter(ctx, "commit"); err != nil {
		return dataplane.Stats{}, err
	}
	defer b.mu.Unlock()
	h := b.held
	b.held = nil // until it has succeeded
	if h == nil {
		return dataplane.Stats{}, fmt.Errorf(
			"%s: commit: nothing was observed since the start or the last error", Name)
	}
	if !c.Old.Equal(h.table) {
		return dataplane.Stats{}, fmt.Errorf("%s: commit: the change set does not begin from what "+
			"was last observed or committed", Name)
	}
	p := b.plan(h, c.New)
	_, stats := b.describe(h, p)
	if err := b.write(ctx, h, c, p); err != nil {
		return dataplane.Stats{}, fmt.Errorf("%s: commit: %w", Name, err)
	}
	b.held = h
	for _, a := range p.waits {
		b.log.Warn("endpoint of this node is not in HNS yet", "backend", Name, "address", a)
	}
	stats.Duration = time.Since(start)
	return stats, nil
}

// write saves the record, makes the calls, and saves again.
func (b *Backend) write(ctx context.Context, h *held, c *servicemodel.ChangeSet, p *plan) error {
	raw, err := b.cfg.Store.Load()
	switch {
	case err != nil:
		return fmt.Errorf("load the record: %w", err)
	case !bytes.Equal(raw, h.raw):
		return fmt.Errorf("the record has changed: %w", dataplane.ErrConflict)
	}
	r := &record{Layout: layout, Table: contents(c.New), Health: healthPorts(c.New)}
	steps := p.steps()
	for _, s := range steps {
		if s.spec != nil {
			r.Pending = append(r.Pending, s.key)
		}
	}
	if len(steps) > 0 {
		if err := b.save(h, r); err != nil {
			return err
		}
	}
	for i := range steps {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if err := b.do(h, &steps[i]); err != nil {
			if errors.Is(err, ErrExists) { // another program took the place meanwhile
				r.Pending = slices.DeleteFunc(r.Pending, func(k servicemodel.FrontendKey) bool {
					return k == steps[i].key
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
	h.table, h.needs, h.extra, h.view.doubles = c.New, p.needs, nil, nil
	return nil
}

// save saves the record with the load balancers that are known now.
func (b *Backend) save(h *held, r *record) error {
	r.Placed = make(map[string]placed, len(h.placed))
	for k, p := range h.placed {
		r.Placed[k.String()] = p
	}
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

// do takes one step. It changes h, which is discarded if a step fails.
func (b *Backend) do(h *held, s *step) error {
	object := s.key.String()
	if s.addr.IsValid() {
		object = s.addr.String()
	} else if s.key.Port == 0 {
		object = s.id
	}
	err := b.call(h, s)
	switch {
	case errors.Is(err, ErrNotFound), errors.Is(err, ErrExists):
		// Another program made or deleted something since the reading.
		return fmt.Errorf("%s %s: %w: %w", s.verb, object, err, dataplane.ErrConflict)
	case err != nil:
		return fmt.Errorf("%s %s: %w", s.verb, object, err)
	}
	return nil
}

func (b *Backend) call(h *held, s *step) error {
	switch s.verb {
	case "add endpoint":
		e, err := b.hns.CreateEndpoint(b.host.newEndpoint(h.view, s.addr, b.name(s.addr), s.vip))
		if err != nil {
			return err
		}
		h.view.add(e, b.prefix())
		return nil
	case "delete endpoint":
		delete(h.view.known, lower(s.id))
		if e := h.view.byAddr[s.addr]; e != nil && e.ID == s.id {
			delete(h.view.byAddr, s.addr)
		}
		return without(b.hns.DeleteEndpoint(s.id))
	case "delete load balancer":
		if h.placed[s.key].ID == s.id {
			delete(h.placed, s.key)
		}
		return without(b.hns.DeleteLoadBalancer(s.id))
	}
	return b.place(h, s)
}

// without turns the error of deleting an object that is already gone into nil.
func without(err error) error {
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}

// place makes, changes or replaces a load balancer.
func (b *Backend) place(h *held, s *step) error {
	lb, lacks, _ := b.host.build(s.spec, h.view, b.gateway(h.view))
	if lb == nil || len(lacks) > 0 {
		return fmt.Errorf("endpoint %v: %w", lacks, ErrNotFound)
	}
	var got *LoadBalancer
	var err error
	if strings.HasPrefix(s.verb, "change") {
		got, err = b.hns.ModifyLoadBalancer(s.id, lb)
		if errors.Is(err, ErrNotImplemented) { // whatever its version says
			b.features.ModifyLoadBalancer = false
			s.verb = "replace load balancer"
		}
	}
	if strings.HasPrefix(s.verb, "replace") {
		if err := without(b.hns.DeleteLoadBalancer(s.id)); err != nil {
			return err
		}
	}
	if got == nil && !strings.HasPrefix(s.verb, "change") {
		got, err = b.hns.CreateLoadBalancer(lb)
	}
	if err != nil {
		return err
	}
	delete(h.foreign, s.key)
	h.seen[lower(got.ID)] = true
	h.placed[s.key] = placed{Key: s.key, ID: got.ID, Sent: *lb, Got: *got}
	return nil
}

// Cleanup deletes our load balancers and endpoints, and the record.
func (b *Backend) Cleanup(ctx context.Context) (stats dataplane.Stats, err error) {
	start := time.Now()
	if err := b.enter(ctx, "clean up"); err != nil {
		return stats, err
	}
	defer b.mu.Unlock()
	b.held = nil
	h, _, err := b.read()
	if err != nil {
		return stats, err
	}
	steps := b.plan(h, &servicemodel.Table{}).steps()
	for i := range steps {
		if err := b.do(h, &steps[i]); err != nil {
			return stats, fmt.Errorf("%s: clean up: %w", Name, err)
		}
	}
	if err := b.cfg.Store.Save(nil); err != nil {
		return stats, fmt.Errorf("%s: clean up: remove the record: %w", Name, err)
	}
	stats.Messages, stats.Elements = len(steps), len(steps)
	stats.Duration = time.Since(start)
	return stats, nil
}
