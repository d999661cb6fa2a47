package dataplane

import (
	"context"
	"errors"
	"fmt"

	"github.com/kernlb/kernlb/servicemodel"
)

// Why a kernel does not support a backend; find them with errors.Is in [Support.Err]. The error's text says it in words. On other
// systems than Linux it is errors.ErrUnsupported.
var (
	// ErrNoPermission says that the process may not do what the backend needs. Such errors match fs.ErrPermission, too.
	ErrNoPermission = errors.New("no permission")
	// ErrMissingModule says that the kernel lacks a module, or has it and does not load it by itself.
	ErrMissingModule = errors.New("missing module")
	// ErrKernelTooOld says that the kernel is older than what the backend needs, and lacks something of it.
	ErrKernelTooOld = errors.New("kernel too old")
)

// Candidate is a backend that may be opened: each backend's package has a function Candidate that makes one of a configuration.
type Candidate struct {
	// Name is the backend's name.
	Name string
	// Probe asks the kernel whether it supports the backend, for this process, where the configuration says. It changes nothing that anybody sees,
	// but the kernel may load modules to answer. Nil means yes. The error wraps one of the sentinels above where they say it.
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

// Choose opens the first candidate that the kernel supports and that can express the state. The error joins what speaks against
// each; it matches [ErrUnsupported] if some backend only lacks what the state asks for. A state that is not valid gives the error of
// [servicemodel.Resolve], and nothing is asked.
//
// It does not look at what any backend holds. A program that goes from one backend to another cleans up behind itself, with
// [Engine.Cleanup] on the backend it leaves, after it has applied its state to the new one.
func Choose(ctx context.Context, s servicemodel.State, candidates ...Candidate) (Backend, error) {
	t, err := servicemodel.Resolve(nil, s)
	if err != nil {
		return nil, err
	}
	c := servicemodel.Diff(nil, t)
	errs := []error{errors.New("no backend")}
	for _, candidate := range candidates {
		b, err := candidate.open(ctx, c)
		if err == nil {
			return b, nil
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// open opens the candidate if it is supported and can express the changes.
func (c *Candidate) open(ctx context.Context, changes *servicemodel.ChangeSet) (Backend, error) {
	if err := c.Probe(ctx); err != nil {
		return nil, fmt.Errorf("%s: %w", c.Name, err)
	}
	b, err := c.Open()
	if err != nil {
		return nil, err
	}
	if err := b.Check(changes); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}
