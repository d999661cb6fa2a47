package dataplane_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/memory"
)

// inTurns is a backend in memory whose writers take turns.
type inTurns struct {
	*memory.Backend
	turn chan struct{}
}

func (b *inTurns) Lock(ctx context.Context) (func(), error) {
	select {
	case b.turn <- struct{}{}:
		return func() { <-b.turn }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Two programs that apply states of their own without pause both succeed each time, and the kernel
// holds one of the states whenever it is looked at.
func TestTwoWritersOfOneInstance(t *testing.T) {
	t.Parallel()
	k, turn := &memory.Kernel{}, make(chan struct{}, 1)
	var writers sync.WaitGroup
	errs := make([]error, 2)
	for w := range errs {
		writers.Go(func() {
			e := dataplane.New(&inTurns{memory.New(k), turn}, nil)
			for i := range 100 {
				_, err := e.Apply(t.Context(), services(1+w).WithEndpoints(serviceName(1),
					endpoints(byte(100*w+i))))
				errs[w] = errors.Join(errs[w], err)
				if n := k.Table().Len(); n != 1 && n != 2 {
					t.Errorf("%d frontends", n)
				}
			}
		})
	}
	writers.Wait()
	require.NoError(t, errors.Join(errs...))
	last := []string{missing(k, services(1).WithEndpoints(serviceName(1), endpoints(99))),
		missing(k, services(2).WithEndpoints(serviceName(1), endpoints(199)))}
	require.Contains(t, last, "", "the last state of one of them, not a mixture")
}
