package kubeproxy

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

// families are the families of nf_tables that iptables and ip6tables use.
var families = []string{"ip", "ip6"}

// ruleset has the chains of the tables of nf_tables. Rules are read on demand, because most are in
// chains that are deleted as a whole.
type ruleset struct {
	chains map[Table][]chain
	rules  func(Chain) ([]Rule, error)
}

// chain is a chain that was read.
type chain struct {
	name string
	base bool // it is at a hook
}

// has reports whether a table has a chain.
func (r *ruleset) has(t Table, name string) bool {
	return slices.ContainsFunc(r.chains[t], func(c chain) bool { return c.name == name })
}

// owner decides which chains of iptables are kube-proxy's, and knows the programs that share their
// names.
type owner struct {
	kernlb  bool            // an instance of kernlb has taken over kube-proxy's chains
	kubelet map[string]bool // by family: an old kubelet made chains that kube-proxy has, too
}

// ownerOf finds the programs that share names with kube-proxy.
func ownerOf(r *ruleset) owner {
	o := owner{kubelet: map[string]bool{}}
	o.kernlb = slices.ContainsFunc(r.chains[Table{"ip", tableNAT}], func(c chain) bool {
		return strings.HasPrefix(c.name, kernlbVersion)
	})
	for _, f := range families {
		o.kubelet[f] = r.has(Table{f, tableNAT}, chainMarkDrop)
	}
	return o
}

// owns reports whether a chain belongs to kube-proxy alone.
func (o owner) owns(c Chain) bool {
	if slices.Contains(ownChains[c.Name], c.Chain) {
		return true
	}
	if !isShared(c) || o.kernlb {
		return false
	}
	return !o.kubelet[c.Family] || !o.kubelets(c)
}

// isShared reports whether kernlb's iptables backend uses the name of a chain, too.
func isShared(c Chain) bool {
	return slices.Contains(sharedChains[c.Name], c.Chain) ||
		c.Name == tableNAT && isServiceChain(c.Chain)
}

// kubelets reports whether a kubelet before 1.27 makes the chain, too.
func (o owner) kubelets(c Chain) bool {
	return c.Name == tableNAT && (c.Chain == chainMarkMasq || c.Chain == chainPostrouting)
}

// planRuleset adds kube-proxy's objects in a ruleset to a plan.
func (p *Plan) planRuleset(r *ruleset) error {
	o := ownerOf(r)
	for _, f := range families {
		for _, name := range []string{tableMangle, tableFilter, tableNAT} {
			if err := p.planTable(r, o, Table{f, name}); err != nil {
				return err
			}
		}
		p.planNFTables(r, Table{f, nftTable})
		p.leaveShared(r, o, f)
	}
	slices.SortFunc(p.Rules, Rule.compare)
	slices.SortFunc(p.Chains, Chain.compare)
	return nil
}

// planNFTables plans for the table of the nftables mode.
func (p *Plan) planNFTables(r *ruleset, t Table) {
	switch {
	case r.has(t, nftChain):
		p.Tables = append(p.Tables, t)
	case len(r.chains[t]) > 0:
		p.leave("table "+t.String(), "it has no chain %q, so that it is not kube-proxy's", nftChain)
	}
}

// leaveShared names the chains that stay because another program has them, too.
func (p *Plan) leaveShared(r *ruleset, o owner, family string) {
	nat := Table{family, tableNAT}
	switch {
	case o.kernlb && r.has(nat, "KUBE-SERVICES"):
		p.leave("chains of iptables in family "+family,
			"an instance of kernlb's iptables backend has taken them over")
	case o.kubelet[family] && r.has(nat, chainPostrouting):
		p.leave("chains "+nat.String()+" "+chainMarkMasq+" and "+chainPostrouting,
			"%s shows that a kubelet before 1.27 makes them, too", chainMarkDrop)
	}
}

// planTable plans for a table of iptables. If a rule of another program leads to a chain of
// kube-proxy, the kernel would not delete that chain. The chain stays, with all chains to which its
// rules lead.
func (p *Plan) planTable(r *ruleset, o owner, t Table) error {
	owned, others := o.split(r, t)
	if len(owned) == 0 {
		return nil
	}
	kept := map[string]string{} // chains that stay, by the chain that leads to them
	for _, c := range others {
		rules, err := r.rules(Chain{t, c.name})
		if err != nil {
			return err
		}
		for _, rule := range rules {
			switch {
			case !owned[rule.Target]:
			case c.base && slices.Contains(jumpComments, rule.Comment):
				p.Rules = append(p.Rules, rule)
			default:
				kept[rule.Target] = cmp.Or(kept[rule.Target], c.name)
			}
		}
	}
	if err := p.keep(r, t, owned, kept); err != nil {
		return err
	}
	for name := range owned {
		if _, stays := kept[name]; !stays {
			p.Chains = append(p.Chains, Chain{t, name})
		}
	}
	return nil
}

// split returns the chains of a table that are kube-proxy's, and the chains whose rules may lead
// there. An instance of kernlb has no rules to chains of others.
func (o owner) split(r *ruleset, t Table) (owned map[string]bool, others []chain) {
	owned = map[string]bool{}
	for _, c := range r.chains[t] {
		id := Chain{t, c.name}
		switch {
		case o.owns(id):
			owned[c.name] = true
		case !o.kernlb || !strings.HasPrefix(c.name, "KUBE-"):
			others = append(others, c)
		}
	}
	return owned, others
}

// keep adds to the chains that stay the chains to which their rules lead, and names them all.
func (p *Plan) keep(r *ruleset, t Table, owned map[string]bool, kept map[string]string) error {
	for todo := slices.Sorted(maps.Keys(kept)); len(todo) > 0; todo = todo[1:] {
		id := Chain{t, todo[0]}
		p.leave("chain "+id.String(), "a rule of chain %s, which is not kube-proxy's or stays, "+
			"leads to it", kept[id.Chain])
		rules, err := r.rules(id)
		if err != nil {
			return err
		}
		for _, rule := range rules {
			if _, known := kept[rule.Target]; !known && owned[rule.Target] {
				kept[rule.Target] = id.Chain
				todo = append(todo, rule.Target)
			}
		}
	}
	return nil
}
