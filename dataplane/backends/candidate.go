package backends

import "context"

// Candidate is a backend that may be opened. Each backend's package has a function Candidate that
// returns it for a configuration.
type Candidate struct {
	// Name is the backend's name.
	Name string
	// Probe asks the kernel whether this process can use the backend, in the network namespace of
	// the configuration. It changes nothing visible, but the kernel may load modules to answer. It
	// returns nil if the kernel supports the backend, and otherwise an error that wraps a sentinel
	// of this package or of kernelerr, if one fits. A candidate without Probe is opened without a
	// probe.
	Probe func(ctx context.Context) error
	// Open opens the backend. A candidate without Open fails.
	Open func() (Backend, error)
}
