package nft

import (
	"hash/fnv"
	"strings"
)

// Rule is a rule, or a piece of one, as nft writes it and as the kernel takes it. The text
// determines the rest.
type Rule struct {
	Text  string
	Exprs []Expr
	Sets  []AnonymousSet // that the expressions look up
}

// Join makes one rule of several pieces.
func Join(pieces ...Rule) Rule {
	var r Rule
	var text []string
	for _, p := range pieces {
		if p.Text != "" {
			text = append(text, p.Text)
		}
		r.Exprs = append(r.Exprs, p.Exprs...)
		r.Sets = append(r.Sets, p.Sets...)
	}
	r.Text = strings.Join(text, " ")
	return r
}

// Hash identifies a rule. It is kept in the rule's user data, so that what is in the kernel can be
// told from what should be there without understanding expressions. It is the hash of the text.
func (r *Rule) Hash() uint64 {
	h := fnv.New64a()
	h.Write([]byte(r.Text))
	return h.Sum64()
}

// AnonymousSet is a set without a name that one rule looks up: the protocols that have ports or,
// with Jumps, a map of verdicts by number.
type AnonymousSet struct {
	ID    uint32 // its number in the transaction
	Jumps []VerdictTo
}

// Program is what the rules of a table are: chains, with their rules.
type Program []ProgramChain

// ProgramChain is a chain with its rules.
type ProgramChain struct {
	Chain
	Rules []Rule
}

// Hashes returns the hashes of the rules, in their order.
func (c *ProgramChain) Hashes() []uint64 {
	var l []uint64
	for i := range c.Rules {
		l = append(l, c.Rules[i].Hash())
	}
	return l
}

// Add appends a chain that other chains jump to.
func (p *Program) Add(name string, rules ...Rule) {
	*p = append(*p, ProgramChain{Chain{Name: name}, rules})
}

// AddBase appends a base chain.
func (p *Program) AddBase(name, typ string, hook uint32, prio int32, rules ...Rule) {
	*p = append(*p, ProgramChain{Chain{Name: name, Type: typ, Hook: hook, Prio: prio}, rules})
}

// WriteChains adds the chains: all of them before any rule, since rules jump to chains.
func (p Program) WriteChains(w Writer) {
	for i := range p {
		w.AddChain(&p[i].Chain)
	}
}

// WriteRules adds the rules to the chains.
func (p Program) WriteRules(w Writer) {
	for i := range p {
		for j := range p[i].Rules {
			w.AddRule(p[i].Name, &p[i].Rules[j])
		}
	}
}
