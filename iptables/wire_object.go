package iptables

import (
	"github.com/kernlb/kernlb/internal/nfnl"
)

// Messages of nf_tables (NFT_MSG_*, include/uapi/linux/netfilter/nf_tables.h).
const (
	msgNewTable = 0
	msgGetTable = 1
	msgDelTable = 2
	msgNewChain = 3
	msgGetChain = 4
	msgDelChain = 5
	msgNewRule  = 6
	msgGetRule  = 7
	msgDelRule  = 8
)

// encoder appends messages about the objects of one family.
type encoder struct {
	batch   *nfnl.Batch
	f       *family
	scratch [sizeLargest]byte
}

// within is what errors call a table.
func (f *family) within(t tableID) string {
	if f == families[0] {
		if t == nat {
			return "table ip nat"
		}
		return "table ip filter"
	}
	if t == nat {
		return "table ip6 nat"
	}
	return "table ip6 filter"
}

func (e *encoder) message(msg uint8, flags uint16, t tableID, o nfnl.Object) {
	o.Within = e.f.within(t)
	e.batch.Message(nfnl.SubsysNFTables, msg, flags, e.f.nfproto, 0, o)
	e.batch.Text(1, t.String()) // NFTA_TABLE_NAME, NFTA_CHAIN_TABLE, NFTA_RULE_TABLE
}

// addTable makes a table; one that is there stays as it is.
func (e *encoder) addTable(t tableID) {
	e.message(msgNewTable, nfnl.FlagCreate, t, nfnl.Object{Verb: "add", Kind: "table",
		Name: t.String()})
	e.batch.U32(2, 0) // NFTA_TABLE_FLAGS
}

// deleteTable deletes a table that has nothing in it; EBUSY says that it has.
func (e *encoder) deleteTable(t tableID) {
	object := nfnl.Object{Verb: "delete", Kind: "table", Name: t.String()}
	e.message(msgDelTable, nfnl.FlagNonRec, t, object)
}

// Attributes of a chain (NFTA_CHAIN_*).
const (
	attrChainTable  = 1
	attrChainName   = 3
	attrChainHook   = 4
	attrChainPolicy = 5
	attrChainUse    = 6
	attrChainType   = 7
)

func (e *encoder) addChain(t tableID, name string) {
	e.message(msgNewChain, nfnl.FlagCreate|nfnl.FlagExcl, t, nfnl.Object{Verb: "add", Kind: "chain",
		Name: name})
	e.batch.Text(attrChainName, name)
}

// addBaseChain makes a base chain with policy accept.
func (e *encoder) addBaseChain(t tableID, c baseChain) {
	e.addChain(t, c.name)
	m := e.batch.Nest(attrChainHook)
	e.batch.U32(1, c.hook)             // NFTA_HOOK_HOOKNUM
	e.batch.U32(2, uint32(c.priority)) // NFTA_HOOK_PRIORITY
	e.batch.End(m)
	e.batch.U32(attrChainPolicy, verdictAccept)
	e.batch.Text(attrChainType, t.String()) // the types are called as the tables are
}

// deleteChain deletes a chain that has no rules and that no rule leads to; EBUSY says that it
// has, or one does, and ENOENT that it is not there.
func (e *encoder) deleteChain(t tableID, name string) {
	object := nfnl.Object{Verb: "delete", Kind: "chain", Name: name}
	e.message(msgDelChain, nfnl.FlagNonRec, t, object)
	e.batch.Text(attrChainName, name)
}

func (e *encoder) ruleMessage(msg uint8, flags uint16, t tableID, verb, chain string) {
	e.message(msg, flags, t, nfnl.Object{Verb: verb, Kind: "chain", Name: chain, Part: ruleOf})
	e.batch.Text(attrRuleChain, chain)
}

// ruleOf names the rule that a message is about, for errors.
var ruleOf = nfnl.DescribeFunc(func(msg []byte, _ int) string {
	const header, familyAt = 20, 16 // struct nlmsghdr and struct nfgenmsg; nfgen_family
	if len(msg) < header {
		return "rule"
	}
	f := families[0]
	if msg[familyAt] == families[1].nfproto {
		f = families[1]
	}
	found, err := newDecoder(f).decodeRuleMessage(msg[header:])
	if err != nil || found.rule == (rule{}) {
		return "rule"
	}
	return "rule " + found.rule.text(f.model)
})

// appendRuleTo adds a rule at the end of a chain.
func (e *encoder) appendRuleTo(t tableID, chain string, r *rule) {
	e.ruleMessage(msgNewRule, nfnl.FlagCreate|nfnl.FlagAppend, t, "add", chain)
	e.appendRule(r)
}

// insertRule adds a rule before the one with the handle, or at the beginning of the chain if that
// is 0.
func (e *encoder) insertRule(t tableID, chain string, before uint64, r *rule) {
	e.ruleMessage(msgNewRule, nfnl.FlagCreate, t, "insert", chain)
	if before != 0 {
		e.batch.U64(attrRulePosition, before)
	}
	e.appendRule(r)
}

// insertRuleAfter adds a rule after the one with the handle.
func (e *encoder) insertRuleAfter(t tableID, chain string, after uint64, r *rule) {
	e.ruleMessage(msgNewRule, nfnl.FlagCreate|nfnl.FlagAppend, t, "insert", chain)
	e.batch.U64(attrRulePosition, after)
	e.appendRule(r)
}

// replaceRule puts a rule in the place of the one with the handle.
func (e *encoder) replaceRule(t tableID, chain string, handle uint64, r *rule) {
	e.ruleMessage(msgNewRule, nfnl.FlagReplace, t, "replace", chain)
	e.batch.U64(attrRuleHandle, handle)
	e.appendRule(r)
}

func (e *encoder) deleteRule(t tableID, chain string, handle uint64) {
	e.ruleMessage(msgDelRule, 0, t, "delete", chain)
	e.batch.U64(attrRuleHandle, handle)
}

// flush removes all rules of a chain.
func (e *encoder) flush(t tableID, chain string) {
	e.ruleMessage(msgDelRule, 0, t, "flush", chain)
}

// foundChain is a chain as the kernel tells it.
type foundChain struct {
	table, name string
	base        bool
	hook        uint32
	priority    int32
	policy      uint32
	use         uint32 // rules in it and rules that lead to it
	kind        string
}

func decodeChain(data []byte) (foundChain, error) {
	var c foundChain
	it := nfnl.Attrs(data)
	for it.Next() {
		switch it.Type() {
		case attrChainTable:
			c.table = it.Text()
		case attrChainName:
			c.name = it.Text()
		case attrChainPolicy:
			c.policy = it.U32()
		case attrChainUse:
			c.use = it.U32()
		case attrChainType:
			c.kind = it.Text()
		case attrChainHook:
			c.base = true
			h := it.Nest()
			for h.Next() {
				switch h.Type() {
				case 1:
					c.hook = h.U32()
				case 2:
					c.priority = int32(h.U32())
				}
			}
			if err := h.Err(); err != nil {
				return c, err
			}
		}
	}
	return c, it.Err()
}

// foundRule is a rule as the kernel tells it.
type foundRule struct {
	chain  string
	handle uint64
	rule   rule
}

// decodeRuleMessage reads a message about a rule.
func (d *decoder) decodeRuleMessage(data []byte) (foundRule, error) {
	var r foundRule
	var exprs, udata []byte
	it := nfnl.Attrs(data)
	for it.Next() {
		switch it.Type() {
		case attrRuleChain:
			if len(it.Data()) > 0 {
				r.chain = d.chainName(it.Data())
			}
		case attrRuleHandle:
			r.handle = it.U64()
		case attrRuleExpressions:
			exprs = it.Data()
		case attrRuleUserData:
			udata = it.Data()
		}
	}
	if err := it.Err(); err != nil {
		return r, err
	}
	r.rule = d.decodeRule(exprs, udata)
	return r, nil
}
