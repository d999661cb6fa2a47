package read

import (
	"slices"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/nftables/internal/form"
	"github.com/kernlb/kernlb/servicemodel"
)

// Reading is one table of the kernel: its sets, chains and rules, its elements, and their meaning
// in the model. All methods of reading fill a Reading: a dump, questions about desired elements,
// and questions about elements of some owners. An engine uses [Reader.Elements].
type Reading struct {
	Family  *nft.Family
	Name    string
	hooks   form.Hooks
	Dormant bool
	uses    int // the number of chains, sets, counters and other objects in the table
	Specs   map[string]nft.SetSpec
	// Lengths is the number of elements of each set. Linux 6.16 and newer report it.
	Lengths map[string]int
	Sizes   map[string]uint32 // of sets that do not grow
	Chains  map[string]nft.Chain
	Hashes  map[string][]uint64 // by chain, the hash of each rule; 0 if a rule has no hash

	// Rules and records come from the settings of the table. The shape in Skeleton comes from the
	// names of the existing sets and chains.
	form.Skeleton
	Rules       servicemodel.Rules
	records     map[string]string // earlier values of sysctls
	otherLayout bool              // another version of kernlb made the table
	full        bool              // a full set is the only reason to replace the table

	// Elems are the elements that were read and have no meaning yet, by set and key. Elements that
	// are left at the end are drift.
	Elems map[string]map[string]*nft.Elem

	// want is the table whose elements are requested from the kernel, nil if no table is desired.
	// Elements that are as desired are not added to Elems.
	want       *servicemodel.Table
	sets       map[string]*nft.Set // the expected sets that exist
	found      map[string]int      // by set, the number of found elements that were asked for
	incomplete []object            // the wanted objects that are incomplete
	w          *form.Writer

	Drift   map[string]*nft.ElemList
	Text    []string // the drift, line by line
	Partial bool     // the table has more elements, which the reading did not ask for
	Index   form.Ownership
	// beside contains the ranges of other owners that may share elements with the ranges of the
	// reading.
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

// Add copies an element of a set into the reading. It returns false if the reading already has the
// element.
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

// hasLength reports whether the kernel reports the number of elements of a set.
func (r *Reading) hasLength(set string) bool {
	_, known := r.Lengths[set]
	return known
}

// complete reports whether all elements of a set were found.
func (r *Reading) complete(set string) bool {
	count, known := r.Lengths[set]
	return known && count == r.found[set]
}

// Stands reports whether the table exists and its elements have a meaning.
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

// companionSet is a set in all tables of package ipvs, except tables without frontends. The other
// sets of those tables have names and types of this package's sets.
const companionSet = "service-marks"
