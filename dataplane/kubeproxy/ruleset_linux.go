package kubeproxy

import (
	"context"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
)

// nfproto are the numbers of the families.
var nfproto = map[string]uint8{"ip": unix.NFPROTO_IPV4, "ip6": unix.NFPROTO_IPV6}

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
	b.Message(rawnl.SubsysNFTables, unix.NFT_MSG_GETCHAIN, 0, nfproto[family], 0,
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
	err := k.eachRule(ctx, c.Table, c.Chain, func(r *nft.RuleInfo, text string) {
		to := ruleTarget.FindStringSubmatch(text)
		if to == nil {
			return
		}
		rule := Rule{Chain: c, Handle: r.Handle, Target: to[1], Comment: nft.CommentOf(r.UserData)}
		if m := ruleComment.FindStringSubmatch(text); m != nil {
			rule.Comment = m[1]
		}
		rules = append(rules, rule)
	})
	return rules, err
}

// eachRule calls fn for each rule of a chain, or of all chains of a table, with its text.
func (k *kernel) eachRule(ctx context.Context, t Table, chain string,
	fn func(*nft.RuleInfo, string)) error {
	var b rawnl.Batch
	b.Message(rawnl.SubsysNFTables, unix.NFT_MSG_GETRULE, 0, nfproto[t.Family], 0,
		rawnl.Object{Verb: "list", Kind: "rules", Name: chain, Within: "table " + t.String()})
	b.Text(unix.NFTA_RULE_TABLE, t.Name)
	if chain != "" {
		b.Text(unix.NFTA_RULE_CHAIN, chain)
	}
	_, err := k.nf.DumpThrough(ctx, &b, func(m rawnl.Message) error {
		r, err := nft.DecodeRule(m.Attrs)
		fn(&r, nft.ListRule(nfproto[t.Family], r.Exprs))
		return err
	})
	return err
}

// nested returns the text of the attribute at a path of types, "" if there is none.
func nested(it rawnl.AttrIter, path ...uint16) string {
	text, _, _ := strings.Cut(raw(it, path...), "\x00")
	return text
}

// raw returns the bytes of the attribute at a path of types, none if there is none.
func raw(it rawnl.AttrIter, path ...uint16) string {
	for it.Next() {
		switch {
		case it.Type() != path[0]:
		case len(path) == 1:
			return string(it.Data())
		default:
			return raw(it.Nest(), path[1:]...)
		}
	}
	return ""
}

// commit deletes the objects of a plan in nf_tables, if the ruleset is of the generation gen. It
// flushes all chains before it deletes the first, because their rules lead to one another.
func (k *kernel) commit(ctx context.Context, p *Plan, gen uint32) error {
	var b rawnl.Batch
	message := func(typ uint8, t Table, kind, name string) {
		b.Message(rawnl.SubsysNFTables, typ, 0, nfproto[t.Family], 0,
			rawnl.Object{Verb: "delete", Kind: kind, Name: name})
	}
	for _, r := range p.Rules {
		message(unix.NFT_MSG_DELRULE, r.Table, "rule to "+r.Target+" in chain", r.Chain.String())
		b.Text(unix.NFTA_RULE_TABLE, r.Name)
		b.Text(unix.NFTA_RULE_CHAIN, r.Chain.Chain)
		b.U64(unix.NFTA_RULE_HANDLE, r.Handle)
	}
	for _, c := range p.Chains {
		message(unix.NFT_MSG_DELRULE, c.Table, "rules of chain", c.String())
		b.Text(unix.NFTA_RULE_TABLE, c.Name)
		b.Text(unix.NFTA_RULE_CHAIN, c.Chain)
	}
	for _, c := range p.Chains {
		message(unix.NFT_MSG_DELCHAIN, c.Table, "chain", c.String())
		b.Text(unix.NFTA_CHAIN_TABLE, c.Name)
		b.Text(unix.NFTA_CHAIN_NAME, c.Chain)
	}
	for _, t := range p.Tables {
		message(unix.NFT_MSG_DELTABLE, t, "table", t.String())
		b.Text(unix.NFTA_TABLE_NAME, t.Name)
	}
	return k.nf.Commit(ctx, &b, gen)
}
