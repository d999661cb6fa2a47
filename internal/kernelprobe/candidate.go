package kernelprobe

import (
	"context"

	"github.com/kernlb/kernlb/dataplane"
)

// Candidate makes the candidate of a backend.
func Candidate[B dataplane.Backend](name string, probe func(context.Context) error,
	open func() (B, error)) dataplane.Candidate {
	return dataplane.Candidate{Name: name, Probe: probe, Open: func() (dataplane.Backend, error) {
		b, err := open()
		if err != nil {
			return nil, err // not b: a nil pointer is not a nil interface
		}
		return b, nil
	}}
}
