package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/counters"
	"github.com/kernlb/kernlb/examples/command/instance"
	"github.com/kernlb/kernlb/ipvs"
	"github.com/kernlb/kernlb/servicemodel"
)

// sample is the result of one reading.
type sample struct {
	at      time.Time
	backend string
	table   *servicemodel.Table
	sums    *counters.Sums // nil: counting is off
	full    bool           // there are more counters than fit
}

// reader reads the kernel. Its methods must not be called at the same time.
type reader struct {
	backend backends.Backend
	source  instance.Source
	held    *servicemodel.Table
	// due is the time of the next reading of services, which takes much longer than reading
	// counters.
	due time.Time
}

// openReader opens the backend that the flags name, or the first one that holds services.
func openReader(ctx context.Context, o *options) (*reader, error) {
	err := fmt.Errorf("no backend has services of the instance %s", o.instance)
	for _, c := range instance.Candidates(o.instance, ipvs.Config{}) {
		if o.backend != "auto" && o.backend != c.Name {
			continue
		}
		r, why := tryReader(ctx, o, c)
		if why == nil {
			return r, nil
		}
		err = fmt.Errorf("%w; %s: %w", err, c.Name, why)
	}

	return nil, err
}

// tryReader opens a backend. One that holds nothing is an error, unless the flags name it.
func tryReader(ctx context.Context, o *options, c backends.Candidate) (*reader, error) {
	b, err := c.Open()
	if err != nil {
		return nil, err
	}
	r := &reader{backend: b}
	if err = r.observe(ctx); err == nil && r.held.Len() == 0 && o.backend == "auto" {
		err = errors.New("none")
	}
	if err == nil {
		r.source, err = instance.OpenSource(c.Name, o.instance)
	}
	if err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return r, nil
}

func (r *reader) close() {
	_ = r.source.Close() // reading loses nothing
	_ = r.backend.Close()
}

// observe reads the services.
func (r *reader) observe(ctx context.Context) error {
	start := time.Now()
	o, err := dataplane.New(r.backend, nil).Observe(ctx)
	if err != nil {
		return err
	}
	r.held, r.due = o.Table, time.Now().Add(20*time.Since(start))
	return nil
}

// read reads counters, and services if they are due.
func (r *reader) read(ctx context.Context) (*sample, error) {
	if time.Now().After(r.due) {
		if err := r.observe(ctx); err != nil {
			return nil, err
		}
	}

	s := &sample{at: time.Now(), backend: r.backend.Name(), table: r.held}
	here, err := instance.Locality()
	if err != nil {
		return nil, err
	}
	had, err := r.source.Read(ctx)
	switch {
	case errors.Is(err, counters.ErrOff):
		return s, nil
	case err != nil:
		return nil, err
	}

	s.sums, s.full = had.Of(r.held, here), had.Full
	return s, nil
}
