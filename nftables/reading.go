package nftables

import (
	"errors"
	"fmt"
	"slices"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rendering"
	"github.com/kernlb/kernlb/servicemodel"
)

// reading is one table of the kernel as it was read: its sets, chains and rules, its elements, and
// their meaning in the model. Every way to read elements fills a reading: a dump, questions about
// wanted elements, and questions about elements of some owners. See [kernel.readElements] for the
// way that an engine uses.
type reading struct {
	f       *nft.Family
	name    string
	place   place
	dormant bool
	uses    int // how many chains, sets, counters and other objects the table has
	specs   map[string]nft.SetSpec
	// told is how many elements each set has. Linux 6.16 and newer tell it.
	told   map[string]int
	sizes  map[string]uint32 // of sets that do not grow
	chains map[string]nft.Chain
	hashes map[string][]uint64 // by chain, the hash of each rule; 0 for a rule without one

	// skeleton, rules and localnet come from the settings for which the table was made.
	skeleton
	rules       servicemodel.Rules
	localnet    localnet
	otherLayout bool // another version of kernlb made the table
	full        bool // the table must be made anew only because a set was full

	// elems are the elements that were read and have no place in the model yet, by set and key.
	// Elements that are left in the end are drift.
	elems map[string]map[string]*nft.Elem

	// want is the table that the kernel is asked about, nil if nothing is wanted. Elements that are
	// as wanted do not come into elems. The reading only notes the elements that are not as wanted.
	want  *servicemodel.Table
	sets  map[string]*nft.Set // the sets that the table should have, and has
	found map[string]int      // by set, how many of the elements asked for were found
	gone  []object            // the wanted objects that are not whole
	w     *writer

	drift  map[string]*nft.ElemList
	text   []string // the drift, line by line
	unread bool     // the table has more elements, about which the reading did not ask
	index  ownership
}

func newReading(f *nft.Family, name string) *reading {
	return &reading{f: f, name: name, specs: map[string]nft.SetSpec{}, told: map[string]int{},
		sizes:  map[string]uint32{},
		chains: map[string]nft.Chain{}, hashes: map[string][]uint64{},
		elems: map[string]map[string]*nft.Elem{}, sets: map[string]*nft.Set{},
		found: map[string]int{}, drift: map[string]*nft.ElemList{}, w: newWriter(),
		index: newOwnership()}
}

// has reports whether there is a set of that name.
func (r *reading) has(set string) bool {
	_, ok := r.specs[set]
	return ok
}

// add copies an element of a set into the reading. It reports false if the reading has the element
// already.
func (r *reading) add(set string, e nft.Elem) bool {
	m := r.elems[set]
	if m == nil {
		m = map[string]*nft.Elem{}
		r.elems[set] = m
	}
	key := string(e.Key) + string(e.KeyEnd)
	if m[key] != nil {
		return false
	}
	e = e.Clone()
	m[key] = &e
	return true
}

// tells reports whether the kernel tells how many elements a set has.
func (r *reading) tells(set string) bool {
	_, told := r.told[set]
	return told
}

// complete reports whether all elements of a set were found.
func (r *reading) complete(set string) bool {
	count, told := r.told[set]
	return told && count == r.found[set]
}

// settings reads the node-wide rules, and what any layout says about the sysctl route_localnet.
func (r *reading) settings() (rules servicemodel.Rules, local localnet, err error) {
	m := r.elems[setSettings]
	delete(r.elems, setSettings)
	for _, e := range m {
		before, ok := rendering.ParseRouteLocalnetLine(nft.CommentOf(e.UserData))
		local.before, local.left = local.before || before, local.left || ok
	}
	lines := make([]string, 0, len(m))
	for i := range len(m) {
		e, ok := m[string(nft.Native32(uint32(i+settingsHaveFirst)))]
		if !ok {
			return servicemodel.Rules{}, local, errors.New("the settings have gaps")
		}
		line := nft.CommentOf(e.UserData)
		if _, ok := rendering.ParseRouteLocalnetLine(line); !ok {
			lines = append(lines, line)
		}
	}
	rules, err = rendering.ParseSettings(layoutNumber, lines)
	return rules, local, err
}

// stands reports whether the table exists and its elements mean something.
func (r *reading) stands() bool { return r.exists && (!r.broken || r.full) }

// marked reports whether a table has one of the instance's marks: sets of certain names and types.
func (r *reading) marked() bool {
	if r.has(companionSet) {
		return false
	}
	marks := []*nft.Set{{Name: setSettings, Key: []nft.Field{nft.FieldMark}}}
	for _, k := range kinds {
		marks = append(marks, &nft.Set{Name: k.registry, Key: k.key(r.f)})
	}
	for name, spec := range r.specs {
		_, epoch := epochOf(name, spec)
		if epoch || slices.ContainsFunc(marks, func(s *nft.Set) bool {
			return s.Name == name && s.Spec() == spec
		}) {
			return true
		}
	}
	return false
}

// companionSet is a set that all tables of package ipvs have, except those without frontends. Their
// other sets have names and types of this package's sets.
const companionSet = "service-marks"

// snapshot is the tables of all families as they were read.
type snapshot struct {
	tables  []*reading // by family; a table may not exist
	version version
	// rules are the rules of the first table that has some.
	rules    servicemodel.Rules
	localnet localnet
	text     []string // drift that concerns all tables
}

// exists reports whether the instance has a table.
func (s *snapshot) exists() bool {
	return slices.ContainsFunc(s.tables, func(r *reading) bool { return r.exists })
}

const fullSet = "a set is full"

// compare finds out which tables must be made anew because of both together. crowded says that a
// set was full. If the version is missing, no program would notice another writer in one of the
// tables.
func (s *snapshot) compare(crowded bool) {
	if crowded {
		s.text = append(s.text, fullSet)
	}
	if s.version.number == 0 && s.exists() {
		s.text = append(s.text, "the tables have no version")
	}
	if s.version.unfinished {
		s.text = append(s.text, "the tables are not finished")
	}
	anew, full := len(s.text) > 0, slices.Equal(s.text, []string{fullSet})
	for _, r := range s.tables {
		r.full = full && !r.broken
		r.broken = r.exists && (r.broken || anew)
		s.localnet.before = s.localnet.before || r.localnet.before
		s.localnet.left = s.localnet.left || r.localnet.left && r.broken
		switch {
		case r.rules.MasqueradeMark == 0:
		case s.rules.MasqueradeMark == 0:
			s.rules = r.rules
		case !s.rules.Equal(r.rules):
			r.broken, r.full = true, false
			r.text = []string{"the tables ip and ip6 were made for different settings"}
		}
		if anew && !r.otherLayout {
			r.text = nil
		}
		if r.broken && !s.version.unfinished && r.marked() {
			r.held = &heldObjects{r.chains, r.specs, r.sizes, r.dormant}
		}
	}
}

// otherLayout reports whether another version of kernlb made a table.
func (s *snapshot) otherLayout() bool {
	return slices.ContainsFunc(s.tables, func(r *reading) bool { return r.otherLayout })
}

// remember makes one observation of both tables, and keeps what was read as the state of the
// kernel.
func (b *backend) remember(s *snapshot, t *servicemodel.Table) *dataplane.Observation {
	o := &dataplane.Observation{Table: t, Drift: s.text, OtherLayout: s.otherLayout()}
	for i, r := range s.tables {
		t := b.pl.tables[i]
		t.skeleton, t.sets, t.drift, t.index = r.skeleton, nil, r.drift, r.index
		o.Unread = o.Unread || r.unread
	}
	switch {
	case !s.version.unswept:
		b.sweep = nil
	case b.sweep == nil || b.pl.version != s.version: // nothing tells what another writer left
		b.sweep = sweepAll(t)
	default:
		b.sweep.table = t
	}
	if s.rules.MasqueradeMark == 0 && !s.localnet.left {
		s.localnet = b.pl.leftLocalnet()
	}
	b.pl.rules, b.pl.version, b.pl.localnet = t.Rules(), s.version, s.localnet
	b.pl.owning, b.pl.complete = nil, false
	b.observed = true
	return o
}

// merge makes one observation of both tables: see [backend.remember]. Elements that are as wanted
// have no meaning of their own.
func (b *backend) merge(s *snapshot, want *servicemodel.Table) (*dataplane.Observation, error) {
	var c servicemodel.Contents
	for _, r := range s.tables {
		if r.stands() {
			c.Rules = r.rules
		}
		if r.stands() && len(r.elems) > 0 {
			r.interpret(&c)
		}
		s.text = append(s.text, r.text...)
	}
	t, err := s.assemble(want, c)
	if err != nil {
		return nil, fmt.Errorf("nftables: what the kernel holds: %w", err)
	}
	return b.remember(s, t), nil
}
