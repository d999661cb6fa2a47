// Package wait has the three waits of the code: for a time or the end of a context, for packets
// that the kernel is working on, and for a share of the processor's time.
package wait

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// For waits for d. If the context ends earlier, For returns at once, with the error of [Ended].
func For(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return Ended(ctx)
	case <-t.C:
		return nil
	}
}

// Ended returns nil while the context lasts, and then the context's error and its cause. The error
// alone would hide the cause. The cause alone need not be the [context.Canceled] that callers ask
// for: since Go 1.26, the cause of [os/signal.NotifyContext] is not.
func Ended(ctx context.Context) error {
	err := ctx.Err()
	if err == nil {
		return nil
	}
	cause := context.Cause(ctx)
	if cause == nil || errors.Is(cause, err) {
		return err
	}
	return fmt.Errorf("%w: %w", err, cause)
}

// Packets lets later work end instead of waiting for packets. Then the caller waits, and other work
// continues during the wait. The context of the later work has the Packets. Nil, as in any other
// context, means that the work itself waits.
type Packets struct {
	// Done is a time. The kernel is done with every packet that it was working on at that time.
	Done time.Time
	// Awaited says that the work waits for packets of a later time.
	Awaited bool
	// Piece allows work that is done in pieces its next piece.
	Piece bool
	// More says that the work has a further piece, which waits for nothing. The work ended to let
	// other work have its turn, and its caller does it again after a Pause.
	More bool
}

// Pause is the time between two pieces of work.
const Pause = time.Millisecond

// Grace is roughly the time of a grace period. Work that waits for one is due after that time.
const Grace = 20 * time.Millisecond

type packetsKey struct{}

// In returns a context that has the packets.
func (p *Packets) In(ctx context.Context) context.Context {
	if p == nil {
		return ctx
	}
	return context.WithValue(ctx, packetsKey{}, p)
}

// PacketsOf returns the packets that a context has, or nil.
func PacketsOf(ctx context.Context) *Packets {
	p, _ := ctx.Value(packetsKey{}).(*Packets)
	return p
}

// Over reports whether work that concerns packets of the time at may continue. If not, the work
// ends, and its caller does it again after a grace period.
func (p *Packets) Over(at time.Time) bool {
	if p == nil || !p.Done.Before(at) {
		return true
	}
	p.Awaited = true
	return false
}

// Take reports whether the work may do its next piece now. If not, the work ends.
func (p *Packets) Take() bool {
	if p == nil {
		return true
	}
	may := p.Piece
	p.Piece, p.More = false, p.More || !may
	return may
}

// Wait returns a time: the kernel is done with every packet that it was working on at that time. If
// p is nil, Wait waits for a [GracePeriod], and the time is the time of the call.
func (p *Packets) Wait(ctx context.Context) (done time.Time, err error) {
	if p != nil {
		return p.Done, Ended(ctx)
	}
	done = time.Now()
	return done, GracePeriod(ctx)
}
