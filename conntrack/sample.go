package conntrack

import (
	"math"
	"time"

	"golang.org/x/net/bpf"
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
// protocols and of flows with other status bits. It keeps the fraction keep / (2³² - 1) of the
// remaining events.
func kernelFilter(f Filter, keep uint32) []bpf.Instruction {
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

	if keep < wholeEvent {
		out = append(out,
			bpf.LoadExtension{Num: bpf.ExtRand},
			bpf.JumpIf{Cond: bpf.JumpLessOrEqual, Val: keep, SkipTrue: 1},
			drop)
	}

	return append(out, bpf.RetConstant{Val: wholeEvent})
}

// sampler finds the share of events that the kernel should keep.
type sampler struct {
	most  int // events a second; 0 means all
	keep  uint32
	since time.Time
	count int
}

// event counts an event, or a loss of events. It reports whether keep changed. It checks the rate
// once a second, and immediately after a loss or after twice the target number of events.
func (s *sampler) event(now time.Time, lost bool) (changed bool) {
	if s.most == 0 {
		return false
	}
	if s.since.IsZero() {
		s.since = now
	}
	if !lost {
		s.count++
	}
	took := now.Sub(s.since)
	if !lost && took < time.Second && s.count < 2*s.most {
		return false
	}
	share := float64(s.keep) / wholeEvent
	rate := float64(s.count) / max(took.Seconds(), 1e-3)
	if next := share * float64(s.most) / rate; lost {
		share /= 4
	} else {
		share = min(next, 1)
	}

	old := s.keep
	s.keep = uint32(max(share*wholeEvent, wholeEvent/1e6))
	s.since, s.count = now, 0
	return s.keep != old
}
