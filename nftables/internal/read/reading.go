package read

import (
	"slices"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/nftables/internal/form"
	"github.com/kernlb/kernlb/servicemodel"
)

// Reading is one table of the kernel as it was read: its sets, chains and rules, its elements, and
// their meaning in the model. Every way to read elements fills a reading: a dump, questions about
// wanted elements, and questions about elements of some owners. See [Reader.Elements] for the way
// that an engine uses.
type Reading struct {
	Family  *nft.Family
	Name    string
	hooks   form.Hooks
	Dormant bool
	uses    int // how many chains, sets, counters and other objects the table has
	Specs   map[string]nft.SetSpec
	// Lengths is how many elements each set has. Linux 6.16 and newer tell it.
	Lengths map[string]int
	Sizes   map[string]uint32 // of sets that do not grow
	Chains  map[string]nft.Chain
	Hashes  map[string][]uint64 // by chain, the hash of each rule; 0 for a rule without one

	// Skeleton, rules and records come from the settings for which the table was made.
	form.Skeleton
	Rules       servicemodel.Rules
	records     map[string]string // earlier values of sysctls
	otherLayout bool              // another version of kernlb made the table
	full        bool              // the table must be made anew only because a set was full

	// Elems are the elements that were read and have no place in the model yet, by set and key.
	// Elements that are left in the end are drift.
	Elems map[string]map[string]*nft.Elem

	// want is the table that the kernel is asked about, nil if nothing is wanted. Elements that are
	// as wanted do not come into elems. The reading only notes the elements that are not as wanted.
	want       *servicemodel.Table
	sets       map[string]*nft.Set // the sets that the table should have, and has
	found      map[string]int      // by set, how many of the elements asked for were found
	incomplete []object            // the wanted objects that are not whole
	w          *form.Writer

	Drift   map[string]*nft.ElemList
	Text    []string // the drift, line by line
	Partial bool     // the table has more elements, about which the reading did not ask
	Index   form.Ownership
	// beside are the ranges of other owners that may share elements with those of the reading.
	beside []*servicemodel.Frontend
}

func NewReading(f *nft.Family, name string) *Reading {
	return &Reading{Family: f, Name: name, Specs: map[string]nft.SetSpec{},
		Lengths: map[string]int{},
		Sizes:   map[string]uint32{},
		Chains:  map[string]nft.Chain{}, Hashes: map[string][]uint64{},
		Elems: map[string]map[string]*nft.Elem{}, sets: map[string]*nft.Set{},
		found: map[string]int{}, Drift: map[string]*nft.ElemList{}, w: form.NewWriter(),
		Index: form.NewOwnership()}
}

// Has reports whether there is a set of that name.
func (r *Reading) Has(set string) bool {
	_, ok := r.Specs[set]
	return ok
}

// Add copies an element of a set into the reading. It reports false if the reading has the element
// already.
func (r *Reading) Add(set string, e nft.Elem) bool {
	m := r.Elems[set]
	if m == nil {
		m = map[string]*nft.Elem{}
		r.Elems[set] = m
	}

	key := string(e.Key) + string(e.KeyEnd)
	if m[key] != nil {
		return false
	}
	e = e.Clone()
	m[key] = &e
	return true
}

// hasLength reports whether the kernel tells how many elements a set has.
func (r *Reading) hasLength(set string) bool {
	_, known := r.Lengths[set]
	return known
}

// complete reports whether all elements of a set were found.
func (r *Reading) complete(set string) bool {
	count, known := r.Lengths[set]
	return known && count == r.found[set]
}

// Stands reports whether the table exists and its elements mean something.
func (r *Reading) Stands() bool { return r.Exists && (!r.Broken || r.full) }

// marked reports whether a table has one of the instance's marks: sets of certain names and types.
func (r *Reading) marked() bool {
	if r.Has(companionSet) {
		return false
	}
	marks := []*nft.Set{{Name: form.SetSettings, Key: []nft.Field{nft.FieldMark}}}
	for _, k := range form.Kinds[:2] {
		marks = append(marks, &nft.Set{Name: k.Registry, Key: k.Key(r.Family)})
	}
	for name, spec := range r.Specs {
		_, epoch := form.EpochOf(name, spec)
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
