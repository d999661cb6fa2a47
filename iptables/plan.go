package iptables

import (
	"fmt"
	"slices"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/sysctls"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
)

// kernelState describes the kernel, except for the rules of a state.
type kernelState struct {
	tables [tableCount]bool
	// shared are the shared chains that exist, with all their rules.
	shared map[chainID][]rule
	// drift are the chains that differ from the state.
	drift map[chainID]*chainChange
	// inTheWay names a chain of another program that has one of our names. In that case, nothing
	// can be written.
	inTheWay string
	// needed are our chains to which rules of other programs jump.
	needed map[chainID]bool
	// sysctls are the values of sysctls, with the earlier values to restore. kept is part of the
	// next [localnet].
	sysctls sysctls.State
	kept    bool
	// versions are the versions of the instance; normally there is exactly one. nextVersion is the
	// version after the next commit. unversioned says that the instance has no version.
	versions    []chainID
	nextVersion uint32
	unversioned bool
	// uses is the sum over the chains in the kernel.
	uses uses
}

// plan is the content of a commit, in this order: tables, the version, new chains, rules, chains to
// delete.
type plan struct {
	l       *layout
	version *renewal         // nil if the version stays
	tables  [tableCount]bool // to create
	chains  []*chainChange
	needed  map[chainID]bool
	next    *state
	// sysctls are the sysctls that the commit sets and restores.
	sysctls sysctls.Change
	// gone are the tables to delete.
	gone [tableCount]bool
	base []chainID // base chains to delete
}

// plan plans the transaction that changes the kernel from k to the state next.
func (l *layout) plan(k *kernelState, next *state, ch changes) *plan {
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
			x.stays = !x.exists && (len(all) > len(x.before) || isBase(id) || k.needed[id])
		}
	}

	p.chains = ch.sorted()
	home := homeOf(&next.rules)
	if present := next.present[home]; len(p.chains) > 0 || present != (len(k.versions) == 1) {
		p.version = l.renew(k, home, present)
		p.tables[nat.of(home)] = present && !k.tables[nat.of(home)]
	}

	for _, x := range p.chains {
		p.tables[x.id.table] = p.tables[x.id.table] || x.exists && !k.tables[x.id.table]
	}
	p.sysctls = k.sysctls.Plan(sysctls.Loopback(&next.rules))
	return p
}

// empty reports whether the plan sends nothing.
func (p *plan) empty() bool { return p.version == nil }

// ruleset returns the rules before and after.
func (x *chainChange) ruleset() []rule { return append(slices.Clone(x.before), x.after...) }

// creates reports whether a change creates its chain. removes reports whether it deletes the chain.
func (x *chainChange) creates() bool { return x.exists && !x.existed }
func (x *chainChange) removes() bool { return x.existed && !x.exists && !x.stays }

// edited returns the chains whose rules are changed one by one. Their handles must be known.
func (p *plan) edited() []*chainChange {
	var l []*chainChange
	for _, x := range p.chains {
		if x.existed && !x.removes() && (x.shared || len(x.before) > 0) {
			l = append(l, x)
		}
	}

	return l
}

// handles are the handles of our rules in a chain before the plan, in their order. first is the
// handle of the chain's first rule.
type handles struct {
	rules []uint64
	first uint64
}

// Rough sizes of the messages for a chain and for a rule.
const (
	chainBytes = 64
	ruleBytes  = 400
)

// encode appends the plan to a batch, and counts its messages and bytes.
func (p *plan) encode(b *rawnl.Batch, known map[chainID]handles) backends.Stats {
	rules := 0
	for _, x := range p.chains {
		rules += len(x.after)
	}
	b.Grow(len(p.chains)+rules, chainBytes*len(p.chains)+ruleBytes*rules)
	e := newEncoder(b)
	for t, made := range p.tables {
		if made {
			e.tables[t].EnsureTable()
		}
	}

	if p.version != nil {
		e.encodeVersion(p.version)
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
	return backends.Stats{Messages: b.Len(), Bytes: b.Size(), Elements: e.rules}
}

// encodeRemovals flushes all chains to delete before it deletes the first, because they jump to
// each other.
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
	for t, gone := range p.gone {
		if gone {
			e.tables[t].DeleteEmptyTable()
		}
	}
}

// deletes reports whether the plan deletes the chain of a change. x may be nil.
func (p *plan) deletes(x *chainChange) bool { return x != nil && x.removes() && !p.needed[x.id] }

// editRules changes the rules of a chain by their handles. It inserts first, while every old rule
// still exists as a position. The kernel puts each new rule directly before the old rule, so
// several new rules keep their order.
func (e *encoder) editRules(x *chainChange, h handles) {
	edits := editsBetween(x.before, x.after)
	var last []*rule
	for _, d := range edits {
		switch {
		case d.kind != editInsert:
		case d.at < len(h.rules):
			e.rule(x.id, nft.Before, h.rules[d.at], &x.after[d.rule])
		default:
			last = append(last, &x.after[d.rule])
		}
	}

	// In a shared chain, the rules of other programs come after all of ours.
	at, handle := nft.Last, uint64(0)
	switch {
	case x.shared && len(h.rules) > 0:
		at, handle = nft.After, h.rules[len(h.rules)-1]
		slices.Reverse(last) // each is put directly after our last old rule
	case x.shared && h.first != 0:
		at, handle = nft.Before, h.first
	}

	for _, r := range last {
		e.rule(x.id, at, handle, r)
	}
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

// Stats counts the messages of the plan. It does not need the real handles.
func (p *plan) Stats() backends.Stats {
	known := map[chainID]handles{}
	for _, x := range p.edited() {
		known[x.id] = handles{rules: slices.Repeat([]uint64{1}, len(x.before))}
	}
	var b rawnl.Batch
	return p.encode(&b, known)
}

// String names the chain in errors.
func (c chainID) String() string {
	return fmt.Sprintf("chain %s of table %s", c.name, c.table)
}

// handlesOf picks the handles of our rules from all rules of a chain. It returns false if the
// change was made for other rules.
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

	return h, slices.Equal(rules, x.before) // opaque rules may be equal here
}

// sweep extends a plan that removes everything of ours, or of a family: it also deletes the base
// chains and tables that become empty. Base chains that we do not use stay, unless they are deleted
// with their table. If another program has used such a chain or table since the reading, the kernel
// refuses the plan.
func (p *plan) sweep(r *raw) {
	if p.version == nil {
		return
	}
	changes := map[chainID]*chainChange{}
	for _, x := range p.chains {
		changes[x.id] = x
	}
	for t, exists := range r.tables {
		p.gone[t] = exists && !p.next.present[table(t).family()]
	}
	swept := p.gone
	var others []chainID // base chains that we do not use
	for _, id := range r.sorted() {
		c, x := r.chains[id], changes[id]
		version := p.l.isVersion(id) && c.Use == 0
		switch free := c.free(x); {
		case !swept[id.table]:
		case free && isBase(id):
			p.base = append(p.base, id)
		case free:
			others = append(others, id)
		case !p.deletes(x) && !version:
			p.gone[id.table] = false
		}
	}

	for _, id := range others {
		if p.gone[id.table] {
			p.base = append(p.base, id)
		}
	}
}

// free reports whether a chain is a base chain that accepts, and has no rules except ours that the
// change x removes. x may be nil.
func (c *rawChain) free(x *chainChange) bool {
	ours := 0
	if x != nil {
		ours = len(x.before)
	}
	return c.Type != "" && !c.Drops && int(c.Use) == ours
}
