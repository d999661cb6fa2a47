package nft

import (
	"hash/fnv"
	"slices"
	"strings"

	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/servicemodel"
)

// Rule is a rule or a part of a rule: matches and statements. The empty rule does nothing.
type Rule []statement

// statement is a match or a statement: its text in nft's language, and the kernel's expressions.
type statement struct {
	text  string
	exprs func(b *rawnl.Batch) // appends its expressions
	set   *AnonymousSet        // the set that the expressions look up, if any
}

func rule(text string, exprs func(b *rawnl.Batch)) Rule {
	return Rule{{text: text, exprs: exprs}}
}

// Join builds one rule from several parts.
func Join(parts ...Rule) Rule { return slices.Concat(parts...) }

// Text returns the rule as nft writes it.
func (r Rule) Text() string {
	l := make([]string, len(r))
	for i := range r {
		l[i] = r[i].text
	}
	return strings.Join(l, " ")
}

// Hash identifies a rule by its text and its messages. The hash is stored in the rule's user data.
// So a reading can compare a rule with the wanted one without decoding expressions.
func (r Rule) Hash() uint64 { return r.hash(&rawnl.Batch{}) }

// hash is Hash with a batch for the messages.
func (r Rule) hash(b *rawnl.Batch) uint64 {
	b.Reset()
	e := Encoder{b: b, f: IPv4}
	e.rule("", r)
	for i := range r {
		b.Text(attrRuleUserData, r[i].text)
	}
	h := fnv.New64a()
	h.Write(b.Bytes())
	return h.Sum64()
}

// AnonymousSet is a set without a name that one rule looks up: protocols, or a map of verdicts by
// number.
type AnonymousSet struct {
	Protocols []servicemodel.Protocol
	Verdicts  []Verdict
}

func (a *AnonymousSet) isMap() bool { return a.Verdicts != nil }

// name is the name of the set in messages. The kernel replaces %d by a number.
func (a *AnonymousSet) name() string {
	if a.isMap() {
		return "__map%d"
	}
	return "__set%d"
}

// Program contains the chains of a table, with their rules.
type Program []*ProgramChain

// ProgramChain is a chain with its rules.
type ProgramChain struct {
	Chain
	Rules []Rule
}

// Add appends a rule, built from its parts.
func (c *ProgramChain) Add(parts ...Rule) { c.Rules = append(c.Rules, Join(parts...)) }

// Hashes returns the hashes of the rules, in their order.
func (c *ProgramChain) Hashes() []uint64 {
	var l []uint64
	var b rawnl.Batch
	for _, r := range c.Rules {
		l = append(l, r.hash(&b))
	}
	return l
}

// Chain appends a chain to which other chains jump or go.
func (p *Program) Chain(name string) *ProgramChain { return p.add(Chain{Name: name}) }

// Filter appends a base chain of type filter.
func (p *Program) Filter(name string, hook uint32, priority int32) *ProgramChain {
	return p.add(Chain{Name: name, Type: "filter", Hook: hook, Prio: priority})
}

// NAT appends a base chain of type nat, which sees the first packet of each connection.
func (p *Program) NAT(name string, hook uint32, priority int32) *ProgramChain {
	return p.add(Chain{Name: name, Type: "nat", Hook: hook, Prio: priority})
}

// Route appends a base chain of type route, after which a packet whose mark has changed is routed
// again.
func (p *Program) Route(name string, hook uint32, priority int32) *ProgramChain {
	return p.add(Chain{Name: name, Type: "route", Hook: hook, Prio: priority})
}

func (p *Program) add(c Chain) *ProgramChain {
	chain := &ProgramChain{Chain: c}
	*p = append(*p, chain)
	return chain
}

// Has reports whether a chain is in the program.
func (p Program) Has(name string) bool {
	return slices.ContainsFunc(p, func(c *ProgramChain) bool { return c.Name == name })
}

// Base returns the base chains, where packets enter, and the other chains.
func (p Program) Base() (others, base Program) {
	for _, c := range p {
		if c.Type == "" {
			others = append(others, c)
		} else {
			base = append(base, c)
		}
	}

	return others, base
}

// Write adds all chains, and then the rules, because rules refer to chains.
func (p Program) Write(w Writer) {
	p.WriteChains(w)
	p.WriteRules(w)
}

// WriteChains adds all chains.
func (p Program) WriteChains(w Writer) {
	for _, c := range p {
		w.AddChain(&c.Chain)
	}
}

// WriteRules adds the rules to the chains.
func (p Program) WriteRules(w Writer) {
	for _, c := range p {
		for _, r := range c.Rules {
			w.AddRule(c.Name, r)
		}
	}
}
