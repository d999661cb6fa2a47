package nftables

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/rendering"
	"github.com/kernlb/kernlb/servicemodel"
)

// errRehashed says that a dump has an element twice, or a wrong number of elements.
var errRehashed = fmt.Errorf("%w: the kernel was rehashing a set while it was read",
	rawnl.ErrDumpInterrupted)

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

// program reads the settings of a table, and returns the program that they and its features need.
// fault says what is wrong with the settings.
func (r *reading) program() (p nft.Program, fault error) {
	r.shape = shapeOf(r)
	r.rules, r.localnet, fault = r.settings()
	if fault == nil && r.rules.MasqueradeMark == 0 {
		fault = errors.New("no settings")
	}
	return r.place.program(r.f, r.rules, &r.shape), fault
}

// recognize compares the sets, chains and rules of a table with those that it should have. It notes
// the differences and the fault of the settings, and whether the table must be made anew.
func (r *reading) recognize(program nft.Program, fault error) {
	r.counts = map[string]int{}
	for name, n := range r.told {
		if !isAffinityMap(name) && !isAnonymous(name) {
			r.counts[name] = n
		}
	}
	why := append(r.wrongSets(), r.wrongChains(program)...)
	if r.dormant {
		why = append([]string{"it is dormant"}, why...)
	}
	if r.broken = len(why) > 0; !r.broken {
		for _, c := range r.place.own(program) {
			if !slices.Equal(r.hashes[c.Name], c.Hashes()) {
				why = append(why, fmt.Sprintf("the rules of chain %s are not ours", c.Name))
			}
		}
		r.stale = len(why) > 0
	}
	if fault != nil {
		r.rules, why = servicemodel.Rules{}, []string{fault.Error()}
		r.broken, r.otherLayout = true, errors.Is(fault, rendering.ErrLayout)
	}
	for _, text := range why {
		r.text = append(r.text, "table "+r.f.Name+": "+text)
	}
}

// wrongSets lists the sets that are missing, have another type, or do not belong, and keeps the
// others.
func (r *reading) wrongSets() (why []string) {
	belongs := map[string]bool{}
	for _, s := range setsOf(r.f, &r.shape) {
		belongs[s.Name] = true
		switch got, ok := r.specs[s.Name]; {
		case !ok:
			why = append(why, fmt.Sprintf("set %s is missing", s.Name))
		case got != s.Spec():
			why = append(why, fmt.Sprintf("set %s is of another type", s.Name))
		default:
			r.sets[s.Name] = s
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
