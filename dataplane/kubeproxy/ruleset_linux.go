package kubeproxy

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
)

// byName are the families of nf_tables by their names.
var byName = map[string]*nft.Family{nft.IPv4.Name: nft.IPv4, nft.IPv6.Name: nft.IPv6}

func (k *kernel) query(t TableID) nft.Query {
	return nft.Query{Conn: k.nf, Family: byName[t.Family], Table: t.Name}
}

// ruleset holds the chains of the tables of nf_tables. Rules are read on demand, because most rules
// are in chains that are deleted as a whole.
type ruleset map[TableID][]chain

type chain struct {
	name string
	base bool // it is at a hook
}

// has reports whether a table has a chain.
func (r ruleset) has(t TableID, name string) bool {
	return slices.ContainsFunc(r[t], func(c chain) bool { return c.name == name })
}

// readRuleset reads the chains of both families. A reading that other programs interrupt is
// useless, but is not an error here: the transaction, or the next check of the generation, detects
// the interruption.
func (k *kernel) readRuleset(ctx context.Context) (ruleset, error) {
	r := ruleset{}
	for _, f := range nft.Families {
		var b rawnl.Batch
		b.Message(rawnl.SubsysNFTables, nft.MsgGetChain, 0, f.NFProto, 0,
			rawnl.Object{Verb: "list", Kind: "chains", Within: "family " + f.Name})
		_, err := k.nf.DumpThrough(ctx, &b, func(m rawnl.Message) error {
			c, err := nft.DecodeChain(m.Attrs)
			t := TableID{f.Name, c.Table}
			r[t] = append(r[t], chain{c.Name, c.Type != ""})
			return err
		})
		if err != nil {
			return nil, err
		}
	}

	return r, nil
}

// readRules returns the rules of a chain that jump to other chains.
func (k *kernel) readRules(ctx context.Context, c ChainID) ([]RuleID, error) {
	var rules []RuleID
	err := k.query(c.TableID).Rules(ctx, c.Chain, func(info nft.RuleInfo) error {
		if r := decodeRule(byName[c.Family], info); r.chain != "" {
			rules = append(rules, RuleID{ChainID: c, Handle: info.Handle, Target: r.chain,
				Comment: r.comment})
		}

		return nil
	})
	return rules, err
}

// commit deletes the objects of a plan in nf_tables, if the generation of the ruleset is still gen.
// It flushes all chains before it deletes the first one, because their rules jump to one another.
func (k *kernel) commit(ctx context.Context, p *Plan, gen uint32) error {
	var b rawnl.Batch
	in := func(t TableID) *nft.Encoder { return nft.NewEncoder(&b, byName[t.Family], t.Name) }
	for _, r := range p.Rules {
		in(r.TableID).DeleteRule(r.ChainID.Chain, r.Handle)
	}
	for _, c := range p.Chains {
		in(c.TableID).FlushChain(c.Chain)
	}
	for _, c := range p.Chains {
		in(c.TableID).DeleteChain(c.Chain)
	}
	for _, t := range p.Tables {
		in(t).DeleteTable()
	}
	return k.nf.Commit(ctx, &b, gen)
}

// owner decides which chains of iptables are kube-proxy's, and knows the programs that share their
// names.
type owner struct {
	kernlb  bool            // an instance of kernlb has taken over kube-proxy's chains
	kubelet map[string]bool // by family: an old kubelet created chains that kube-proxy has, too
}

// ownerOf finds the programs that share names with kube-proxy.
func ownerOf(r ruleset) owner {
	o := owner{kubelet: map[string]bool{}}
	for f := range byName {
		nat := TableID{f, tableNAT}
		o.kernlb = o.kernlb || slices.ContainsFunc(r[nat], func(c chain) bool {
			return strings.HasPrefix(c.name, kernlbVersion)
		})
		o.kubelet[f] = r.has(nat, chainMarkDrop)
	}

	return o
}

// owns reports whether a chain belongs to kube-proxy alone.
func (o owner) owns(c ChainID) bool {
	nat := c.Name == tableNAT
	switch {
	case slices.Contains(ownChains[c.Name], c.Chain):
		return true
	case o.kernlb: // its iptables backend uses the other names, too
		return false
	case nat && o.kubelet[c.Family] && (c.Chain == chainMarkMasq || c.Chain == chainPostrouting):
		return false
	}

	return slices.Contains(sharedChains[c.Name], c.Chain) ||
		nat && serviceChain.MatchString(c.Chain)
}

// planRuleset adds kube-proxy's objects in nf_tables to a plan.
func (k *kernel) planRuleset(ctx context.Context, p *Plan) error {
	r, err := k.readRuleset(ctx)
	if err != nil {
		return err
	}
	o := ownerOf(r)
	for _, family := range nft.Families {
		f, before := family.Name, len(p.Chains)
		for _, name := range []string{tableMangle, tableFilter, tableNAT} {
			t := TableID{f, name}
			if err := k.planTable(ctx, p, o, t, r[t]); err != nil {
				return err
			}
		}

		if filter := (TableID{f, tableFilter}); len(p.Chains) > before &&
			r.has(filter, chainFirewall) {
			p.leave("chain "+ChainID{filter, chainFirewall}.String(), "the kubelet makes it, too, "+
				"and kube-proxy never deletes it; if no kubelet runs here, delete it by hand")
		}

		switch t := (TableID{f, nftTable}); {
		case r.has(t, nftChain):
			p.Tables = append(p.Tables, t)
		case len(r[t]) > 0:
			p.leave("table "+t.String(), "it has no chain %q, so that it is not kube-proxy's",
				nftChain)
		}

		// These chains are kept because another program uses them, too.
		switch nat := (TableID{f, tableNAT}); {
		case o.kernlb && r.has(nat, "KUBE-SERVICES"):
			p.leave("chains of iptables in family "+f,
				"an instance of kernlb's iptables backend has taken them over")
		case o.kubelet[f] && r.has(nat, chainPostrouting):
			p.leave("chains "+nat.String()+" "+chainMarkMasq+" and "+chainPostrouting,
				"%s shows that a kubelet before 1.27 makes them, too", chainMarkDrop)
		}
	}

	slices.SortFunc(p.Rules, RuleID.compare)
	slices.SortFunc(p.Chains, ChainID.compare)
	return nil
}

// planTable plans for a table of iptables. If a rule of another program jumps to a chain of
// kube-proxy, the kernel would not delete that chain. The chain is kept, with all chains to which
// its rules jump.
func (k *kernel) planTable(ctx context.Context, p *Plan, o owner, t TableID, chains []chain) error {
	owned := map[string]bool{}
	var others []chain // their rules may jump there; rules of kernlb do not
	for _, c := range chains {
		switch {
		case o.owns(ChainID{t, c.name}):
			owned[c.name] = true
		case !o.kernlb || !strings.HasPrefix(c.name, "KUBE-"):
			others = append(others, c)
		}
	}

	if len(owned) == 0 {
		return nil
	}
	kept := map[string]string{} // the reason why each chain stays
	for _, c := range others {
		rules, err := k.readRules(ctx, ChainID{t, c.name})
		if err != nil {
			return err
		}
		for _, rule := range rules {
			switch {
			case !owned[rule.Target]:
			case c.base && slices.Contains(jumpComments, rule.Comment):
				p.Rules = append(p.Rules, rule)
			default:
				kept[rule.Target] = cmp.Or(kept[rule.Target],
					"a rule of chain "+c.name+" that kube-proxy did not write leads to it")
			}
		}
	}

	// Chains to which a kept chain jumps are kept, too.
	for todo := slices.Sorted(maps.Keys(kept)); len(todo) > 0; todo = todo[1:] {
		id := ChainID{t, todo[0]}
		p.leave("chain "+id.String(), "%s", kept[id.Chain])
		rules, err := k.readRules(ctx, id)
		if err != nil {
			return err
		}
		for _, rule := range rules {
			if _, known := kept[rule.Target]; !known && owned[rule.Target] {
				kept[rule.Target] = "chain " + id.Chain + ", which stays, leads to it"
				todo = append(todo, rule.Target)
			}
		}
	}

	for name := range owned {
		if _, stays := kept[name]; !stays {
			p.Chains = append(p.Chains, ChainID{t, name})
		}
	}

	return nil
}
