// Package silent takes endpoints that do not answer clients out of the states of an engine.
package silent

import (
	"context"
	"log/slog"
	"time"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/silence"
	"github.com/kernlb/kernlb/ipvs"
	"github.com/kernlb/kernlb/servicemodel"
)

// again is the time until a watch that failed is retried.
const again = time.Second

// New returns a follower that gives states to an engine, and logs what it changes. If all is set,
// services are watched unless they say "stay" (servicemodel.SilentPolicy), and otherwise only those
// that say "eject".
func New(e *dataplane.Engine, all bool, log *slog.Logger) (*silence.Follower, error) {
	return silence.NewFollower(func(s servicemodel.State) { e.Set(s) }, &silence.Config{
		Table: func() *servicemodel.Table { return e.Status().Held },
		Asked: !all,
		IPVS:  e.Status().Backend == ipvs.Name,
		Changed: func(c silence.Change) {
			log.Warn(c.String(), "service", c.Service, "endpoint", c.Endpoint)
		}})
}

// Run runs the follower until the context ends, which is not an error.
func Run(ctx context.Context, f *silence.Follower, log *slog.Logger) error {
	for {
		err := f.Run(ctx)
		if ctx.Err() != nil {
			return nil
		}
		log.Error("silent endpoints are not noticed", "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(again):
		}
	}
}
