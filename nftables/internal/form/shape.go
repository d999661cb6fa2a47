package form

import (
	"slices"
	"strings"

	"github.com/kernlb/kernlb/servicemodel"
)

// Shape is the part of a table's program that depends on the services: the features in use. The
// objects of a feature exist only if some service uses it.
type Shape struct {
	Affinity []Affinity // the kinds of session affinity in use, sorted
	Uses     Feature
	Leaves   []string // the chains to which the maps of verdicts may refer, sorted
}

// Has reports whether any of the features is in use.
func (s *Shape) Has(f Feature) bool { return s.Uses&f != 0 }

// classes is the number of classes that the sets of the shape distinguish.
func (s *Shape) classes() int {
	if s.Has(LargePools) {
		return AllClasses
	}
	return SmallClasses
}

// Add adds the features of o to s.
func (s *Shape) Add(o *Shape) {
	for _, a := range o.Affinity {
		s.Affinity = Insert(s.Affinity, a, Affinity.Compare)
	}
	s.Uses |= o.Uses
}

// AddFrontend adds the features that a frontend of t and its pools need to s.
func (s *Shape) AddFrontend(t *servicemodel.Table, fe *servicemodel.Frontend) {
	if fe.Affinity > 0 {
		s.Affinity = Insert(s.Affinity, affinityOf(fe), Affinity.Compare)
		if fe.Key.NodePort() {
			s.Uses |= StickyNodePorts
		}
	}

	if fe.Sources != nil {
		s.Uses |= SourceRanges
	}
	if fe.MasqueradeIP.IsValid() {
		s.Uses |= MasqueradeIPs
	}
	switch fe.Masquerade {
	case servicemodel.FromHost | servicemodel.FromOutside:
		s.Uses |= NotFromPods
	case servicemodel.FromHost:
		s.Uses |= SplitPools
	}

	if fe.External != fe.Internal {
		s.Uses |= SplitPools
	}
	internal, external := t.PoolsOf(fe)
	s.addRange(fe, internal, external)
	s.AddPool(internal)
	s.AddPool(external)
}

// AddPool adds the features that a pool needs to s. A nil pool needs no features.
func (s *Shape) AddPool(p *servicemodel.Pool) {
	if p == nil {
		return
	}
	w := WayOf(p)
	s.Uses |= w
	if w == AtRandom && ClassOf(EntryCount(p)) >= SmallClasses {
		s.Uses |= LargePools
	}
}

func (s *Shape) Equal(o *Shape) bool {
	return s.Uses == o.Uses && slices.Equal(s.Affinity, o.Affinity) &&
		slices.Equal(s.Leaves, o.Leaves)
}

// affinityOf lists the kinds of session affinity that frontends of a kind may have.
func (s *Shape) affinityOf(k *Kind) []Affinity {
	switch {
	case k == KindNodePort && !s.Has(StickyNodePorts), k == KindRange && !s.Has(Ranges),
		k == KindNodeRange:
		return nil
	case k == KindRange: // the packet has no room for other kinds
		return slices.DeleteFunc(slices.Clone(s.Affinity), func(a Affinity) bool {
			return a.Whole || a.Bits > 0
		})
	}

	return s.Affinity
}

// AffinityGroups returns the groups of maps that a shape needs.
func (s *Shape) AffinityGroups() (l []string) {
	for _, a := range s.Affinity {
		l = Insert(l, a.Group(), strings.Compare)
		if a.Bits > 0 && !a.Whole && s.Has(SplitPools) {
			l = Insert(l, groupOutside, strings.Compare)
		}
	}

	if len(s.affinityOf(KindRange)) > 0 {
		l = Insert(l, groupRanges, strings.Compare)
	}
	return l
}

// Insert adds v to a sorted list unless the list contains it.
func Insert[T any](sorted []T, v T, compare func(a, b T) int) []T {
	i, ok := slices.BinarySearchFunc(sorted, v, compare)
	if ok {
		return sorted
	}
	return slices.Insert(sorted, i, v)
}

// addRange adds the features of a range with these pools to s.
func (s *Shape) addRange(fe *servicemodel.Frontend, internal, external *servicemodel.Pool) {
	if fe.Key.EndPort == 0 {
		return
	}
	k := KindOf(fe.Key)
	for b := range fe.Key.Blocks() {
		s.Uses |= BlocksOf(k, b.Bits)
	}
	switch port, _ := RangePort(internal, external); {
	case port == 0:
	case fe.Shifted:
		s.Uses |= ShiftedOf(k)
	default:
		s.Uses |= ToPortOf(k)
	}
}

// Kinds returns the kinds whose objects exist.
func (s *Shape) Kinds() []*Kind {
	l := slices.Clone(Kinds[:2])
	if s.Has(Ranges) {
		l = append(l, KindRange)
	}
	if s.Has(NodeRanges) {
		l = append(l, KindNodeRange)
	}
	return l
}
