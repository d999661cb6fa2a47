package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/kernlb/kernlb/dataplane/silence"
	"github.com/kernlb/kernlb/servicemodel"
)

// silent asks the running program for the endpoints that it took out because they do not answer
// clients. It returns those that the kernel's table does not have either, so the answer of a
// program with another instance does no harm. If no program answers, none are known.
func (p *program) silent(ctx context.Context, held *servicemodel.Table) []silence.Change {
	return slices.DeleteFunc(p.allSilent(ctx),
		func(c silence.Change) bool { return !missing(held, c) })
}

// allSilent asks the running program for the endpoints that it took out.
func (p *program) allSilent(ctx context.Context) []silence.Change {
	ctx, stop := context.WithTimeout(ctx, time.Second)
	defer stop()
	_, h, err := p.askHealth(ctx, "/livez")
	if err != nil {
		if p.opts.status != defaultPage {
			p.warn("note: silent endpoints are unknown: %v", err)
		}
		return nil
	}

	return slices.DeleteFunc(h.Silent, func(c silence.Change) bool { return !c.Out })
}

// missing reports whether a table has endpoints of a service port, but not the endpoint that is
// out.
func missing(t *servicemodel.Table, c silence.Change) bool {
	known := false
	for _, local := range []bool{false, true} {
		pool := t.Pool(servicemodel.PoolID{Service: c.Service,
			Family: servicemodel.FamilyOf(c.Endpoint.Addr()), Local: local})
		if pool == nil {
			continue
		}
		known = true
		if slices.ContainsFunc(pool.Slots, func(s servicemodel.Slot) bool {
			return s.Endpoint == c.Endpoint
		}) {
			return false
		}
	}

	return known
}

// noteBack says which endpoints that the running program took out an apply of the files would bring
// back: the files know nothing of ejections.
func (p *program) noteBack(ctx context.Context, changes *servicemodel.ChangeSet) {
	for _, c := range p.silent(ctx, changes.Old) {
		if !missing(changes.New, c) {
			p.warn("note: %s; the plan brings it back, the running program does not", silentText(c))
		}
	}
}

// silentText returns a line about an endpoint that is out.
func silentText(c silence.Change) string {
	return fmt.Sprintf("silent: %v of %v %s", c.Endpoint, c.Service, c.Status(time.Now()))
}

// printSilent prints the endpoints that are out, in the text of show.
func (p *program) printSilent(out []silence.Change) (err error) {
	for _, c := range out {
		if p.opts.output != "json" && err == nil {
			_, err = fmt.Fprintln(p.stdout, silentText(c))
		}
	}

	return err
}
