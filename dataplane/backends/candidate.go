package backends

import "context"

// Candidate is a backend that may be opened. The Candidate function of each backend's package
// returns it for a configuration.
type Candidate struct {
	// Name is the backend's name.
	Name string
	// Probe checks whether this process can use the backend in the network namespace of the
	// configuration. It changes nothing visible, but may make the kernel load modules. It returns
	// nil if the kernel supports the backend, and otherwise an error that wraps a sentinel of this
	// package or of kernelerr, if one fits. A candidate without Probe is opened without a probe.
	Probe func(ctx context.Context) error
	// Open opens the backend. If a candidate has no Open, opening it fails.
	Open func() (Backend, error)
}
