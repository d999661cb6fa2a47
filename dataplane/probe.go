package dataplane

import (
	"context"
	"errors"
	"fmt"

	"github.com/kernlb/kernlb/servicemodel"
)

// Candidate is a backend that may be opened: each backend's package has a function Candidate that
// makes one of a configuration.
type Candidate struct {
	// Name is the backend's name.
	Name string
	// Probe asks the kernel whether it supports the backend, for this process, where the
	// configuration says. It changes nothing that anybody sees, but the kernel may load modules to
	// answer. Nil means yes. The error wraps one of the sentinels above where they say it.
	Probe func(ctx context.Context) error
	// Open opens the backend.
	Open func() (Backend, error)
}

// Support is what a kernel says to one candidate.
type Support struct {
	// Backend is the backend's name.
	Backend string
	// Err is why the kernel does not support it; nil if it does.
	Err error
}

// String returns "nftables: supported" or "ipvs: missing module: …".
func (s Support) String() string {
	if s.Err == nil {
		return s.Backend + ": supported"
	}
	return s.Backend + ": " + s.Err.Error()
}

// Probe asks the kernel about each candidate, in their order.
func Probe(ctx context.Context, candidates ...Candidate) []Support {
	var l []Support
	for _, c := range candidates {
		l = append(l, Support{Backend: c.Name, Err: c.Probe(ctx)})
	}
	return l
}

// Choose opens the first candidate that the kernel supports and that can express the state, for an
// engine with the configuration cfg. If none can express all of it, it is the one that refuses the
// fewest services, the first among equals, or nobody if the engine is strict. The error joins what
// speaks against each; it matches [ErrUnsupported] if some backend only lacks what the state asks
// for. If the node is not valid, or a service and the engine is strict, it is that of
// [servicemodel.Resolve], and nothing is asked.
//
// It does not look at what any backend holds. A program that goes from one backend to another
// cleans up behind itself, with [Engine.Cleanup] on the backend it leaves, after it has applied its
// state to the new one.
func Choose(
	ctx context.Context, s servicemodel.State, cfg *Config, candidates ...Candidate,
) (Backend, error) {
	d := draft{state: s, strict: cfg != nil && cfg.Strict}
	t, err := d.resolve(nil)
	if err != nil {
		return nil, err
	}
	c := servicemodel.Diff(nil, t)
	errs := []error{errors.New("no backend")}
	var best Backend
	var fewest int
	for _, candidate := range candidates {
		b, refused, err := candidate.open(ctx, d, c)
		if ctx.Err() != nil && err != nil {
			break
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if best == nil || refused < fewest {
			b, best, fewest = best, b, refused
		}
		if b != nil {
			errs = append(errs, b.Close())
		}
		if fewest == 0 {
			break
		}
	}
	switch {
	case best == nil && ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case best == nil:
		return nil, errors.Join(errs...)
	}
	return best, nil
}

// open opens the candidate if it is supported and can express the changes, which lead to the state
// of the draft, except for some services. It returns how many those are.
func (c *Candidate) open(
	ctx context.Context, d draft, changes *servicemodel.ChangeSet,
) (b Backend, refused int, err error) {
	if err := c.Probe(ctx); err != nil {
		return nil, 0, fmt.Errorf("%s: %w", c.Name, err)
	}
	if b, err = c.Open(); err != nil {
		return nil, 0, err
	}
	d.refused = nil
	if err := b.Check(changes); err != nil {
		if err := d.leaveOut(err); err != nil {
			return nil, 0, errors.Join(err, b.Close())
		}
	}
	return b, len(d.refused), nil
}
