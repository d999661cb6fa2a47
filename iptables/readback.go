package iptables

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/sysctls"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rendering"
	"github.com/kernlb/kernlb/servicemodel"
)

// rawChain is a chain with its rules.
type rawChain struct {
	nft.ChainInfo
	rules []rule
}

// raw is all tables as they were read.
type raw struct {
	tables [tableCount]bool // the tables that exist
	chains map[chainID]*rawChain
}

func (r *raw) put(id chainID, c *rawChain) {
	if r.chains == nil {
		r.chains = map[chainID]*rawChain{}
	}
	r.tables[id.table], r.chains[id] = true, c
}

func (r *raw) sorted() []chainID {
	return slices.SortedFunc(maps.Keys(r.chains), chainID.compare)
}

// observed is the meaning of a reading.
type observed struct {
	state  *state
	kernel kernelState
	// text describes the drift, one line for each chain. The first lines, whose number is absent,
	// name chains that are missing or empty: these are often why others differ.
	text   []string
	absent int
	// otherLayout says that a different version of kernlb has made the instance.
	otherLayout bool
}

// adopt makes a reading the known state of the kernel.
func (b *backend) adopt(r *raw) (*backends.Observation, error) {
	all, inTheWay := r, ""
	if !b.takeOver {
		if inTheWay = b.l.foreign(r); inTheWay != "" {
			r = &raw{} // none of the chains are ours
		}
	}

	o, err := b.l.interpret(r, b.written)
	if err != nil {
		return nil, fmt.Errorf("iptables: %w", err)
	}
	o.kernel.inTheWay, o.kernel.uses = inTheWay, b.l.usesOf(all)
	o.kernel.sysctls = b.found.sysctls.Read(o.kernel.sysctls.Records,
		o.state.rules.MasqueradeMark != 0)
	b.state, b.found, b.observed = o.state, o.kernel, true
	return &backends.Observation{Table: o.state.table, Drift: o.summary(),
		OtherLayout: o.otherLayout}, nil
}

// interpret determines the services for which the rules were made, and the differences between the
// kernel and the rules of these services. written is the table of the last commit, nil before the
// first. It has the health checks, which the rules describe only in part.
func (l *layout) interpret(r *raw, written *servicemodel.Table) (*observed, error) {
	reading := &reading{l: l, raw: r, written: written}
	table, err := servicemodel.NewTable(reading.contents())
	if err != nil {
		return nil, fmt.Errorf("what the kernel holds: %w", err)
	}
	if table.Rules().MasqueradeMark != 0 {
		table = table.Apply(&servicemodel.ChangeSet{Old: table, Health: reading.healthChecks()})
	}
	o := &observed{}
	if err := reading.unread; err != nil {
		o.otherLayout = errors.Is(err, rendering.ErrLayout)
		o.text = []string{fmt.Sprintf("%s: %v", l.settingsIn(r), err)}
	}

	o.kernel = kernelState{
		shared: map[chainID][]rule{}, drift: map[chainID]*chainChange{}, needed: map[chainID]bool{},
		kept: reading.localnet.kept, versions: l.versionsOf(r), nextVersion: newVersion(),
	}
	if was := reading.localnet.before; was != "" {
		o.kernel.sysctls.Records = map[string]string{sysctls.RouteLocalnet: was}
	}
	if !l.localhost(nft.IPv4, &reading.c.Rules) {
		o.kernel.kept = l.guardsIn(r)
	}
	var wanted changes // the changes from nothing: every chain that should exist
	o.state, wanted = l.step(&state{}, servicemodel.Diff(nil, table), &o.kernel)
	if settings := l.settingsIn(r); r.chains[settings] == nil && l.ownsAny(r) {
		o.lack(settings, "is missing") // without the settings, the other chains have no meaning
	}
	l.compare(r, o, wanted)
	l.compareVersions(r, o)
	return o, nil
}

// compareVersions checks that an instance has exactly one version, and that there is no version
// without an instance.
func (l *layout) compareVersions(r *raw, o *observed) {
	versions, surplus := o.kernel.versions, o.kernel.versions
	o.kernel.unversioned = len(versions) == 0 && r.chains[l.settingsIn(r)] != nil
	if home := homeOf(&o.state.rules); o.state.present[home] {
		if len(versions) == 0 {
			missing := nat.of(home).chain(l.names.prefix + "-" + kindVersion)
			o.text = append(o.text, fmt.Sprintf("%s is missing", missing))
			return
		}

		surplus = versions[1:]
	}

	for _, v := range surplus {
		o.text = append(o.text, fmt.Sprintf("%s does not belong", v))
	}
}

// compare compares the desired chains with the chains in the kernel, and finds the chains to which
// rules of other programs jump. A chain that is not desired but has such a jump is emptied, but not
// deleted.
func (l *layout) compare(r *raw, o *observed, wanted changes) {
	for _, w := range wanted.sorted() {
		found := r.chains[w.id]
		var have []rule
		if found != nil {
			have = l.ours(w.id, found.rules, w.after, w.shared)
		}
		if found == nil || !sameRules(have, w.after) {
			o.drifted(&chainChange{id: w.id, shared: w.shared, existed: found != nil, exists: true,
				before: have, after: w.after})
		}
	}

	o.kernel.tables = r.tables
	shared := map[chainID][]rule{} // our rules in chains that other programs use, too
	led := map[chainID]int{}       // the number of our rules that jump to a chain
	for id, c := range r.chains {
		rules := c.rules
		switch {
		case isBase(id), id.name == l.names.localnet():
			o.kernel.shared[id] = c.rules
			var want []rule
			if w := wanted[id]; w != nil {
				want = w.after
			}
			rules = l.ours(id, c.rules, want, true)
			shared[id] = rules
		case !l.owns(id, c):
			rules = nil
		}

		for i := range rules {
			led[rules[i].leads(id)]++
		}
	}

	for _, id := range r.sorted() {
		c := r.chains[id]
		owned := l.owns(id, c)
		needed := int(c.Use) > len(c.rules)+led[id] && (owned || id.name == l.names.localnet())
		if needed {
			o.kernel.needed[id] = true
		}
		switch {
		case wanted[id] != nil:
		case owned && needed && len(c.rules) == 0: // right, unless the next change wants it
			o.kernel.drift[id] = &chainChange{id: id, existed: true}
		case owned:
			o.drifted(&chainChange{id: id, existed: true, before: c.rules})
		case len(shared[id]) > 0:
			o.drifted(&chainChange{id: id, shared: true, existed: true, before: shared[id]})
		}
	}
}

// owns reports whether the instance may flush and delete a chain. It may not delete its version,
// unless a rule in that chain or a jump to it made the version useless.
func (l *layout) owns(id chainID, c *rawChain) bool {
	return l.names.owned(id.name) || l.isVersion(id) && c.Use > 0
}

// ownsAny reports whether the instance owns a chain.
func (l *layout) ownsAny(r *raw) bool {
	for id, c := range r.chains {
		if l.owns(id, c) {
			return true
		}
	}

	return false
}

// ours returns our rules in a chain. In a shared chain, these are the desired rules and the rules
// that jump to our chains.
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
	return isBase(id) && l.names.entry(r.chain) ||
		slices.ContainsFunc(want, func(w rule) bool { return w.same(r) })
}

// drifted records a chain that differs from the desired chain.
func (o *observed) drifted(x *chainChange) {
	o.kernel.drift[x.id] = x
	what := ""
	switch {
	case !x.existed:
		o.lack(x.id, "is missing")
		return
	case !x.exists && !x.shared && len(x.before) == 0:
		o.lack(x.id, "is empty")
		return
	case !x.exists && !x.shared:
		what = "does not belong"
	default:
		what = describeDifference(x.before, x.after, x.id.table.family().Model)
	}

	o.text = append(o.text, fmt.Sprintf("%s %s", x.id, what))
}

// lack describes a chain that is missing or empty.
func (o *observed) lack(id chainID, what string) {
	o.text = slices.Insert(o.text, o.absent, fmt.Sprintf("%s %s", id, what))
	o.absent++
}

// maxDrift limits the number of chains that are described. If more chains drifted, for example
// after kube-proxy, the text has only their number.
const maxDrift = 50

// summary returns the lines that describe the drift.
func (o *observed) summary() []string {
	if len(o.text) <= maxDrift {
		return o.text
	}
	return append(o.text[:maxDrift:maxDrift], fmt.Sprintf("and %d more chains",
		len(o.text)-maxDrift))
}

// describeDifference describes the differences between rules and the desired rules.
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
