package conntrack

import (
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"time"

	"golang.org/x/net/bpf"

	"github.com/kernlb/kernlb/internal/rawnl"
)

// Offsets in an event (nlmsghdr, nfgenmsg, then the attributes; ctnetlink_conntrack_event in
// net/netfilter/nf_conntrack_netlink.c writes the original tuple first).
const (
	eventFamily      = 16 // nfgenmsg.nfgen_family
	eventAttrs       = 20
	eventProtocolIP4 = 52 // CTA_TUPLE_ORIG, its addresses, CTA_TUPLE_PROTO: CTA_PROTO_NUM
	eventProtocolIP6 = 76
)

// wholeEvent makes the kernel queue an event.
const wholeEvent = math.MaxUint32

// kernelFilter returns the program that the kernel runs for each event. It drops events of other
// protocols and of flows with other status bits.
func kernelFilter(f Filter) []bpf.Instruction {
	var out []bpf.Instruction
	drop := bpf.RetConstant{Val: 0}
	if f.Protocol != 0 {
		out = append(out,
			bpf.LoadAbsolute{Off: eventFamily, Size: 1},
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(familyIPv6), SkipTrue: 2},
			bpf.LoadAbsolute{Off: eventProtocolIP4, Size: 1},
			bpf.Jump{Skip: 1},
			bpf.LoadAbsolute{Off: eventProtocolIP6, Size: 1},
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(f.Protocol), SkipTrue: 1},
			drop)
	}

	if want, mask := f.status(); mask != 0 {
		out = append(out,
			bpf.LoadConstant{Dst: bpf.RegX, Val: uint32(attrStatus)},
			bpf.LoadConstant{Dst: bpf.RegA, Val: eventAttrs},
			bpf.LoadExtension{Num: bpf.ExtNetlinkAttr},
			bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: 0, SkipTrue: 1},
			drop, // the event has no status
			bpf.TAX{},
			bpf.LoadIndirect{Off: 4, Size: 4},
			bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: uint32(mask)},
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(want), SkipTrue: 1},
			drop)
	}

	return append(out, bpf.RetConstant{Val: wholeEvent})
}

// limiter receives events at a limited rate. While it has no tokens, its socket is in no multicast
// group, and the kernel, which looks at the groups first, generates no events for it.
type limiter struct {
	listener *rawnl.Listener
	groups   []uint32
	tokens   bucket
	away     bool // from the groups, until the deadline of the listener
}

// receive waits for an event within the limit.
func (l *limiter) receive(p []byte) (int, error) {
	for {
		n, err := l.listener.Receive(p)
		switch {
		case l.tokens.rate == 0:
			return n, err
		case errors.Is(err, os.ErrDeadlineExceeded):
			err = errors.Join(l.listener.SetDeadline(time.Time{}), l.listener.Join(l.groups))
			if l.away = false; err != nil {
				return 0, err
			}
		case err != nil && err != rawnl.ErrOverflow:
			return n, err
		case err == nil && l.away:
			// The event was queued before the socket left the groups.
		default:
			if pause := l.tokens.take(time.Now(), err != nil); pause > 0 && !l.away {
				end := time.Now().Add(pause)
				left := errors.Join(l.listener.Leave(l.groups), l.listener.SetDeadline(end))
				if l.away = true; left != nil {
					return 0, left
				}
			}

			return n, err
		}
	}
}

// bucket has a token for each event that may be received now.
type bucket struct {
	rate   int // new tokens a second, and the most that are kept; 0 means no limit
	tokens float64
	filled time.Time // zero before the first event
}

// pauses is the average number of pauses in a second while events are much more frequent than the
// rate.
const pauses = 20

// take removes a token for an event, or all of them if events were lost. It returns how long to
// pause, which is random, so that no client is in step with the pauses.
func (b *bucket) take(now time.Time, lost bool) (pause time.Duration) {
	rate := float64(b.rate)
	if b.filled.IsZero() {
		b.tokens = rate
	} else {
		b.tokens = min(rate, b.tokens+rate*now.Sub(b.filled).Seconds())
	}
	if b.filled = now; lost {
		b.tokens = 0
	} else {
		b.tokens--
	}
	if b.tokens >= 1 {
		return 0
	}
	seconds := (0.5 + rand.Float64()) * max(1, rate/pauses) / rate
	return time.Duration(seconds * float64(time.Second))
}
