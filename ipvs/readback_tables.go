package ipvs

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/kernlb/kernlb/dataplane/sysctls"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rendering"
	"github.com/kernlb/kernlb/servicemodel"
)

// rawTable is a companion table as it was read.
type rawTable struct {
	nft.TableInfo
	sets   map[string]nft.SetInfo
	chains map[string]nft.ChainInfo
	rules  map[string][]uint64 // hashes by chain
	elems  map[string]map[string]nft.Elem
}

// companionOf returns the content of the tables. drift lists their faults. From a faulty table it
// uses only the earlier values of tunables. mark is the mark of the instance.
func companionOf(name string, mark uint32, raws [2]*rawTable) (c companion, drift []string) {
	c = newCompanion()
	for i, f := range nft.Families {
		if c.exists[i] = raws[i] != nil; !c.exists[i] {
			continue
		}
		if isForeign(raws[i]) {
			c.foreign = "table " + f.Name + " " + name
		}
		if err := c.take(f, raws[i], mark); err != nil {
			c.other = c.other || errors.Is(err, rendering.ErrLayout)
			drift = append(drift, fmt.Sprintf("table %s %s: %v", f.Name, name, err))
			continue
		}

		c.whole[i] = true
	}

	for i, f := range nft.Families {
		switch {
		case c.exists[i] || c.exists == [2]bool{}:
		case hasTable(f, &c.rules):
			drift = append(drift, "a companion table is missing")
		default:
			c.whole[i] = true
		}
	}

	for _, l := range c.addrs {
		slices.SortFunc(l, netip.Addr.Compare)
	}
	return c, drift
}

// isForeign reports whether another program has made a table: the table is not empty, and has none
// of the sets that only companion tables have. Tables of package nftables also have the other sets.
func isForeign(raw *rawTable) bool {
	return raw.Use > 0 && !slices.ContainsFunc([]string{setVersion, kindService + setMarks,
		kindNodePort + setMarks}, func(name string) bool {
		_, ours := raw.sets[name]
		return ours
	})
}

// take adds the content of a table. It requires that the table has exactly the elements that its
// registries and settings imply.
func (c *companion) take(f *nft.Family, raw *rawTable, mark uint32) error {
	rules, tunables, err := parseSettings(raw.elems[setSettings])
	maps.Copy(c.tunables, tunables)
	if err != nil {
		return err
	}
	if c.rules.MasqueradeMark != 0 && !c.rules.Equal(rules) {
		return errors.New("it was made for other settings")
	}
	shape := shapeOf(raw)
	sets, program, wanted := tableOf(f, rules, mark, shape)
	if !wanted {
		return fmt.Errorf("the node does not serve %v", f.Model)
	}
	if err := requireProgram(raw, sets, program); err != nil {
		return err
	}
	if f == nft.IPv4 {
		if _, err := versionOf(raw.elems[setVersion]); err != nil {
			return err
		}
	}

	one := newCompanion()
	one.rules = rules
	if err := one.takeRecords(f, raw); err != nil {
		return err
	}
	if err := one.takeAddrs(f, raw); err != nil {
		return err
	}
	if err := one.requireElements(f, raw, tunables); err != nil {
		return err
	}
	c.rules, c.shapes[nft.FamilyIndex(f.Any)] = rules, shape
	for _, set := range addrSets {
		c.addrs[set] = append(c.addrs[set], one.addrs[set]...)
	}
	maps.Copy(c.records, one.records)
	return nil
}

func (c *companion) takeAddrs(f *nft.Family, raw *rawTable) error {
	for _, set := range addrSets {
		for key := range raw.elems[set] {
			r := nft.Reader{Bytes: []byte(key)}
			a := r.Addr(f.AddrLen)
			if set == setHairpins {
				r.Addr(f.AddrLen)
			}
			if !r.Done() {
				return fmt.Errorf("set %s: a key of %d bytes", set, len(key))
			}
			c.addrs[set] = append(c.addrs[set], a)
		}
	}

	return nil
}

// requireElements requires that the sets of a table have exactly the elements that belong to its
// content, and to these tunables.
func (c *companion) requireElements(f *nft.Family, raw *rawTable,
	tunables map[string]string) error {
	want := map[string]map[string]nft.Elem{}
	add := func(set string, e nft.Elem) {
		if want[set] == nil {
			want[set] = map[string]nft.Elem{}
		}
		want[set][string(e.Key)+string(e.KeyEnd)] = e
	}

	c.elements(f, add)
	for _, r := range c.records {
		r.elements(add)
	}
	for name, value := range tunables {
		add(setSettings, tunableElem(name, value))
	}
	for _, s := range setsOf(f, shapeOf(raw)) {
		have := raw.elems[s.Name]
		if s == versionSet {
			continue
		}
		if len(have) != len(want[s.Name]) {
			return fmt.Errorf("set %s has %d elements, want %d", s.Name, len(have),
				len(want[s.Name]))
		}

		for k, e := range want[s.Name] {
			h, ok := have[k]
			if !ok {
				return fmt.Errorf("set %s has no element %s", s.Name,
					s.ElemText(nft.Elem{Key: e.Key, KeyEnd: e.KeyEnd}))
			}
			if !bytes.Equal(e.Data, h.Data) ||
				nft.CommentOf(e.UserData) != nft.CommentOf(h.UserData) {
				return fmt.Errorf("set %s is not as it should be", s.Name)
			}
		}
	}

	return nil
}

// requireProgram requires that the table is active, and has exactly our sets, chains and rules.
func requireProgram(raw *rawTable, sets []*nft.Set, prog nft.Program) error {
	if raw.Dormant {
		return errors.New("it is dormant")
	}
	for _, s := range sets {
		if have, ok := raw.sets[s.Name]; !ok || have.Spec != s.Spec() {
			return fmt.Errorf("set %s is missing", s.Name)
		}
	}

	for _, ch := range prog {
		have, ok := raw.chains[ch.Name]
		if !ok {
			return fmt.Errorf("chain %s is missing", ch.Name)
		}
		if have.Chain != ch.Chain || !slices.Equal(ch.Hashes(), raw.rules[ch.Name]) {
			return fmt.Errorf("chain %s is not as it should be", ch.Name)
		}
	}

	if n := len(prog) + len(sets); raw.Use != n {
		return fmt.Errorf("it has %d chains and sets, want %d", raw.Use, n)
	}
	return nil
}

// chainNames are the names of the chains in a companion table. They do not depend on the rules.
func chainNames(s shape) []string {
	var l []string
	for _, c := range newProgram(nft.IPv4, servicemodel.Rules{}, 0, s) {
		l = append(l, c.Name)
	}
	return l
}

// parseSettings reads the set of settings. It returns the tunables even if the rest is faulty.
func parseSettings(elems map[string]nft.Elem) (servicemodel.Rules, map[string]string, error) {
	lines := map[uint32]string{}
	tunables := map[string]string{}
	for k, e := range elems {
		line := nft.CommentOf(e.UserData)
		if name, value, ok := sysctls.ParseRecord(line); ok {
			if slices.Contains(tunableNames, name) {
				tunables[name] = value
			}
			continue
		}

		rd := nft.Reader{Bytes: []byte(k)}
		lines[rd.Native()] = line
	}

	var ordered []string
	for _, n := range slices.Sorted(maps.Keys(lines)) {
		ordered = append(ordered, lines[n])
	}
	r, err := rendering.ParseSettings(layoutNumber, ordered)
	if err == nil && r.MasqueradeMark == 0 {
		err = errors.New("settings are missing")
	}
	return r, tunables, err
}

// takeRecords reads the records in the registries.
func (c *companion) takeRecords(f *nft.Family, raw *rawTable) error {
	sources := readSources(f, raw)
	for _, kind := range kinds {
		for key, e := range raw.elems[kind+"s"] {
			rd := nft.Reader{Bytes: []byte(key)}
			k := rd.Frontend(f.Any, kind == kindNodePort)
			if !rd.Done() {
				return fmt.Errorf("set %ss: a key of %d bytes", kind, len(key))
			}
			r, err := parseRecord(nft.CommentOf(e.UserData), k)
			if err != nil {
				return err
			}
			if _, restricted := raw.elems[setRestricted][key]; restricted {
				r.fe.Sources = append([]netip.Prefix{}, sources[k]...)
			}
			r.takeMasqueradeIP(raw, kind, key)
			c.records[k] = r
		}
	}

	return c.takeRanges(f, raw)
}

// takeMasqueradeIP reads the source that a frontend sets for masqueraded connections.
func (r *record) takeMasqueradeIP(raw *rawTable, kind, key string) {
	if e, given := raw.elems[kind+setMasqIPs][key]; given {
		r.fe.MasqueradeIP, _ = netip.AddrFromSlice(e.Data)
	}
}

// readSources reads the source ranges of frontends.
func readSources(f *nft.Family, raw *rawTable) map[servicemodel.FrontendKey][]netip.Prefix {
	return sourcesIn(f, raw.elems[setSources], func(r *nft.Reader) servicemodel.FrontendKey {
		return r.Frontend(f.Any, false)
	})
}

// sourcesIn reads the elements of a set of source ranges. read reads the key of a frontend.
func sourcesIn[K comparable](f *nft.Family, elems map[string]nft.Elem,
	read func(*nft.Reader) K) map[K][]netip.Prefix {
	m := map[K][]netip.Prefix{}
	for _, e := range elems {
		first, last := nft.Reader{Bytes: e.Key}, nft.Reader{Bytes: e.KeyEnd}
		k := read(&first)
		read(&last)
		p, ok := nft.RangePrefix(first.Addr(f.AddrLen), last.Addr(f.AddrLen))
		if ok && first.Done() && last.Done() {
			m[k] = append(m[k], p)
		}
	}

	for _, l := range m {
		slices.SortFunc(l, netip.Prefix.Compare)
	}
	return m
}
