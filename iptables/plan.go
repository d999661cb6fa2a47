package iptables

import (
	"fmt"
	"maps"
	"slices"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
)

// kernelState is what the kernel holds beside what a state stands for.
type kernelState struct {
	tables [2][len(tables)]bool
	// shared are the shared chains that exist, and all rules that they have.
	shared map[chainID][]rule
	// drift are the chains that are not as the state has them.
	drift map[chainID]*chainChange
	// needed are chains of ours that rules of others lead to.
	needed map[chainID]bool
	// localnet is what there is about the sysctl route_localnet.
	localnet localnet
	// versions are the versions of the instance, of which there should be one, and nextVersion
	// is what the next commit makes it. unversioned says that there is an instance without one.
	versions    []uint32
	nextVersion uint32
	unversioned bool
	// uses sums up how many rules there are and where they lead.
	uses uses
}

// plan is what a commit sends. In this order: tables, the version, chains that are new, rules,
// chains that are gone.
type plan struct {
	l       *layout
	version *renewal             // nil if the version stays
	tables  [2][len(tables)]bool // to be made
	chains  []*chainChange
	needed  map[chainID]bool
	next    *state
	// localnet says what becomes of the sysctl route_localnet.
	localnet sysctlChange
	// gone are tables that go altogether.
	gone [2][len(tables)]bool
	base []chainID // base chains that go
}

type sysctlChange uint8

const (
	sysctlKeep sysctlChange = iota
	sysctlOn                // after the guard is there
	sysctlOff               // before it goes
)

// plan makes the plan that leads from a state, and what else the kernel holds, to the state after
// the changes.
func (l *layout) plan(k *kernelState, old, next *state, ch changes) *plan {
	p := &plan{l: l, needed: k.needed, next: next}
	for id, d := range k.drift {
		x, stepped := ch[id]
		if !stepped {
			x = ch.of(id)
			x.shared, x.exists, x.after = d.shared, d.exists, d.after
		}
		x.existed, x.before = d.existed, d.before
	}
	for id, x := range ch {
		if x.shared {
			all, there := k.shared[id]
			x.existed, x.before = there, l.ours(id, all, x.ruleset(), true)
			x.stays = !x.exists && (len(all) > len(x.before) || isBase(id.table, id.name) ||
				k.needed[id])
		}
	}
	p.chains = ch.sorted()
	if present := next.present[0]; len(p.chains) > 0 || present != (len(k.versions) == 1) {
		p.version = k.renew(present)
		p.tables[0][nat] = present && !k.tables[0][nat]
	}
	for _, x := range p.chains {
		if x.exists && !k.tables[x.id.family][x.id.table] {
			p.tables[x.id.family][x.id.table] = true
		}
	}
	p.localnet = l.planLocalnet(k, &old.rules, &next.rules)
	return p
}

// empty reports whether nothing is to be sent.
func (p *plan) empty() bool { return p.version == nil }

// ruleset returns the rules before and after.
func (x *chainChange) ruleset() []rule { return append(slices.Clone(x.before), x.after...) }

// creates reports whether a change makes its chain, removes whether it deletes it.
func (x *chainChange) creates() bool { return x.exists && !x.existed }
func (x *chainChange) removes() bool { return x.existed && !x.exists && !x.stays }

// edited returns the chains whose rules are changed one by one: their handles must be known.
func (p *plan) edited() []*chainChange {
	var l []*chainChange
	for _, x := range p.chains {
		if x.existed && !x.removes() && (x.shared || len(x.before) > 0) {
			l = append(l, x)
		}
	}
	return l
}

// handles are the handles of the rules of a chain, before the plan: of ours, in their order. first
// is the handle of the first rule of all.
type handles struct {
	rules []uint64
	first uint64
}

// Sizes of messages, roughly: that of a chain and of a rule.
const (
	chainBytes = 64
	ruleBytes  = 400
)

// grow makes room for the plan in a batch.
func (p *plan) grow(b *rawnl.Batch) {
	messages, bytes := 0, 0
	for _, x := range p.chains {
		messages += 1 + len(x.after)
		bytes += chainBytes + ruleBytes*len(x.after)
	}
	b.Grow(messages, bytes)
}

// encode appends the plan to a batch, which it counts.
func (p *plan) encode(b *rawnl.Batch, known map[chainID]handles) dataplane.Stats {
	p.grow(b)
	e := newEncoder(b)
	for i := range p.tables {
		for t, make := range p.tables[i] {
			if make {
				e.tables[i][t].EnsureTable()
			}
		}
	}
	if p.version != nil {
		e.encodeVersion(p.version, p.l)
	}
	for _, x := range p.chains {
		if x.creates() {
			e.of(x.id).CreateChain(chainOf(x.id))
		}
	}
	for _, x := range p.chains {
		switch {
		case x.removes():
		case len(x.before) == 0 && !x.shared:
			for i := range x.after {
				e.rule(x.id, nft.Last, 0, &x.after[i])
			}
		default:
			e.editRules(x, known[x.id])
		}
	}
	p.encodeRemovals(e)
	return dataplane.Stats{Messages: b.Len(), Bytes: b.Size(), Elements: e.rules}
}

// encodeRemovals empties all chains that go before it deletes the first: they lead to each other.
func (p *plan) encodeRemovals(e *encoder) {
	for _, x := range p.chains {
		if x.removes() && len(x.before) > 0 {
			e.of(x.id).FlushChain(x.id.name)
		}
	}
	for _, x := range p.chains {
		if p.deletes(x) {
			e.of(x.id).DeleteUnusedChain(x.id.name)
		}
	}
	for _, id := range p.base {
		e.of(id).DeleteUnusedChain(id.name)
	}
	for i := range p.gone {
		for t, gone := range p.gone[i] {
			if gone {
				e.tables[i][t].DeleteEmptyTable()
			}
		}
	}
}

// deletes reports whether the plan deletes the chain of a change; nil is no change.
func (p *plan) deletes(x *chainChange) bool { return x != nil && x.removes() && !p.needed[x.id] }

// editRules changes the rules of a chain by their handles. What is inserted comes first, while
// every rule is still there to be inserted before; the kernel puts each right before that rule, so
// that several come in their order.
func (e *encoder) editRules(x *chainChange, h handles) {
	edits := editsBetween(x.before, x.after)
	var last []*rule
	for _, d := range edits {
		switch r := d.inserts(x); {
		case r != nil && d.at < len(h.rules):
			e.rule(x.id, nft.Before, h.rules[d.at], r)
		case r != nil:
			last = append(last, r)
		}
	}
	e.insertLast(x, h, last)
	for _, d := range edits {
		switch d.kind {
		case editReplace:
			e.rule(x.id, nft.InPlaceOf, h.rules[d.at], &x.after[d.rule])
		case editDelete:
			e.rules++
			e.of(x.id).DeleteRule(x.id.name, h.rules[d.at])
		}
	}
}

// inserts returns the rule that a step inserts; nil if it inserts none.
func (d ruleEdit) inserts(x *chainChange) *rule {
	if d.kind != editInsert {
		return nil
	}
	return &x.after[d.rule]
}

// insertLast inserts rules after those that the chain has of ours. In a shared chain, the rules of
// others come after all of ours.
func (e *encoder) insertLast(x *chainChange, h handles, rules []*rule) {
	at, handle := nft.Last, uint64(0)
	switch {
	case x.shared && len(h.rules) > 0:
		at, handle = nft.After, h.rules[len(h.rules)-1]
		slices.Reverse(rules) // each is put right after the last of before
	case x.shared && h.first != 0:
		at, handle = nft.Before, h.first
	}
	for _, r := range rules {
		e.rule(x.id, at, handle, r)
	}
}

// stats counts what a plan sends. Handles do not matter for that.
func (p *plan) stats() dataplane.Stats {
	known := map[chainID]handles{}
	for _, x := range p.edited() {
		known[x.id] = handles{rules: slices.Repeat([]uint64{1}, len(x.before))}
	}
	var b rawnl.Batch
	return p.encode(&b, known)
}

// String names the chain in errors.
func (c chainID) String() string {
	return fmt.Sprintf("chain %s of table %s %s", c.name, nft.Families[c.family].Name, c.table)
}

// handlesOf picks the handles of our rules from all rules of a chain. It returns false if they are
// not what the change was made for.
func (l *layout) handlesOf(x *chainChange, found []foundRule) (handles, bool) {
	var h handles
	var rules []rule
	want := x.ruleset()
	for i := range found {
		if i == 0 {
			h.first = found[i].handle
		}
		if x.shared && !l.own(x.id, &found[i].rule, want) {
			continue
		}
		h.rules = append(h.rules, found[i].handle)
		rules = append(rules, found[i].rule)
	}
	return h, slices.Equal(rules, x.before) // also where neither is understood
}

// sweep adds to a plan that removes everything of ours the base chains and tables that then have
// nothing in them. Base chains that we do not use stay, unless they go with their table. Where
// somebody else put something there meanwhile, the kernel refuses the plan.
func (p *plan) sweep(r *raw) {
	if p.version == nil {
		return
	}
	changes := map[chainID]*chainChange{}
	for _, x := range p.chains {
		changes[x.id] = x
	}
	for i := range r.tables {
		for _, t := range tables {
			if r.tables[i][t].exists {
				p.sweepTable(chainID{family: uint8(i), table: t}, &r.tables[i][t], changes)
			}
		}
	}
}

// sweepTable is sweep for one table, that of id.
func (p *plan) sweepTable(id chainID, table *rawTable, changes map[chainID]*chainChange) {
	empty := true
	var base, others []chainID
	for _, id.name = range slices.Sorted(maps.Keys(table.chains)) {
		x := changes[id]
		_, version := p.l.names.parseVersion(id.name)
		switch free := table.chains[id.name].free(x); {
		case free && isBase(id.table, id.name):
			base = append(base, id)
		case free:
			others = append(others, id)
		case !p.deletes(x) && !version:
			empty = false
		}
	}
	if empty {
		p.gone[id.family][id.table] = true
		p.base = append(p.base, others...)
	}
	p.base = append(p.base, base...)
}

// free reports whether a chain is a base chain that accepts, and has nothing but our rules, which
// go with the change x; nil is no change.
func (c *rawChain) free(x *chainChange) bool {
	ours := 0
	if x != nil {
		ours = len(x.before)
	}
	return c.Type != "" && !c.Drops && int(c.Use) == ours
}
