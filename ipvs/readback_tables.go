package ipvs

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/settings"
	"github.com/kernlb/kernlb/servicemodel"
)

// rawTable is what was read of a companion table.
type rawTable struct {
	nft.TableInfo
	sets   map[string]nft.SetInfo
	chains map[string]nft.ChainInfo
	rules  map[string][]uint64 // hashes by chain
	elems  map[string]map[string]nft.Elem
}

// companionOf returns what tables hold, and in what they are not as they should be. A table that is
// not adds nothing but what tunables were.
func companionOf(name string, raws [2]*rawTable) (c companion, drift []string) {
	c = newCompanion()
	for i, f := range nft.Families {
		if c.exists[i] = raws[i] != nil; !c.exists[i] {
			continue
		}
		if err := c.take(f, raws[i]); err != nil {
			c.other = c.other || errors.Is(err, settings.ErrLayout)
			drift = append(drift, fmt.Sprintf("table %s %s: %v", f.Name, name, err))
			continue
		}
		c.whole[i] = true
	}
	if c.exists[0] != c.exists[1] {
		drift = append(drift, "a companion table is missing")
	}
	for _, l := range [][]netip.Addr{c.clusterIPs, c.hairpins, c.addrs} {
		slices.SortFunc(l, netip.Addr.Compare)
	}
	return c, drift
}

// take adds what a table holds, and requires that it holds what follows from its registries and
// settings, and nothing else.
func (c *companion) take(f *nft.Family, raw *rawTable) error {
	rules, tunables, err := parseSettings(raw.elems[setSettings])
	maps.Copy(c.tunables, tunables)
	if err != nil {
		return err
	}
	if c.rules.MasqueradeMark != 0 && !c.rules.Equal(rules) {
		return errors.New("it was made for other settings")
	}
	if err := requireProgram(f, raw, rules); err != nil {
		return err
	}
	if f == nft.IPv4 {
		if _, err := versionOf(raw.elems[setVersion]); err != nil {
			return err
		}
	}
	one := companion{rules: rules, tunables: tunables}
	records, err := parseRecords(f, raw)
	if err == nil {
		err = one.takeAddrs(f, raw)
	}
	if err == nil {
		err = requireElements(f, raw, one.elements(f, records))
	}
	if err != nil {
		return err
	}
	c.rules = rules
	c.clusterIPs = append(c.clusterIPs, one.clusterIPs...)
	c.hairpins = append(c.hairpins, one.hairpins...)
	c.addrs = append(c.addrs, one.addrs...)
	for _, r := range records {
		c.records[r.fe.Key] = r
	}
	return nil
}

// takeAddrs reads the sets of addresses.
func (c *companion) takeAddrs(f *nft.Family, raw *rawTable) error {
	for _, s := range []struct {
		set string
		to  *[]netip.Addr
	}{{setClusterIPs, &c.clusterIPs}, {setHairpins, &c.hairpins}, {setNodeAddrs, &c.addrs}} {
		for key := range raw.elems[s.set] {
			r := nft.Reader{Bytes: []byte(key)}
			a := r.Addr(f.AddrLen)
			if s.set == setHairpins {
				r.Addr(f.AddrLen)
			}
			if !r.Done() {
				return fmt.Errorf("set %s: a key of %d bytes", s.set, len(key))
			}
			*s.to = append(*s.to, a)
		}
	}
	return nil
}

// requireElements requires that the sets of a table hold these elements.
func requireElements(f *nft.Family, raw *rawTable,
	want map[string]map[string]nft.Elem) error {
	for _, s := range setsOf(f) {
		if s == versionSet {
			continue
		}
		have := raw.elems[s.Name]
		if len(have) != len(want[s.Name]) {
			return fmt.Errorf("set %s has %d elements, want %d", s.Name, len(have),
				len(want[s.Name]))
		}
		for k, e := range want[s.Name] {
			h, ok := have[k]
			if !ok || !bytes.Equal(e.Data, h.Data) ||
				nft.CommentOf(e.UserData) != nft.CommentOf(h.UserData) {
				return fmt.Errorf("set %s is not as it should be", s.Name)
			}
		}
	}
	return nil
}

// requireProgram requires that the table is in force, and has our sets, chains and rules and no
// others.
func requireProgram(f *nft.Family, raw *rawTable, rules servicemodel.Rules) error {
	if raw.Dormant {
		return errors.New("it is dormant")
	}
	for _, s := range setsOf(f) {
		if have, ok := raw.sets[s.Name]; !ok || have.Spec != s.Spec() {
			return fmt.Errorf("set %s is missing", s.Name)
		}
	}
	prog := newProgram(f, rules)
	for _, ch := range prog {
		have := raw.chains[ch.Name]
		if have.Chain != ch.Chain || !slices.Equal(ch.Hashes(), raw.rules[ch.Name]) {
			return fmt.Errorf("chain %s is not as it should be", ch.Name)
		}
	}
	if n := len(prog) + len(setsOf(f)); raw.Use != n {
		return fmt.Errorf("it has %d chains and sets, want %d", raw.Use, n)
	}
	return nil
}

// chainNames are those of the chains of a companion table, whatever the rules are.
func chainNames() []string {
	var l []string
	for _, c := range newProgram(nft.IPv4, servicemodel.Rules{}) {
		l = append(l, c.Name)
	}
	return l
}

// parseSettings reads the set of settings. What it says of tunables is returned also if the rest is
// not as it should be.
func parseSettings(elems map[string]nft.Elem) (servicemodel.Rules, map[string]string, error) {
	lines := map[uint32]string{}
	tunables := map[string]string{}
	for k, e := range elems {
		line := nft.CommentOf(e.UserData)
		if name, value, ok := parseTunable(line); ok {
			if name != "" {
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
	r, err := settings.Parse(layoutNumber, ordered)
	if err == nil && r.MasqueradeMark == 0 {
		err = errors.New("settings are missing")
	}
	return r, tunables, err
}

// parseRecords makes records of the registries.
func parseRecords(f *nft.Family, raw *rawTable) ([]*record, error) {
	var records []*record
	sources := readSources(f, raw)
	for _, kind := range kinds {
		for key, e := range raw.elems[kind+"s"] {
			rd := nft.Reader{Bytes: []byte(key)}
			k := rd.Frontend(f.Any, kind == kindNodePort)
			if !rd.Done() {
				return nil, fmt.Errorf("set %ss: a key of %d bytes", kind, len(key))
			}
			r, err := parseRecord(nft.CommentOf(e.UserData), k)
			if err != nil {
				return nil, err
			}
			if _, restricted := raw.elems[setRestricted][key]; restricted {
				r.fe.Sources = append([]netip.Prefix{}, sources[k]...)
			}
			records = append(records, r)
		}
	}
	return records, nil
}

// readSources reads the source ranges of frontends.
func readSources(f *nft.Family, raw *rawTable) map[servicemodel.FrontendKey][]netip.Prefix {
	m := map[servicemodel.FrontendKey][]netip.Prefix{}
	for _, e := range raw.elems[setSources] {
		first, last := nft.Reader{Bytes: e.Key}, nft.Reader{Bytes: e.KeyEnd}
		k := first.Frontend(f.Any, false)
		last.Frontend(f.Any, false)
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
