package kubeproxy

import (
	"context"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
)

// byName are the families of nf_tables by their names.
var byName = map[string]*nft.Family{nft.IPv4.Name: nft.IPv4, nft.IPv6.Name: nft.IPv6}

// query asks for objects of a table.
func (k *kernel) query(t Table) nft.Query {
	return nft.Query{Conn: k.nf, Family: byName[t.Family], Table: t.Name}
}

// planRuleset plans for the objects in nf_tables. If other programs interrupt a reading, it is
// worthless, but needs no error here: the transaction, or the next check of the generation, finds
// that.
func (k *kernel) planRuleset(ctx context.Context, p *Plan) error {
	r := &ruleset{chains: map[Table][]chain{}}
	for _, f := range families {
		if err := k.readChains(ctx, f, r.chains); err != nil {
			return err
		}
	}
	r.rules = func(c Chain) ([]Rule, error) { return k.readRules(ctx, c) }
	return p.planRuleset(r)
}

// readChains adds the chains of a family.
func (k *kernel) readChains(ctx context.Context, family string, chains map[Table][]chain) error {
	var b rawnl.Batch
	b.Message(rawnl.SubsysNFTables, nft.MsgGetChain, 0, byName[family].NFProto, 0,
		rawnl.Object{Verb: "list", Kind: "chains", Within: "family " + family})
	_, err := k.nf.DumpThrough(ctx, &b, func(m rawnl.Message) error {
		c, err := nft.DecodeChain(m.Attrs)
		t := Table{family, c.Table}
		chains[t] = append(chains[t], chain{c.Name, c.Type != ""})
		return err
	})
	return err
}

// readRules returns the rules of a chain that lead to other chains.
func (k *kernel) readRules(ctx context.Context, c Chain) ([]Rule, error) {
	var rules []Rule
	err := k.query(c.Table).Rules(ctx, c.Chain, func(r nft.RuleInfo) error {
		text := nft.ListRule(byName[c.Family].NFProto, r.Exprs)
		to := ruleTarget.FindStringSubmatch(text)
		if to == nil {
			return nil
		}
		rule := Rule{Chain: c, Handle: r.Handle, Target: to[1], Comment: nft.CommentOf(r.UserData)}
		if m := ruleComment.FindStringSubmatch(text); m != nil {
			rule.Comment = m[1]
		}
		rules = append(rules, rule)
		return nil
	})
	return rules, err
}

// commit deletes the objects of a plan in nf_tables, if the ruleset is of the generation gen. It
// flushes all chains before it deletes the first, because their rules lead to one another.
func (k *kernel) commit(ctx context.Context, p *Plan, gen uint32) error {
	var b rawnl.Batch
	in := func(t Table) *nft.Encoder { return nft.NewEncoder(&b, byName[t.Family], t.Name) }
	for _, r := range p.Rules {
		in(r.Table).DeleteRule(r.Chain.Chain, r.Handle)
	}
	for _, c := range p.Chains {
		in(c.Table).FlushChain(c.Chain)
	}
	for _, c := range p.Chains {
		in(c.Table).DeleteChain(c.Chain)
	}
	for _, t := range p.Tables {
		in(t).DeleteTable()
	}
	return k.nf.Commit(ctx, &b, gen)
}
