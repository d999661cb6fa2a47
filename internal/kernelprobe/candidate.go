package kernelprobe

import (
	"context"

	"github.com/kernlb/kernlb/dataplane"
)

// Candidate makes the candidate of a backend. probe asks the kernel whether it supports the
// backend, which is closed afterwards.
func Candidate[B dataplane.Backend](name string, open func() (B, error),
	probe func(B, context.Context) error) dataplane.Candidate {
	return dataplane.Candidate{
		Name: name,
		Probe: func(ctx context.Context) error {
			b, err := open()
			if err != nil {
				return err
			}
			defer b.Close()
			return probe(b, ctx)
		},
		Open: func() (dataplane.Backend, error) {
			b, err := open()
			if err != nil {
				return nil, err // not b: a nil pointer is not a nil interface
			}
			return b, nil
		},
	}
}
