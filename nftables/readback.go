package nftables

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/kernlb/kernlb/internal/loopback"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/settings"
	"github.com/kernlb/kernlb/servicemodel"
)

// rawTable is a table of the kernel, as it was read.
type rawTable struct {
	name    string
	dormant bool
	sets    map[string]nft.SetSpec
	// counts is how many elements each set has, which Linux 6.16 and newer say.
	counts map[string]int
	chains map[string]nft.Chain
	hashes map[string][]uint64          // by chain, the hash of each rule; 0 for a rule without one
	elems  map[string]map[string]*found // by set and key
}

// found is an element of the kernel.
type found struct {
	nft.Elem
	seen bool // it has its place in the model
}

func newRawTable(name string) *rawTable {
	return &rawTable{name: name, sets: map[string]nft.SetSpec{}, counts: map[string]int{},
		chains: map[string]nft.Chain{}, hashes: map[string][]uint64{},
		elems: map[string]map[string]*found{}}
}

// has reports whether there is a set of that name.
func (raw *rawTable) has(set string) bool {
	_, ok := raw.sets[set]
	return ok
}

// add adds an element of a set, unless it is there. It reports whether it was not.
func (raw *rawTable) add(set string, e nft.Elem) bool {
	m := raw.elems[set]
	if m == nil {
		m = map[string]*found{}
		raw.elems[set] = m
	}
	key := string(e.Key) + string(e.KeyEnd)
	if m[key] != nil {
		return false
	}
	m[key] = &found{Elem: e}
	return true
}

// addChain adds a chain, if it is one of the table.
func (raw *rawTable) addChain(attrs []byte) error {
	c, err := nft.DecodeChain(attrs)
	if err == nil && c.Table == raw.name {
		raw.chains[c.Name] = c.Chain
	}
	return err
}

// observed is what was made of one table.
type observed struct {
	skeleton
	rules     servicemodel.Rules
	localnet  bool // what the sysctl route_localnet was before
	contents  servicemodel.Contents
	drift     map[string]*nft.ElemList
	driftText []string
	// part is what is there of the wanted table, if one was read with it; contents is the rest.
	part *part
	// unread says that there is more, otherLayout that another version has made the table.
	unread, otherLayout bool
}

// shapeOf reads the features in use off the names of the sets.
func shapeOf(sets map[string]nft.SetSpec) shape {
	var s shape
	for name := range sets {
		for i, k := range kinds {
			if n, ok := number(name, k.prefix+setSize); ok {
				s.sizes[i][0] = insert(s.sizes[i][0], n)
			}
			if n, ok := number(name, k.prefix+setExternalSize); ok {
				s.sizes[i][1] = insert(s.sizes[i][1], n)
			}
			if n, ok := number(name, k.prefix+setAffinity); ok {
				s.affinity = insert(s.affinity, uint32(n))
			}
		}
	}
	_, s.sources = sets[setSources]
	return s
}

func number(name, prefix string) (int, bool) {
	digits, ok := strings.CutPrefix(name, prefix)
	n, err := strconv.ParseUint(digits, 10, 31)
	return int(n), ok && err == nil && digits[0] != '0'
}

// readSkeleton compares the sets, chains and rules of a table with what they should be, and says
// what is otherwise. raw is nil if there is no such table.
func readSkeleton(f *nft.Family, raw *rawTable, rules servicemodel.Rules) (skeleton, []string) {
	if raw == nil {
		return skeleton{}, nil
	}
	sk := skeleton{exists: true, shape: shapeOf(raw.sets), counts: map[string]int{}}
	for name, n := range raw.counts {
		if !isAffinityMap(name) && !isAnonymous(name) {
			sk.counts[name] = n
		}
	}
	prog := newProgram(f, rules, &sk.shape)
	why := append(raw.wrongSets(f, setsOf(f, &sk.shape)), raw.wrongChains(prog)...)
	if raw.dormant {
		why = append([]string{"it is dormant"}, why...)
	}
	if sk.broken = len(why) > 0; !sk.broken {
		why = raw.wrongRules(prog)
		sk.stale = len(why) > 0
	}
	for i := range why {
		why[i] = "table " + f.Name + ": " + why[i]
	}
	return sk, why
}

// wrongSets says which sets are missing, of another type, or do not belong.
func (raw *rawTable) wrongSets(f *nft.Family, want []*nft.Set) (why []string) {
	belongs := map[string]bool{}
	for _, s := range want {
		belongs[s.Name] = true
		if got, ok := raw.sets[s.Name]; !ok {
			why = append(why, fmt.Sprintf("set %s is missing", s.Name))
		} else if got != s.Spec() {
			why = append(why, fmt.Sprintf("set %s is of another type", s.Name))
		}
	}
	epochs := 0
	for _, name := range sortedKeys(raw.sets) {
		if isVersion(name) && f == nft.IPv4 {
			if epochs++; epochs == 1 { // it is compared with what the version should be
				continue
			}
		}
		if !belongs[name] && !isAnonymous(name) {
			why = append(why, fmt.Sprintf("set %s does not belong", name))
		}
	}
	return why
}

// wrongChains says which chains are missing, at another hook, or do not belong.
func (raw *rawTable) wrongChains(want nft.Program) (why []string) {
	for _, c := range want {
		if got, ok := raw.chains[c.Name]; !ok {
			why = append(why, fmt.Sprintf("chain %s is missing", c.Name))
		} else if got != c.Chain {
			why = append(why, fmt.Sprintf("chain %s has another hook or policy", c.Name))
		}
	}
	for _, name := range sortedKeys(raw.chains) {
		if !want.Has(name) {
			why = append(why, fmt.Sprintf("chain %s does not belong", name))
		}
	}
	return why
}

// wrongRules says in which chains the rules are not ours.
func (raw *rawTable) wrongRules(prog nft.Program) (why []string) {
	for _, c := range prog {
		got, want := raw.hashes[c.Name], c.Hashes()
		// no two of its rules match the same packet: they stand in the order in which they were
		// needed
		if strings.HasSuffix(c.Name, balanceSuffix) {
			slices.Sort(got)
			slices.Sort(want)
		}
		if !slices.Equal(got, want) {
			why = append(why, fmt.Sprintf("the rules of chain %s are not ours", c.Name))
		}
	}
	return why
}

// read makes of a table what the model knows, and finds what does not fit. raw is nil if there is
// no such table. elements reads the elements into raw, those that it does not find in their place
// itself.
func read(f *nft.Family, raw *rawTable, elements func(*observed) error) (*observed, error) {
	o := &observed{drift: map[string]*nft.ElemList{}}
	if raw == nil {
		return o, nil
	}
	r := newReading(f, raw)
	var err error
	if o.rules, o.localnet, err = r.settings(); err == nil && o.rules.MasqueradeMark == 0 {
		err = fmt.Errorf("no settings")
	}
	o.skeleton, o.driftText = readSkeleton(f, raw, o.rules)
	if err != nil {
		o.broken, o.otherLayout = true, errors.Is(err, settings.ErrLayout)
		o.driftText = []string{fmt.Sprintf("table %s: %v", f.Name, err)}
	}
	if o.broken {
		return o, nil
	}
	if err := elements(o); err != nil {
		return nil, err
	}
	r.frontends()
	o.contents = r.verified()
	o.contents.ClusterIPs = r.addresses(setClusterIPs)
	o.contents.Hairpins = r.addresses(setHairpins)
	r.unseen(o)
	return o, nil
}

// reading is the reading of one table.
type reading struct {
	f     *nft.Family
	elems map[string]map[string]*found // by set and key
	slots map[string]map[string][]netip.AddrPort
	// ranges are the source ranges, by the key of the frontend.
	ranges map[string][]netip.Prefix
	fes    []*servicemodel.Frontend
	pools  map[servicemodel.PoolID]*servicemodel.Pool
	w      *writer
}

func newReading(f *nft.Family, raw *rawTable) *reading {
	return &reading{f: f, elems: raw.elems, pools: map[servicemodel.PoolID]*servicemodel.Pool{},
		w: newWriter()}
}

// errRehashed says that a dump has an element twice, or other than as many as it should have.
var errRehashed = errors.New("the kernel was rehashing a set while it was read")

func (r *reading) has(set string, key []byte) bool {
	_, ok := r.elems[set][string(key)]
	return ok
}

// settings reads the node-wide rules, and what the sysctl route_localnet was before.
func (r *reading) settings() (rules servicemodel.Rules, localnet bool, err error) {
	m := r.elems[setSettings]
	lines := make([]string, 0, len(m))
	for i := range len(m) {
		e, ok := m[string(nft.Native32(uint32(i+settingsHaveFirst)))]
		if !ok {
			return servicemodel.Rules{}, false, fmt.Errorf("the settings have gaps")
		}
		e.seen = true
		line := nft.CommentOf(e.UserData)
		if was, ok := loopback.ParseLine(line); ok {
			localnet = was
			continue
		}
		lines = append(lines, line)
	}
	rules, err = settings.Parse(layoutNumber, lines)
	return rules, localnet, err
}

// addresses reads a set of addresses.
func (r *reading) addresses(set string) []netip.Addr {
	var l []netip.Addr
	for _, e := range r.elems[set] {
		if a, ok := addressIn(r.f, set, e.Elem); ok {
			e.seen = true
			l = append(l, a)
		}
	}
	return l
}

// unseen turns into drift whatever has no place.
func (r *reading) unseen(o *observed) {
	sets := setsOf(r.f, &o.shape)
	for _, s := range sets {
		if isAffinityMap(s.Name) || isOwners(s.Name) {
			continue
		}
		m := r.elems[s.Name]
		for _, k := range sortedKeys(m) {
			e := m[k]
			if e.seen {
				continue
			}
			l := o.drift[s.Name]
			if l == nil {
				l = &nft.ElemList{}
				o.drift[s.Name] = l
			}
			l.Add(nft.Elem{Key: e.Key, KeyEnd: e.KeyEnd, Data: e.Data})
			o.driftText = append(o.driftText, fmt.Sprintf("table %s: %s: element %s", r.f.Name,
				s.Name, s.ElemText(e.Elem)))
		}
	}
}
