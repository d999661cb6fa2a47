package plan

import (
	"net/netip"
	"slices"
	"time"

	"github.com/kernlb/kernlb/servicemodel"
)

// Forget says which clients of a frontend must be forgotten because their endpoint may no longer be
// used: the clients of endpoints that the frontend lost and has not got back. If others is set,
// these are the clients of all endpoints, except endpoints that every client may have.
type Forget struct {
	Frontend *servicemodel.Frontend
	Lost     [2][]netip.AddrPort // by clients inside and outside
	others   bool
	// If others is set, now contains the endpoints that clients inside and outside may have. gone
	// contains the lost endpoints that they may not have. For a whole service or a range, an
	// endpoint is an address with port 0.
	now  [2]map[netip.AddrPort]bool
	gone map[netip.AddrPort]bool
	// Since is the time of the commit, or of the last deletion of an entry. Packets of that time
	// may write an entry again.
	Since time.Time
	// Read says that the last reading looks for the entries in all maps. Found says that it found
	// an entry. clean is the number of successive readings without an entry, each begun when no
	// packet could write an entry again.
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

// Note records the result of a reading that started after the kernel had processed all packets from
// before the time done. It reports whether the clients are forgotten: after one reading without an
// entry if that reading certainly saw all entries, and otherwise after two such readings in a row.
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

// ForgetAll returns a Forget for all clients of a frontend. A client keeps its endpoint if, when
// the maps are read, inside and outside clients may both use it.
func ForgetAll(fe *servicemodel.Frontend) Forget { return Forget{Frontend: fe, others: true} }
