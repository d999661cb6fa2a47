package plan

import (
	"net/netip"
	"slices"
	"time"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/nftables/internal/form"
	"github.com/kernlb/kernlb/servicemodel"
)

// Sweep is the work left to Settle by all commits since the last sweep ended: the clients to
// forget.
type Sweep struct {
	Table *servicemodel.Table // the state of the kernel
	Of    [len(nft.Families)]familySweep
	// Reading is the current reading of the maps, or nil.
	Reading *MapsReading
	// aimed is the table that the forgets were last compared with.
	aimed *servicemodel.Table
	// Tries is the number of readings of the maps without progress.
	Tries int
}

// MapsReading is one reading of all maps of remembered clients, map by map.
type MapsReading struct {
	Done time.Time // the kernel had processed the packets of this time when the reading began
	// Groups are the groups of maps of each family when the reading began. Left are the maps that
	// are not read yet.
	Groups [len(nft.Families)][]string
	Left   []ClientsMap
}

// ClientsMap is a map of remembered clients.
type ClientsMap struct {
	Family, Number int
	Group          string
}

// AllOthers stands for all frontends without their own key in a sweep. It is the key of no
// frontend.
var AllOthers servicemodel.FrontendKey

// familySweep is the part of a sweep in the table of one family.
type familySweep struct {
	// ByKey says which clients of each frontend to forget, commit by commit. The key AllOthers
	// means all clients of all other frontends.
	ByKey map[servicemodel.FrontendKey][]*Forget
	// Learnt is the number of packets that were learnt before the last reading. Sure says that the
	// reading saw all entries.
	Learnt uint64
	Sure   bool
}

func NewSweep(t *servicemodel.Table) *Sweep {
	s := &Sweep{Table: t}
	for i := range s.Of {
		s.Of[i].ByKey = map[servicemodel.FrontendKey][]*Forget{}
	}
	return s
}

// SweepAll returns a sweep for unknown changes. It keeps only clients whose endpoint every client
// may have.
func SweepAll(t *servicemodel.Table) *Sweep {
	s, now := NewSweep(t), time.Now()
	for fe := range t.Frontends() {
		if fe.Affinity > 0 {
			s.add(ForgetAll(fe), now)
		}
	}

	for i := range s.Of {
		s.Of[i].ByKey[AllOthers] = []*Forget{{others: true, Since: now}}
	}
	return s
}

// After returns the sweep after a plan that was committed now. It includes the work that was left
// from before.
func (s *Sweep) After(p *Plan, now time.Time) *Sweep {
	switch {
	case s == nil && p.Have.Unswept, p.spares(): // nothing tells what the clients were given
		return SweepAll(p.Changes.New)
	case !p.Have.Unswept:
		s = NewSweep(nil)
	}

	s.Table = p.Changes.New
	for _, f := range p.Forget {
		s.add(f, now)
	}
	for i, t := range p.Tables {
		if t.Program != nil { // the counters of new rules begin at zero
			s.Of[i].Sure = false
		}
	}

	return s
}

// add adds the clients that a commit forgets.
func (s *Sweep) add(f Forget, now time.Time) {
	key := form.ClientsOf(f.Frontend)
	fs := &s.Of[nft.FamilyIndex(key.Addr)]
	f.Since = now
	fs.ByKey[key], s.Tries = append(fs.ByKey[key], &f), 0
}

// Pending calls fn with each Forget that is left in a family.
func (s *familySweep) Pending(fn func(*Forget)) {
	for _, list := range s.ByKey {
		for _, f := range list {
			fn(f)
		}
	}
}

// Drop removes each Forget of a family for which done returns true.
func (s *Sweep) Drop(i int, done func(*Forget) bool) {
	fs := &s.Of[i]
	for key, list := range fs.ByKey {
		left := slices.DeleteFunc(list, done)
		if len(left) < len(list) {
			s.Tries = 0
		}
		fs.ByKey[key] = left
		if len(left) == 0 {
			delete(fs.ByKey, key)
		}
	}
}

// Oldest returns the time of the packets that the next reading must wait for. It returns false if
// nothing is left.
func (s *Sweep) Oldest() (at time.Time, left bool) {
	for i := range s.Of {
		s.Of[i].Pending(func(f *Forget) {
			if !left || f.Since.Before(at) {
				at, left = f.Since, true
			}
		})
	}

	return at, left
}

// Aim compares the pending forgets with the table, unless it already did.
func (s *Sweep) Aim() {
	if s.aimed == s.Table {
		return
	}
	s.aimed = s.Table
	for i := range s.Of {
		for _, list := range s.Of[i].ByKey {
			aim(list, s.Table)
		}
	}
}

// aim determines the endpoints that the clients of a frontend, or of a whole service, may have with
// the table t.
func aim(list []*Forget, t *servicemodel.Table) {
	first, all, about := list[0].Frontend, false, map[netip.AddrPort]bool{}
	byAddress := first != nil && (first.AffinityService || first.Key.EndPort != 0)
	given := func(ep netip.AddrPort) netip.AddrPort {
		if byAddress {
			return netip.AddrPortFrom(ep.Addr(), 0)
		}
		return ep
	}

	for _, f := range list {
		all = all || f.others
		for _, ep := range slices.Concat(f.Lost[0], f.Lost[1]) {
			about[given(ep)] = true
		}
	}

	now := [2]map[netip.AddrPort]bool{{}, {}}
	for i, pools := range poolsOfClients(t, first) {
		for _, p := range pools {
			for _, s := range p.Slots {
				if ep := given(s.Endpoint); all || about[ep] {
					now[i][ep] = true
				}
			}
		}
	}

	for _, f := range list {
		f.now, f.gone = now, map[netip.AddrPort]bool{}
		for i, lost := range f.Lost {
			for _, ep := range lost {
				f.gone[given(ep)] = f.gone[given(ep)] || !now[i][given(ep)]
			}
		}
	}
}

// poolsOfClients returns the pools from which the clients of a frontend, or of its whole service,
// get endpoints: pools for clients inside, and pools for clients outside.
func poolsOfClients(t *servicemodel.Table, of *servicemodel.Frontend) (l [2][]*servicemodel.Pool) {
	if of == nil {
		return l
	}
	frontends := []*servicemodel.Frontend{t.Frontend(of.Key)}
	if of.AffinityService {
		frontends = t.FrontendsOfService(of.Service.Name)
	}
	for _, fe := range frontends {
		if fe == nil || fe.Affinity == 0 || form.ClientsOf(fe) != form.ClientsOf(of) {
			continue
		}
		internal, external := usable(t, fe)
		for i, p := range []*servicemodel.Pool{internal, external} {
			if p != nil && !slices.Contains(l[i], p) {
				l[i] = append(l[i], p)
			}
		}
	}

	if of.AffinityService { // a client has one endpoint, even if the policies of ports differ
		l[0] = slices.Concat(l[0], l[1])
		l[1] = l[0]
	}

	return l
}

// Takes reports whether an entry of an affinity map must be deleted, and records that it was found.
func (s *Sweep) Takes(f *nft.Family, group string, e nft.Elem) (takes bool) {
	key, ep, ok := form.ClientEntry(f, group, e)
	if !ok {
		return false
	}
	fs := &s.Of[nft.FamilyIndex(f.Any)]
	list, fe := fs.ByKey[key], s.Table.Frontend(key)
	if list == nil && fe == nil && group != form.GroupServices { // it is of a node port
		key.Addr = f.Any
		list, fe = fs.ByKey[key], s.Table.Frontend(key)
	}

	if list == nil && (fe == nil || fe.Affinity == 0) {
		list = fs.ByKey[AllOthers]
	}
	for _, f := range list {
		if f.Read && f.takes(ep) {
			takes, f.Found = true, true
		}
	}

	return takes
}
