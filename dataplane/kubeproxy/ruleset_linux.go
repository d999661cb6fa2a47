package kubeproxy

import (
	"bytes"
	"context"

	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/internal/rawnl"
)

// nfproto are the numbers of the families.
var nfproto = map[string]uint8{"ip": unix.NFPROTO_IPV4, "ip6": unix.NFPROTO_IPV6}

// planRuleset plans for what nf_tables has. Readings that others interrupt are worth nothing, and
// need no error: the transaction, or the next look at the generation, finds that.
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
		t := Table{Family: family}
		var c chain
		it := rawnl.Attrs(m.Attrs)
		for it.Next() {
			switch it.Type() {
			case unix.NFTA_CHAIN_TABLE:
				t.Name = it.Text()
			case unix.NFTA_CHAIN_NAME:
				c.name = it.Text()
			case unix.NFTA_CHAIN_HOOK:
				c.base = true
			}
		}
		chains[t] = append(chains[t], c)
		return it.Err()
	})
	return err
}

// readRules returns the rules of a chain that lead to other chains.
func (k *kernel) readRules(ctx context.Context, c Chain) ([]Rule, error) {
	var b rawnl.Batch
	b.Message(rawnl.SubsysNFTables, unix.NFT_MSG_GETRULE, 0, nfproto[c.Family], 0,
		rawnl.Object{Verb: "list", Kind: "rules", Within: "chain " + c.String()})
	b.Text(unix.NFTA_RULE_TABLE, c.Name)
	b.Text(unix.NFTA_RULE_CHAIN, c.Chain)
	var rules []Rule
	_, err := k.nf.DumpThrough(ctx, &b, func(m rawnl.Message) error {
		r := Rule{Chain: c}
		err := r.decode(m.Attrs)
		if r.Target != "" {
			rules = append(rules, r)
		}
		return err
	})
	return rules, err
}

// decode reads of a rule where it leads to, and its comment: all that it takes to know it.
func (r *Rule) decode(attrs []byte) error {
	it := rawnl.Attrs(attrs)
	for it.Next() {
		switch it.Type() {
		case unix.NFTA_RULE_HANDLE:
			r.Handle = it.U64()
		case unix.NFTA_RULE_EXPRESSIONS:
			list := it.Nest()
			for list.Next() {
				if err := r.decodeExpr(list.Data()); err != nil {
					return err
				}
			}
			if err := list.Err(); err != nil {
				return err
			}
		case unix.NFTA_RULE_USERDATA:
			r.Comment = userComment(it.Data())
		}
	}
	return it.Err()
}

// userComment returns the comment that a rule has in its user data, where nft puts it: type, length
// and text, the type 0 being the comment's (NFTNL_UDATA_RULE_COMMENT in libnftnl).
func userComment(data []byte) string {
	for len(data) >= 2 && len(data) >= 2+int(data[1]) {
		if data[0] == 0 {
			text, _, _ := bytes.Cut(data[2:2+int(data[1])], []byte{0})
			return string(text)
		}
		data = data[2+int(data[1]):]
	}
	return ""
}

// decodeExpr reads an expression, if it is a verdict or the comment match of xtables.
func (r *Rule) decodeExpr(attrs []byte) error {
	var name string
	var data rawnl.AttrIter
	it := rawnl.Attrs(attrs)
	for it.Next() {
		switch it.Type() {
		case unix.NFTA_EXPR_NAME:
			name = it.Text()
		case unix.NFTA_EXPR_DATA:
			data = it.Nest()
		}
	}
	switch name {
	case "immediate":
		r.Target = nested(data, unix.NFTA_IMMEDIATE_DATA, unix.NFTA_DATA_VERDICT,
			unix.NFTA_VERDICT_CHAIN)
	case "match":
		if nested(data, unix.NFTA_MATCH_NAME) == "comment" {
			r.Comment = nested(data, unix.NFTA_MATCH_INFO)
		}
	}
	return it.Err()
}

// nested returns the text of the attribute at a path of types, "" if there is none.
func nested(it rawnl.AttrIter, path ...uint16) string {
	for it.Next() {
		switch {
		case it.Type() != path[0]:
		case len(path) == 1:
			text, _, _ := bytes.Cut(it.Data(), []byte{0})
			return string(text)
		default:
			return nested(it.Nest(), path[1:]...)
		}
	}
	return ""
}

// commit deletes what a plan has of nf_tables, if the ruleset is of the generation gen. Chains are
// flushed before the first is deleted, since their rules lead to one another.
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
