package dataplanetest

import (
	"context"
	"testing"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/servicemodel"
)

// RunEngine runs an engine ([dataplane.Engine.Run]) with one state, until the test ends or stop is
// called. stop returns when the engine has ended.
func RunEngine(t *testing.T, e *dataplane.Engine, s servicemodel.State) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	e.Set(s)
	go func() {
		defer close(ended)
		_ = e.Run(ctx, nil) // it ends with the error of the context
	}()

	stop = func() {
		cancel()
		<-ended
	}

	t.Cleanup(stop)
	return stop
}
