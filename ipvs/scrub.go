package ipvs

import (
	"maps"
	"slices"
	"time"

	"github.com/kernlb/kernlb/internal/ipvsnl"
)

// scrubMost is how much of the time that may be spent can be saved up.
const scrubMost = 500 * time.Microsecond

// scrub is the turn of the virtual servers: IPVS sends no notices of changes and counts none, so
// [Backend.Integrity] compares some each time with all that the kernel says of them. How many
// destinations those of IPv4 have, outlines tell sooner.
type scrub struct {
	share  float64             // of the time that may be spent
	keys   []ipvsnl.ServiceKey // that are left of the round; some may be gone by now
	budget time.Duration       // may be below zero: what was spent too much
	at     time.Time           // when the budget was that
}

// begin adds to the budget what has passed.
func (s *scrub) begin(now time.Time) {
	if !s.at.IsZero() {
		s.budget = min(s.budget+time.Duration(float64(now.Sub(s.at))*s.share), scrubMost)
	}
	s.at = now
}

// goOn spends what has passed since begin or the last call, and reports whether something is left.
func (s *scrub) goOn(now time.Time) bool {
	s.budget -= now.Sub(s.at)
	s.at = now
	return s.budget > 0
}

// current returns the virtual server whose turn it is, nil if there is none. It stays so until done
// is called: one that differs is found again by whoever looks next.
func (s *scrub) current(servers map[ipvsnl.ServiceKey]*server) *server {
	for range 2 {
		for ; len(s.keys) > 0; s.done() {
			if found := servers[s.keys[0]]; found != nil {
				return found
			}
		}
		s.keys = slices.Collect(maps.Keys(servers))
	}
	return nil
}

// done ends the turn of a virtual server.
func (s *scrub) done() { s.keys = s.keys[1:] }
