package plan

import (
	"net/netip"
	"slices"
	"time"

	"github.com/kernlb/kernlb/servicemodel"
)

// Forget says which clients of a frontend must be forgotten because their endpoint may no longer be
// used. These are the clients of endpoints that the frontend lost and has not got back. If others
// is set, these are the clients of all endpoints, except endpoints that every client may have.
type Forget struct {
	Frontend *servicemodel.Frontend
	Lost     [2][]netip.AddrPort // by clients inside and outside
	others   bool
	// now are the endpoints that clients inside and outside may have, if others is set. gone are
	// the lost endpoints that they may not have. For a whole service and at a range, an endpoint is
	// an address with port 0.
	now  [2]map[netip.AddrPort]bool
	gone map[netip.AddrPort]bool
	// Since is the time of the commit, or of the last deletion of an entry. Packets of that time
	// may bring an entry back.
	Since time.Time
	// Read says that the last reading looks for the entries in all maps. Found says that it found
	// some. clean is how many readings in a row found none, each begun when no packet could bring
	// one back.
	Read, Found bool
	clean       int
}

// takes reports whether a client must forget an endpoint.
func (f *Forget) takes(ep netip.AddrPort) bool {
	if f.others {
		return !f.now[0][ep] || !f.now[1][ep]
	}
	return f.gone[ep]
}

// Note notes the result of a reading, which began when the kernel was done with the packets of the
// time done. It reports whether the clients are forgotten: after one reading that found none if it
// certainly saw all entries, and otherwise after two in a row.
func (f *Forget) Note(done, now time.Time, sure bool) bool {
	switch {
	case f.Found:
		f.Since, f.clean = now, 0
	case !done.Before(f.Since):
		f.clean++
	}

	return f.clean == 2 || f.clean == 1 && sure
}

func (f Forget) String() string {
	s, lost := f.Frontend.Key.String(), slices.Concat(f.Lost[0], f.Lost[1])
	if len(lost) > 0 {
		s += " given"
	}
	slices.SortFunc(lost, netip.AddrPort.Compare)
	for _, ep := range slices.Compact(lost) {
		s += " " + ep.String()
	}
	return s
}

// ForgetAll forgets all clients of a frontend, except clients of endpoints that every client may
// have by now.
func ForgetAll(fe *servicemodel.Frontend) Forget { return Forget{Frontend: fe, others: true} }
