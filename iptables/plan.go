package iptables

import (
	"fmt"
	"maps"
	"slices"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/nfnl"
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

// Sizes of messages, roughly: that of a chain, of a rule, and what a list of clients adds.
const (
	chainBytes  = 64
	ruleBytes   = 400
	recentBytes = 270
)

// grow makes room for the plan in a batch.
func (p *plan) grow(b *nfnl.Batch) {
	messages, bytes := 0, 0
	for _, x := range p.chains {
		messages += 1 + len(x.after)
		bytes += chainBytes + ruleBytes*len(x.after)
		if n := len(x.after); n > 0 && x.after[n-1].recent.kind != recentNone {
			bytes += recentBytes * n
		}
	}
	b.Grow(messages, bytes)
}

// encode appends the plan to a batch.
func (p *plan) encode(b *nfnl.Batch, known map[chainID]handles) {
	p.grow(b)
	e := &encoder{batch: b}
	for i, f := range families {
		e.f = f
		for _, t := range tables {
			if p.tables[i][t] {
				e.addTable(t)
			}
		}
	}
	if p.version != nil {
		e.encodeVersion(p.version, p.l)
	}
	for _, x := range p.chains {
		if x.creates() {
			e.f = families[x.id.family]
			e.create(x)
		}
	}
	for _, x := range p.chains {
		e.f = families[x.id.family]
		switch {
		case x.removes():
		case len(x.before) == 0 && !x.shared:
			for i := range x.after {
				e.appendRuleTo(x.id.table, x.id.name, &x.after[i])
			}
		default:
			e.editRules(x, known[x.id])
		}
	}
	p.encodeRemovals(e)
}

func (e *encoder) create(x *chainChange) {
	for _, c := range baseChains(x.id.table) {
		if c.name == x.id.name {
			e.addBaseChain(x.id.table, c)
			return
		}
	}
	e.addChain(x.id.table, x.id.name)
}

// encodeRemovals empties all chains that go before it deletes the first: they lead to each other.
func (p *plan) encodeRemovals(e *encoder) {
	for _, x := range p.chains {
		if x.removes() && len(x.before) > 0 {
			e.f = families[x.id.family]
			e.flush(x.id.table, x.id.name)
		}
	}
	for _, x := range p.chains {
		if x.removes() && !p.needed[x.id] {
			e.f = families[x.id.family]
			e.deleteChain(x.id.table, x.id.name)
		}
	}
	for _, id := range p.base {
		e.f = families[id.family]
		e.deleteChain(id.table, id.name)
	}
	for i, f := range families {
		for _, t := range tables {
			if p.gone[i][t] {
				e.f = f
				e.deleteTable(t)
			}
		}
	}
}

// editRules changes the rules of a chain by their handles. What is inserted comes first, while
// every rule is still there to be inserted before; the kernel puts each right before that rule, so
// that several come in their order.
func (e *encoder) editRules(x *chainChange, h handles) {
	t, name := x.id.table, x.id.name
	edits := editsBetween(x.before, x.after)
	for _, d := range edits {
		if d.kind != editInsert {
			continue
		}
		r := &x.after[d.rule]
		switch {
		case d.at < len(h.rules):
			e.insertRule(t, name, h.rules[d.at], r)
		case x.shared && len(h.rules) == 0 && h.first != 0:
			e.insertRule(t, name, h.first, r)
		case x.shared && len(h.rules) > 0: // below, in reverse
		default:
			e.appendRuleTo(t, name, r)
		}
	}
	if x.shared && len(h.rules) > 0 { // the rules of others come after all of ours
		last := h.rules[len(h.rules)-1]
		for _, d := range slices.Backward(edits) {
			if d.kind == editInsert && d.at == len(h.rules) {
				e.insertRuleAfter(t, name, last, &x.after[d.rule])
			}
		}
	}
	for _, d := range edits {
		switch d.kind {
		case editReplace:
			e.replaceRule(t, name, h.rules[d.at], &x.after[d.rule])
		case editDelete:
			e.deleteRule(t, name, h.rules[d.at])
		}
	}
}

// stats counts what a plan sends. Handles do not matter for that.
func (p *plan) stats() dataplane.Stats {
	known := map[chainID]handles{}
	for _, x := range p.edited() {
		known[x.id] = handles{rules: slices.Repeat([]uint64{1}, len(x.before))}
	}
	var b nfnl.Batch
	p.encode(&b, known)
	return dataplane.Stats{Messages: b.Len(), Bytes: b.Size()}
}

// String names the chain in errors.
func (c chainID) String() string {
	return fmt.Sprintf("chain %s of %s", c.name, families[c.family].within(c.table))
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
	if len(rules) != len(x.before) {
		return h, false
	}
	for i := range rules {
		if rules[i] != x.before[i] { // also where neither is understood
			return h, false
		}
	}
	return h, true
}

// sweep adds to a plan that removes everything of ours the base chains and tables that then have
// nothing in them. Base chains that we do not use stay, unless they go with their table. Where
// somebody else put something there meanwhile, the kernel refuses the plan.
func (p *plan) sweep(r *raw) {
	if p.version == nil {
		return
	}
	going, own := map[chainID]bool{}, map[chainID]int{}
	for _, x := range p.chains {
		going[x.id] = x.removes() && !p.needed[x.id]
		own[x.id] = len(x.before)
	}
	for i := range families {
		for _, t := range tables {
			table := &r.tables[i][t]
			left := 0
			var base, others []chainID
			for _, name := range slices.Sorted(maps.Keys(table.chains)) {
				id, c := chainID{uint8(i), t, name}, table.chains[name]
				_, version := p.l.names.parseVersion(name)
				switch accepts := c.base && c.policy == verdictAccept && int(c.use) == own[id]; {
				case accepts && isBase(t, name):
					base = append(base, id)
				case accepts:
					others = append(others, id)
				case !going[id] && !version:
					left++
				}
			}
			switch {
			case !table.exists:
			case left == 0:
				p.gone[i][t] = true
				p.base = append(p.base, others...)
				fallthrough
			default:
				p.base = append(p.base, base...)
			}
		}
	}
}
