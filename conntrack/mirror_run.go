package conntrack

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/kernlb/kernlb/internal/nfnl"
	"github.com/kernlb/kernlb/internal/rcu"
)

// errDeadFlows says that much of what is noted is no more.
var errDeadFlows = errors.New("too many flows are noted that are no more")

// Run notes flows until ctx ends, which is not an error. Run it in a goroutine of its own, once at
// a time; what it holds, it gives back when it returns. It needs CAP_NET_ADMIN and returns
// [ErrNoEvents] where there are none. Whether it runs or not, Clean works.
//
// It lists the table once, and again after the kernel had more events than the queue had room for:
// not at once, but at the earliest after a second, and after ten times as long as the last list
// took. It looks for events twenty times a second. Events of other protocols do not reach the
// process: the kernel drops them at the socket (SO_ATTACH_FILTER), after having made them.
func (x *Mirror) Run(ctx context.Context) error {
	if err := x.run(ctx); err != nil && ctx.Err() == nil {
		return fmt.Errorf("mirror the conntrack table: %w", explain(err))
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
		listing, err := x.follow(ctx)
		if !retryable(err) {
			return err
		}
		pause := max(x.times.pause, pauseShare*listing)
		x.debug(ctx, "out of step", slog.Any("reason", err), slog.Duration("list again in", pause))
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// checkEvents is checkEvents of the table, where nobody may have asked for conntrack before: a
// request loads its module.
func (x *Mirror) checkEvents(ctx context.Context) error {
	if _, err := x.table.usage(ctx); err != nil {
		return err
	}
	return x.table.checkEvents()
}

// retryable reports whether a new list helps.
func retryable(err error) bool {
	for _, e := range []error{errEventsLost, errDeadFlows, nfnl.ErrDumpInterrupted,
		nfnl.ErrAnswersLost} {
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
	events, err := x.open(eventOptions{types: []EventType{FlowNew, FlowDestroyed},
		protocols: x.protocols, buffer: x.buffer})
	if err != nil {
		return err
	}
	x.events = events
	return nil
}

// end closes it.
func (x *Mirror) end() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.events.close() //nolint:errcheck // there is nothing to be done about it
	x.events, x.index, x.synced, x.broken = nil, nil, false, nil
}

// follow lists the table and works in events until that makes no sense any more. It returns how
// long it took to list the table.
func (x *Mirror) follow(ctx context.Context) (listing time.Duration, err error) {
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
			x.debug(ctx, "listed the table", slog.Duration("took", listing), slog.Any("error", err))
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

// reset empties the queue and makes an index for what happens from now on. Only when the queue was
// empty does the kernel fill it again after a loss (netlink_overrun and netlink_rcv_wake in
// net/netlink/af_netlink.c).
//
// It begins with a wait: with nf_conntrack_events at 2, flows make no events that were made before
// there was a listener. Those whose first packet is under way would be neither in the list nor in
// an event.
func (x *Mirror) reset(ctx context.Context) (*flowIndex, error) {
	if err := rcu.Wait(ctx); err != nil {
		return nil, err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.index, x.broken = newFlowIndex(), nil
	for ctx.Err() == nil {
		switch _, err := x.events.receive(x.buf[:]); err {
		case errNoEvent:
			return x.index, nil
		case nil, errEventsLost:
		default:
			return nil, err
		}
	}
	return nil, ctx.Err()
}

// list notes the flows that are in the table. Meanwhile events are worked in: what is made is noted
// at least once, by the list or by its event. A flow that ends between the kernel's listing it and
// its being noted here is noted for too long, which does no harm.
func (x *Mirror) list(ctx context.Context, index *flowIndex) error {
	for _, p := range x.protocols {
		requests, err := Filter{Protocol: p}.dumps()
		if err != nil {
			return err
		}
		err = x.table.scan(ctx, requests, x.wants, func(f *Flow) error {
			x.mu.Lock()
			defer x.mu.Unlock()
			index.add(f)
			return x.broken
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// sync makes the index count.
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

// read works in what has come.
func (x *Mirror) read() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.broken != nil {
		return x.broken
	}
	return x.drain()
}

// check finds out whether there are still events, and whether the index is mostly about what is
// there.
func (x *Mirror) check(ctx context.Context) error {
	if err := x.table.checkEvents(); err != nil {
		return err
	}
	u, err := x.table.usage(ctx)
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
