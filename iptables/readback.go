package iptables

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/settings"
	"github.com/kernlb/kernlb/servicemodel"
)

// rawTable is what the kernel tells of one table of one family.
type rawTable struct {
	exists bool
	chains map[string]*rawChain
}

// rawChain is a chain with its rules.
type rawChain struct {
	nft.ChainInfo
	rules []rule
}

// raw is what the kernel tells of all tables.
type raw struct {
	tables [2][len(tables)]rawTable
	// routeLocalnet is the sysctl.
	routeLocalnet bool
}

func (r *raw) chain(id chainID) *rawChain { return r.tables[id.family][id.table].chains[id.name] }

// put adds a chain.
func (r *raw) put(id chainID, c *rawChain) {
	t := &r.tables[id.family][id.table]
	if t.exists = true; t.chains == nil {
		t.chains = map[string]*rawChain{}
	}
	t.chains[id.name] = c
}

// observed is what a reading of the kernel means.
type observed struct {
	state  *state
	kernel kernelState
	// text says what drifted, one line a chain.
	text []string
	// otherLayout says that another version has made what there is.
	otherLayout bool
}

// interpret finds out which services the rules stand for, and what in the kernel is not as these
// services want it.
func (l *layout) interpret(r *raw) (*observed, error) {
	reading := &reading{l: l, raw: r}
	table, err := servicemodel.NewTable(reading.contents())
	if err != nil {
		return nil, fmt.Errorf("what the kernel holds: %w", err)
	}
	o := &observed{}
	if err := reading.unread; err != nil {
		o.otherLayout = errors.Is(err, settings.ErrLayout)
		o.text = []string{fmt.Sprintf("%s: %v", chainID{0, nat, l.names.settings()}, err)}
	}
	local := l.localnetOf(r)
	if l.localhost(nft.IPv4, &reading.c.Rules) {
		local.before = reading.localnetBefore
	}
	var wanted changes // from nothing: every chain that should be there
	o.state, wanted = l.step(&state{}, servicemodel.Diff(nil, table), local.before)
	o.kernel = kernelState{
		shared: map[chainID][]rule{}, drift: map[chainID]*chainChange{}, needed: map[chainID]bool{},
		localnet: local, versions: l.versionsOf(r), nextVersion: newVersion(), uses: l.usesOf(r),
	}
	l.compare(r, o, wanted)
	l.compareVersions(r, o)
	if l.localhost(nft.IPv4, &o.state.rules) && !r.routeLocalnet {
		o.text = append(o.text, "sysctl net.ipv4.conf.all.route_localnet is 0")
	}
	return o, nil
}

// compareVersions looks whether there is one version, or none where there is nothing.
func (l *layout) compareVersions(r *raw, o *observed) {
	versions, surplus := o.kernel.versions, o.kernel.versions
	o.kernel.unversioned = len(versions) == 0 && r.chain(chainID{0, nat, l.names.settings()}) != nil
	if o.state.present[0] {
		if len(versions) == 0 {
			missing := chainID{0, nat, l.names.prefix + "-" + kindVersion}
			o.text = append(o.text, fmt.Sprintf("%s is missing", missing))
			return
		}
		surplus = versions[1:]
	}
	for _, v := range surplus {
		o.text = append(o.text, fmt.Sprintf("%s does not belong", l.versionID(v)))
	}
}

// compare holds what should be there against what is.
func (l *layout) compare(r *raw, o *observed, wanted changes) {
	for _, w := range wanted.sorted() {
		found := r.chain(w.id)
		var have []rule
		if found != nil {
			have = l.ours(w.id, found.rules, w.after, w.shared)
		}
		if found == nil || !sameRules(have, w.after) {
			o.drifted(&chainChange{id: w.id, shared: w.shared, existed: found != nil, exists: true,
				before: have, after: w.after})
		}
	}
	for i := range nft.Families {
		for _, t := range tables {
			o.kernel.tables[i][t] = r.tables[i][t].exists
			l.compareTable(r, o, uint8(i), t, wanted)
		}
	}
}

// compareTable looks at the chains of a table one by one: whether they are wanted, and whether
// rules of others lead to them.
func (l *layout) compareTable(r *raw, o *observed, i uint8, t tableID, wanted changes) {
	chains := r.tables[i][t].chains
	ours := map[string]int{} // how many of our rules lead to a chain
	for _, name := range slices.Sorted(maps.Keys(chains)) {
		c, id := chains[name], chainID{i, t, name}
		rules := c.rules
		switch {
		case isBase(t, name), name == l.names.localnet():
			o.kernel.shared[id] = c.rules
			var want []rule
			if w := wanted[id]; w != nil {
				want = w.after
			}
			rules = l.ours(id, c.rules, want, true)
			if len(want) == 0 && len(rules) > 0 {
				o.drifted(&chainChange{id: id, shared: true, existed: true, before: rules})
			}
		case !l.names.owned(name):
			rules = nil
		case wanted[id] == nil:
			o.drifted(&chainChange{id: id, existed: true, before: c.rules})
		}
		for j := range rules {
			if to := rules[j].chain; to != "" {
				ours[to]++
			}
		}
	}
	for name, c := range chains {
		foreign := int(c.Use) - len(c.rules) - ours[name]
		if foreign > 0 && l.names.leadable(name) {
			o.kernel.needed[chainID{i, t, name}] = true
		}
	}
}

// ours returns the rules of a chain that are ours: of a shared one those that we want there, and
// those that lead to our chains.
func (l *layout) ours(id chainID, rules, want []rule, shared bool) []rule {
	if !shared {
		return rules
	}
	var own []rule
	for i := range rules {
		if l.own(id, &rules[i], want) {
			own = append(own, rules[i])
		}
	}
	return own
}

func (l *layout) own(id chainID, r *rule, want []rule) bool {
	return isBase(id.table, id.name) && l.names.entry(r.chain) ||
		slices.ContainsFunc(want, func(w rule) bool { return w.same(r) })
}

// drifted notes a chain that is not as it should be.
func (o *observed) drifted(x *chainChange) {
	o.kernel.drift[x.id] = x
	what := ""
	switch {
	case !x.existed:
		what = "is missing"
	case !x.exists && !x.shared:
		what = "does not belong"
	default:
		what = describeDifference(x.before, x.after, nft.Families[x.id.family].Model)
	}
	o.text = append(o.text, fmt.Sprintf("%s %s", x.id, what))
}

// maxDrift is how many chains are described; of more, such as all that kube-proxy left, only the
// number is told.
const maxDrift = 50

// summary returns the lines that describe the drift.
func (o *observed) summary() []string {
	if len(o.text) <= maxDrift {
		return o.text
	}
	return append(o.text[:maxDrift:maxDrift], fmt.Sprintf("and %d more chains",
		len(o.text)-maxDrift))
}

// describeDifference says how rules differ from those that should be there.
func describeDifference(before, after []rule, f servicemodel.Family) string {
	edits := editsBetween(before, after)
	missing, surplus, first := 0, 0, ""
	note := func(s string) {
		if first == "" {
			first = s
		}
	}
	for _, e := range edits {
		switch e.kind {
		case editInsert:
			missing++
			note("missing: " + after[e.rule].text(f))
		case editReplace:
			missing, surplus = missing+1, surplus+1
			note("not: " + before[e.at].text(f))
		case editDelete:
			surplus++
			note("surplus: " + before[e.at].text(f))
		}
	}
	return fmt.Sprintf("lacks %d and has %d surplus rules; %s", missing, surplus, first)
}
