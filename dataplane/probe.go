package dataplane

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/internal/wait"
	"github.com/kernlb/kernlb/servicemodel"
)

// Support says whether a kernel supports one candidate.
type Support struct {
	// Backend is the backend's name.
	Backend string
	// Err says why the kernel does not support the backend. In results of [Choose] it may also list
	// the problems of the state with this backend ([Problems]). Nil means that the backend is
	// supported.
	Err error
}

// String returns "nftables: supported" or "ipvs: missing module: …".
func (s Support) String() string {
	if s.Err == nil {
		return s.Backend + ": supported"
	}
	return s.Backend + ": " + s.Err.Error()
}

// Probe checks whether the kernel supports each candidate, in order.
func Probe(ctx context.Context, candidates ...backends.Candidate) []Support {
	var l []Support
	for _, c := range candidates {
		l = append(l, Support{Backend: c.Name, Err: probe(ctx, c)})
	}
	return l
}

// Choice is the outcome of [Choose].
type Choice struct {
	// Backend is the chosen backend, already open. It is nil if Choose returned an error.
	Backend backends.Backend
	// Others says, in order, why each of the other probed candidates was not chosen.
	Others []Support
}

// Choose opens the first candidate that the kernel supports and that can express the state, for an
// engine with the configuration cfg. If no candidate can express the whole state, Choose opens the
// first candidate with the fewest refused services; for a strict engine, it opens none.
//
// The error joins the reasons against each candidate. It matches [backends.ErrUnsupported] if the
// kernel supports a backend that cannot express the state. If the node is invalid, or if the engine
// is strict and a service is invalid, Choose probes no candidate and returns the error of
// [servicemodel.Resolve].
//
// Choose ignores what backends have in the kernel. A program that changes its backend must clean up
// the old one: after it has applied its state to the new backend, it calls [Engine.Cleanup] on an
// engine of the old backend.
func Choose(ctx context.Context, s servicemodel.State, cfg *Config,
	candidates ...backends.Candidate) (c Choice, err error) {
	d := reducedState{state: s, cfg: cmp.Or(cfg, &Config{})}
	if err := d.resolve(nil); err != nil {
		return c, err
	}
	all := servicemodel.Diff(nil, d.table)
	errs := []error{errors.New("no backend")}
	var best, fewest int // the chosen candidate's index in Others, and its number of refusals
	for _, candidate := range candidates {
		var o backends.Backend
		var refused []Refusal
		err := probe(ctx, candidate)
		text := candidate.Name + ": "
		if err == nil {
			o, refused, err = open(candidate, d, all)
			text = "" // the error names the backend already
		}

		if ctx.Err() != nil && err != nil {
			break
		}
		c.Others = append(c.Others, Support{candidate.Name, err})
		if err != nil {
			errs = append(errs, fmt.Errorf("%s%w", text, err))
			continue
		}

		last := &c.Others[len(c.Others)-1]
		for _, r := range refused {
			last.Err = errors.Join(last.Err, r.Err)
		}
		if c.Backend == nil || len(refused) < fewest {
			c.Backend, o, best, fewest = o, c.Backend, len(c.Others)-1, len(refused)
		}
		if o != nil {
			errs = append(errs, o.Close())
		}
		if fewest == 0 {
			break
		}
	}

	if c.Backend == nil {
		return c, cmp.Or(wait.Ended(ctx), errors.Join(errs...))
	}
	c.Others = slices.Delete(c.Others, best, best+1)
	return c, nil
}

// probe calls a candidate's Probe, if it is set.
func probe(ctx context.Context, c backends.Candidate) error {
	if c.Probe == nil {
		return nil
	}
	return c.Probe(ctx)
}

// open opens a candidate if it can express the changes, whose new table is that of d. It returns
// the services that the candidate cannot express.
func open(c backends.Candidate, d reducedState, changes *servicemodel.ChangeSet) (
	b backends.Backend, refused []Refusal, err error) {
	if c.Open == nil {
		return nil, nil, fmt.Errorf("%s: the candidate has no Open", c.Name)
	}
	if b, err = c.Open(); err != nil {
		return nil, nil, err
	}
	d.refused = nil
	if err := b.Check(changes); err != nil {
		if err := d.leaveOut(err); err != nil {
			return nil, nil, errors.Join(err, b.Close())
		}
	}

	return b, d.refused, nil
}
