package read

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rendering"
	"github.com/kernlb/kernlb/nftables/internal/form"
	"github.com/kernlb/kernlb/servicemodel"
)

// ShapeOf derives the features in use from the names of the sets and chains.
func ShapeOf(r *Reading) form.Shape {
	s := form.Shape{}
	for name := range r.Specs {
		for _, k := range form.Kinds[:3] { // ranges of node ports have none
			rest, ok := strings.CutPrefix(name, k.Prefix+form.SetAffinity)
			if a, parsed := form.ParseAffinity(rest); ok && parsed {
				s.Affinity = form.Insert(s.Affinity, a, form.Affinity.Compare)
				if k == form.KindNodePort {
					s.Uses |= form.StickyNodePorts
				}
			}
		}
	}

	for f, set := range map[form.Feature]string{
		form.InTurn:        form.WayNames[form.InTurn] + form.SetEndpoints,
		form.ByHash:        form.WayNames[form.ByHash] + form.SetEndpoints,
		form.ByMaglev:      form.WayNames[form.ByMaglev] + form.SetEndpoints,
		form.NotFromPods:   form.SetMasqNotPods,
		form.MasqueradeIPs: form.SetMasqIPs,
		form.SplitPools:    form.SetSplit, form.LargePools: form.OverName(form.SetOver,
			form.SmallClasses-1),
	} {
		if r.Has(form.KindService.Prefix + set) {
			s.Uses |= f
		}
	}

	if r.Has(form.KindService.SetSources()) {
		s.Uses |= form.SourceRanges
	}
	for _, k := range []*form.Kind{form.KindRange, form.KindNodeRange} {
		if r.Has(k.Prefix + form.SetPorts) {
			s.Uses |= form.ToPortOf(k)
		}
		if r.Has(k.Prefix + form.SetShifts) {
			s.Uses |= form.ShiftedOf(k)
		}
		for bits := range uint8(form.BlockBits + 1) {
			if r.Has(k.Registry) && r.Has(form.BlockMap(k, bits)) {
				s.Uses |= form.BlocksOf(k, bits)
			}
		}
	}

	for name := range r.Hashes {
		if l, ok := form.ParseLeaf(name); ok && r.Has(l.SlotMap()) {
			s.Leaves = append(s.Leaves, name)
		}
	}

	slices.Sort(s.Leaves)
	return s
}

// Program parses the settings of a table into Rules and records, and derives its shape from the
// existing sets. It returns the program that both need. fault describes an error in the settings.
func (r *Reading) Program() (p nft.Program, fault error) {
	r.Shape = ShapeOf(r)
	r.Rules, r.records, fault = form.ParseSettings(r.Elems[form.SetSettings])
	delete(r.Elems, form.SetSettings)
	if fault == nil && r.Rules.MasqueradeMark == 0 {
		fault = errors.New("no settings")
	}
	return r.hooks.Program(r.Family, r.Rules, &r.Shape), fault
}

// Recognize compares the sets, chains and rules of a table with the expected ones. It records the
// differences and the fault of the settings, and whether the table must be replaced.
func (r *Reading) Recognize(program nft.Program, fault error) {
	r.Counts = map[string]int{}
	for name, n := range r.Lengths {
		if !form.IsAffinityMap(name) && !form.IsAnonymous(name) {
			r.Counts[name] = n
		}
	}

	why := append(r.wrongSets(), r.wrongChains(program)...)
	if r.Dormant {
		why = append([]string{"it is dormant"}, why...)
	}
	if r.Broken = len(why) > 0; !r.Broken {
		for _, c := range r.hooks.Own(program) {
			if got, want := r.Hashes[c.Name], c.Hashes(); !slices.Equal(got, want) {
				missing, first := lacking(want, got)
				foreign, _ := lacking(got, want)
				text := fmt.Sprintf("the rules of chain %s differ from what kernlb writes "+
					"(%d missing, %d foreign)", c.Name, missing, foreign)
				if missing > 0 {
					text += "; missing: " + c.Rules[first].Text()
				}
				why = append(why, text)
			}
		}

		r.Stale = len(why) > 0
	}

	if fault != nil {
		r.Rules, why = servicemodel.Rules{}, []string{fault.Error()}
		r.Broken, r.otherLayout = true, errors.Is(fault, rendering.ErrLayout)
	}

	for _, text := range why {
		r.Text = append(r.Text, "table "+r.Family.Name+": "+text)
	}
}

// lacking returns the number of rules that others does not have, and the index of the first.
func lacking(rules, others []uint64) (n, first int) {
	counts := map[uint64]int{}
	for _, h := range others {
		counts[h]++
	}
	for i, h := range rules {
		if counts[h]--; counts[h] < 0 {
			if n++; n == 1 {
				first = i
			}
		}
	}

	return n, first
}

// wrongSets lists the sets that are missing, have another type, or do not belong, and stores the
// right sets in r.sets.
func (r *Reading) wrongSets() (why []string) {
	belongs := map[string]bool{}
	for _, s := range form.SetsOf(r.Family, &r.Shape) {
		belongs[s.Name] = true
		switch got, ok := r.Specs[s.Name]; {
		case !ok:
			why = append(why, fmt.Sprintf("set %s is missing", s.Name))
		case got != s.Spec():
			why = append(why, fmt.Sprintf("set %s is of another type", s.Name))
		default:
			r.sets[s.Name] = s
		}
	}

	epochs := 0
	for _, name := range slices.Sorted(maps.Keys(r.Specs)) {
		if form.IsVersion(name) { // the version is checked elsewhere
			if epochs++; epochs == 1 {
				continue
			}
		}

		if !belongs[name] && !form.IsAnonymous(name) {
			why = append(why, fmt.Sprintf("set %s does not belong", name))
		}
	}

	return why
}

// wrongChains lists the chains that are missing, are at another hook, or do not belong.
func (r *Reading) wrongChains(want nft.Program) (why []string) {
	for _, c := range want {
		if got, ok := r.Chains[c.Name]; !ok {
			why = append(why, fmt.Sprintf("chain %s is missing", c.Name))
		} else if got != c.Chain {
			why = append(why, fmt.Sprintf("chain %s has another hook or policy", c.Name))
		}
	}

	for _, name := range slices.Sorted(maps.Keys(r.Chains)) {
		if !want.Has(name) {
			why = append(why, fmt.Sprintf("chain %s does not belong", name))
		}
	}

	return why
}
