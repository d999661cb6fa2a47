package nftables

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/servicemodel"
)

// errRehashed says that a dump has an element twice, or a wrong number of elements.
var errRehashed = errors.New("the kernel was rehashing a set while it was read")

// companionSet is a set that all tables of package ipvs have, except those without frontends. Their
// other sets have names and types of this package's sets.
const companionSet = "service-marks"

// foreign reports whether a table is not empty and has none of the instance's marks, or belongs to
// an instance of package ipvs. The marks are sets of certain names and types.
func (r *reading) foreign() bool {
	if r.has(companionSet) {
		return true
	}
	marks := []*nft.Set{{Name: setSettings, Key: []nft.Field{nft.FieldMark}}}
	for _, k := range kinds {
		marks = append(marks, &nft.Set{Name: k.registry, Key: k.key(r.f)})
	}
	for name, spec := range r.specs {
		if _, ok := epochOf(name, spec); ok || slices.ContainsFunc(marks, func(s *nft.Set) bool {
			return s.Name == name && s.Spec() == spec
		}) {
			return false
		}
	}
	return r.uses > 0
}

// shapeOf derives the features in use from the names of the sets and chains.
func shapeOf(r *reading) shape {
	s := shape{}
	for name := range r.specs {
		for _, k := range kinds {
			rest, ok := strings.CutPrefix(name, k.prefix+setAffinity)
			if a, parsed := parseAffinity(rest); ok && parsed {
				s.affinity = insert(s.affinity, a, affinity.compare)
				if k == kindNodePort {
					s.uses |= stickyNodePorts
				}
			}
		}
	}
	for f, set := range map[feature]string{
		inTurn: wayNames[inTurn] + setEndpoints, byHash: wayNames[byHash] + setEndpoints,
		byMaglev: wayNames[byMaglev] + setEndpoints, notFromPods: setMasqNotPods,
		splitPools: setSplit, largePools: overName(setOver, smallClasses-1),
	} {
		if r.has(kindService.prefix + set) {
			s.uses |= f
		}
	}
	if r.has(setSources) {
		s.uses |= sourceRanges
	}
	for name := range r.hashes {
		if l, ok := parseLeaf(name); ok && r.has(l.slotMap()) {
			s.leaves = append(s.leaves, name)
		}
	}
	slices.Sort(s.leaves)
	return s
}

// compareProgram compares the sets, chains and rules of a table with the ones that the node-wide
// rules need. why lists the differences.
func (r *reading) compareProgram(rules servicemodel.Rules) (sk skeleton, why []string) {
	if !r.exists {
		return skeleton{}, nil
	}
	sk = skeleton{exists: true, shape: shapeOf(r), counts: map[string]int{}}
	for name, n := range r.told {
		if !isAffinityMap(name) && !isAnonymous(name) {
			sk.counts[name] = n
		}
	}
	prog := r.place.program(r.f, rules, &sk.shape)
	why = append(r.wrongSets(setsOf(r.f, &sk.shape)), r.wrongChains(prog)...)
	if r.dormant {
		why = append([]string{"it is dormant"}, why...)
	}
	if sk.broken = len(why) > 0; !sk.broken {
		for _, c := range r.place.own(prog) {
			if !slices.Equal(r.hashes[c.Name], c.Hashes()) {
				why = append(why, fmt.Sprintf("the rules of chain %s are not ours", c.Name))
			}
		}
		sk.stale = len(why) > 0
	}
	for i := range why {
		why[i] = "table " + r.f.Name + ": " + why[i]
	}
	return sk, why
}

// wrongSets lists the sets that are missing, have another type, or do not belong.
func (r *reading) wrongSets(want []*nft.Set) (why []string) {
	belongs := map[string]bool{}
	for _, s := range want {
		belongs[s.Name] = true
		if got, ok := r.specs[s.Name]; !ok {
			why = append(why, fmt.Sprintf("set %s is missing", s.Name))
		} else if got != s.Spec() {
			why = append(why, fmt.Sprintf("set %s is of another type", s.Name))
		}
	}
	epochs := 0
	for _, name := range slices.Sorted(maps.Keys(r.specs)) {
		if isVersion(name) { // the version is checked elsewhere
			if epochs++; epochs == 1 {
				continue
			}
		}
		if !belongs[name] && !isAnonymous(name) {
			why = append(why, fmt.Sprintf("set %s does not belong", name))
		}
	}
	return why
}

// wrongChains lists the chains that are missing, are at another hook, or do not belong.
func (r *reading) wrongChains(want nft.Program) (why []string) {
	for _, c := range want {
		if got, ok := r.chains[c.Name]; !ok {
			why = append(why, fmt.Sprintf("chain %s is missing", c.Name))
		} else if got != c.Chain {
			why = append(why, fmt.Sprintf("chain %s has another hook or policy", c.Name))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.chains)) {
		if !want.Has(name) {
			why = append(why, fmt.Sprintf("chain %s does not belong", name))
		}
	}
	return why
}
