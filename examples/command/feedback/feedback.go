// Package feedback gives an engine states that follow the experience of clients: without the
// endpoints that do not answer them, and on nftables with the shares of the schedulers lc and wlc.
package feedback

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/leastconn"
	"github.com/kernlb/kernlb/dataplane/silence"
	"github.com/kernlb/kernlb/examples/command/accepted"
	"github.com/kernlb/kernlb/ipvs"
	"github.com/kernlb/kernlb/servicemodel"
)

// again is the time until a watch that failed is retried.
const again = time.Second

// Follower notices silent endpoints, and gives its states to a follower that counts connections.
type Follower struct {
	*silence.Follower
	counts *leastconn.Follower
}

// New returns a follower that gives states to an engine, and logs its changes. If all is set, it
// watches all services except services that say "stay" (servicemodel.SilentPolicy). Otherwise it
// watches only services that say "eject". The file keeps which endpoints are out, for the next
// process.
func New(e *dataplane.Engine, all bool, file string, log *slog.Logger) (*Follower, error) {
	counts, err := leastconn.NewFollower(e, &leastconn.Config{Logger: log})
	if err != nil {
		return nil, err
	}
	f := &Follower{counts: counts}
	f.Follower, err = silence.NewFollower(func(s servicemodel.State) { counts.Set(s) },
		&silence.Config{
			Table:   func() *servicemodel.Table { return e.Status().Held },
			Asked:   !all,
			IPVS:    e.Status().Backend == ipvs.Name,
			Earlier: load(file, log),
			Changed: func(c silence.Change) {
				save(file, f.Ejected(), log)
				log.Warn(c.String(), "service", c.Service, "endpoint", c.Endpoint)
			}})
	if err != nil {
		return nil, errors.Join(err, counts.Close())
	}
	return f, nil
}

// load returns the endpoints that were out when an earlier process ended.
func load(file string, log *slog.Logger) (out []silence.Change) {
	data, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(data, &out)
	}
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			log.Warn("endpoints that were silent before are not known", "error", err)
		}
		return nil
	}

	return out
}

// save keeps the endpoints that are out.
func save(file string, out []silence.Change, log *slog.Logger) {
	data, err := json.Marshal(out)
	if err == nil {
		err = accepted.Replace(file, data)
	}
	if err != nil {
		log.Warn("silent endpoints are not kept: after a restart they take connections until "+
			"they are ejected again", "error", err)
	}
}

// Close releases the follower's sockets. Run must have returned.
func (f *Follower) Close() error { return errors.Join(f.Follower.Close(), f.counts.Close()) }

// Run runs the follower until the context ends, which is not an error.
func Run(ctx context.Context, f *Follower, log *slog.Logger) error {
	var counting sync.WaitGroup
	counting.Go(func() { f.counts.Run(ctx) })
	defer counting.Wait()
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
