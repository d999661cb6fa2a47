package mirror

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/internal/logkey"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/wait"
)

// Why a mirror lists the table again.
var (
	errEventsLost = errors.New("events were lost")
	errDeadFlows  = errors.New("too many flows are noted that are no more")
)

const (
	// pauseShare is the pause between two lists of the table, as a multiple of the time of the last
	// list.
	pauseShare = 10
	// deadFlows is how many ended flows a mirror may note, beside a quarter of the living ones.
	deadFlows = 10_000
)

// Run notes flows until ctx ends, which is not an error. Run it in a goroutine of its own, once at
// a time. When it returns, it frees its memory. It needs CAP_NET_ADMIN and returns
// [conntrack.ErrNoEvents] if the kernel makes no events. Cleaning works whether it runs or not.
//
// It lists the table once, and again after the kernel had more events than the queue had room for.
// It then waits at least a second, and ten times as long as the last list took. It reads events
// twenty times a second. Events of other protocols do not reach the process, see
// [conntrack.FollowOptions].
func (x *Mirror) Run(ctx context.Context) error {
	if err := x.run(ctx); err != nil && ctx.Err() == nil {
		return fmt.Errorf("mirror the conntrack table: %w", err)
	}
	return nil
}

func (x *Mirror) run(ctx context.Context) error {
	if err := x.checkEvents(ctx); err != nil {
		return err
	}
	if err := x.begin(); err != nil {
		return err
	}
	defer x.end()
	for {
		listing, err := x.keepUp(ctx)
		if !retryable(err) {
			return err
		}
		pause := max(x.times.pause, pauseShare*listing)
		x.debug(ctx, "out of step", slog.Any(logkey.Reason, err), slog.Duration(logkey.Next, pause))
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// checkEvents is CheckEvents of the table after a request, because the first request loads
// conntrack's module.
func (x *Mirror) checkEvents(ctx context.Context) error {
	if _, err := x.table.Usage(ctx); err != nil {
		return err
	}
	return x.table.CheckEvents()
}

// retryable reports whether a new list helps.
func retryable(err error) bool {
	for _, e := range []error{errEventsLost, errDeadFlows, conntrack.ErrInterrupted,
		rawnl.ErrAnswersLost} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// begin opens the source of events.
func (x *Mirror) begin() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.events != nil {
		return errors.New("it is being mirrored already")
	}
	events, err := x.follow(conntrack.FollowOptions{
		Types:     []conntrack.EventType{conntrack.FlowNew, conntrack.FlowDestroyed},
		Protocols: x.protocols, Buffer: x.buffer})
	if err != nil {
		return err
	}
	x.events = events
	return nil
}

// end closes the source of events.
func (x *Mirror) end() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.events.Close() //nolint:errcheck // there is nothing to be done about it
	x.events, x.index, x.synced, x.broken = nil, nil, false, nil
}

// keepUp lists the table and works on events until the index is useless. It returns how long the
// list took.
func (x *Mirror) keepUp(ctx context.Context) (listing time.Duration, err error) {
	index, err := x.reset(ctx)
	if err != nil {
		return 0, err
	}
	defer x.unsync()
	ctx, cancel := context.WithCancel(ctx)
	start, list := time.Now(), make(chan error, 1)
	go func() { list <- x.list(ctx, index) }()
	listed := list
	defer func() {
		cancel()
		if listed != nil {
			<-listed
		}
	}()
	read, check := time.NewTicker(x.times.read), time.NewTicker(x.times.check)
	defer read.Stop()
	defer check.Stop()
	for {
		select {
		case <-ctx.Done():
			return listing, nil
		case err = <-listed:
			listing, listed = time.Since(start), nil
			if err == nil {
				err = x.sync()
			}
			x.debug(ctx, "listed the table", slog.Duration(logkey.Duration, listing),
				slog.Any(logkey.Error, err))
		case <-read.C:
			err = x.read()
		case <-check.C:
			err = x.check(ctx)
		}
		if err != nil {
			return listing, err
		}
	}
}

// reset empties the queue and makes an index for the events from now on. After a loss, the kernel
// fills the queue again only when it was empty (netlink_overrun and netlink_rcv_wake in
// net/netlink/af_netlink.c).
//
// It first waits a grace period. With nf_conntrack_events at 2, flows that are older than the
// listener make no events. A flow whose first packet is under way would be neither in the list nor
// in an event.
func (x *Mirror) reset(ctx context.Context) (*index, error) {
	if err := wait.GracePeriod(ctx); err != nil {
		return nil, err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.index, x.broken = newIndex(), nil
	for ctx.Err() == nil {
		empty := true
		err := x.events.Drain(func(*conntrack.Event) error { empty = false; return nil })
		if err != nil {
			return nil, err
		}
		if empty {
			return x.index, nil
		}
	}
	return nil, ctx.Err()
}

// list notes the flows in the table. It works on events meanwhile, so every new flow is noted at
// least once, by the list or by its event. If a flow ends between the kernel's listing and its
// noting here, it is noted for too long, which does no harm.
func (x *Mirror) list(ctx context.Context, index *index) error {
	note := func(f *conntrack.Flow) error {
		x.mu.Lock()
		defer x.mu.Unlock()
		index.add(f)
		return x.broken
	}
	for _, p := range x.protocols {
		for f, err := range x.table.Flows(ctx, conntrack.Filter{Protocol: p}) {
			if err == nil {
				err = note(&f)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// sync marks the index as complete, so that Find uses it.
func (x *Mirror) sync() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.broken != nil {
		return x.broken
	}
	if err := x.drain(); err != nil {
		return err
	}
	x.synced = true
	x.stats.Lists++
	return nil
}

func (x *Mirror) unsync() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.synced = false
}

// read brings the index up to date with the events that have come.
func (x *Mirror) read() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.broken != nil {
		return x.broken
	}
	return x.drain()
}

// check finds out whether there are still events, and whether most noted flows still exist.
func (x *Mirror) check(ctx context.Context) error {
	if err := x.table.CheckEvents(); err != nil {
		return err
	}
	u, err := x.table.Usage(ctx)
	if err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.synced && x.index.len() > int(u.Count)+int(u.Count)/4+deadFlows {
		return errDeadFlows
	}
	return nil
}
