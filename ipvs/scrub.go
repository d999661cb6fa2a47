package ipvs

import (
	"maps"
	"slices"
	"time"

	"github.com/kernlb/kernlb/internal/ipvsnl"
)

// scrubMost limits the time of one check; the first comparison is always made.
const scrubMost = 500 * time.Microsecond

// scrub gives each virtual server its turn to be compared. IPVS neither reports nor counts changes.
// So Integrity compares some virtual servers each time with everything that the kernel reports
// about them. A changed number of destinations of an IPv4 virtual server is noticed sooner, by the
// outlines.
type scrub struct {
	share float64             // the share of time for comparisons
	keys  []ipvsnl.ServiceKey // the rest of this round; some may have been removed
	at    time.Time           // the time of the last check
}

// each calls holds with the virtual servers whose turn it is: with one, and with more for a share
// of the time since the last check. It stops at a virtual server that differs, which keeps its
// turn, so that the next check finds it again.
func (s *scrub) each(servers map[ipvsnl.ServiceKey]*server,
	holds func(*server) (bool, error)) (bool, error) {
	start := time.Now()
	spare := min(time.Duration(float64(start.Sub(s.at))*s.share), scrubMost)
	s.at = start
	for range servers {
		if ok, err := holds(s.current(servers)); err != nil || !ok {
			return false, err
		}
		s.keys = s.keys[1:]
		if time.Since(start) >= spare {
			break
		}
	}

	return true, nil
}

// current returns the virtual server whose turn it is. There must be at least one virtual server.
func (s *scrub) current(servers map[ipvsnl.ServiceKey]*server) *server {
	for ; ; s.keys = s.keys[1:] {
		if len(s.keys) == 0 {
			s.keys = slices.Collect(maps.Keys(servers))
		}
		if found := servers[s.keys[0]]; found != nil {
			return found
		}
	}
}
