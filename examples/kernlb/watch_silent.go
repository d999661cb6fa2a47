package main

import (
	"context"
	"errors"
	"time"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/silence"
	"github.com/kernlb/kernlb/servicemodel"
)

// ejecting puts a follower in front of the engine, which takes silent endpoints out of states. It
// returns what must run until the context ends, and the function that releases the follower.
func (w *watcher) ejecting(e *dataplane.Engine) (run func(context.Context) error,
	done func() error, err error) {
	if w.opts.backend == "ipvs" {
		return nil, nil, errors.New("-eject-silent: the backend is ipvs, which does not tell " +
			"which flows it translates; use nftables or iptables")
	}

	f, err := silence.NewFollower(func(s servicemodel.State) { e.Set(s) }, &silence.Config{
		Table: func() *servicemodel.Table { return e.Status().Held },
		Changed: func(c silence.Change) {
			w.log.Warn(c.String(), "service", c.Service, "endpoint", c.Endpoint)
		}})
	if err != nil {
		return nil, nil, err
	}
	w.give = f.Set
	return func(ctx context.Context) error {
		for {
			err := f.Run(ctx)
			if ctx.Err() != nil {
				return nil
			}
			w.log.Error("silent endpoints are not noticed", "error", err)
			select {
			case <-ctx.Done():
			case <-time.After(again):
			}
		}
	}, f.Close, nil
}
