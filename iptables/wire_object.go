package iptables

import (
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
)

// encoder appends messages about the objects of the tables.
type encoder struct {
	batch   *rawnl.Batch
	tables  [tableCount]*nft.Encoder
	f       *nft.Family // of the rule that is being encoded
	rules   int         // rules added, changed or deleted one by one
	scratch [sizeLargest]byte
}

func newEncoder(b *rawnl.Batch) *encoder {
	e := &encoder{batch: b}
	for t := range tableCount {
		e.tables[t] = nft.NewEncoder(b, t.family(), t.kind().String())
		e.tables[t].DescribeRule = ruleOf
	}
	return e
}

// of returns the encoder of the table that a chain is in.
func (e *encoder) of(id chainID) *nft.Encoder { return e.tables[id.table] }

// ruleOf names the rule of a message, for errors.
var ruleOf = rawnl.DescribeFunc(func(msg []byte, _ int) string {
	const header, familyAt = 20, 16 // struct nlmsghdr and struct nfgenmsg; nfgen_family
	if len(msg) < header {
		return "rule"
	}
	f := nft.IPv4
	if msg[familyAt] == nft.IPv6.NFProto {
		f = nft.IPv6
	}
	found, err := newDecoder(f).decodeRuleMessage(msg[header:])
	if err != nil || found.rule == (rule{}) {
		return "rule"
	}
	return "rule " + found.rule.text(f.Model)
})

// foundRule is a rule as the kernel returns it.
type foundRule struct {
	chain  string
	handle uint64
	rule   rule
}

// decodeRuleMessage reads a message about a rule.
func (d *decoder) decodeRuleMessage(attrs []byte) (foundRule, error) {
	info, err := nft.DecodeRule(attrs)
	if err != nil {
		return foundRule{}, err
	}
	r := foundRule{handle: info.Handle, rule: d.decodeRule(info.Exprs, info.UserData)}
	if len(info.Chain) > 0 {
		r.chain = d.chainName(info.Chain)
	}
	return r, nil
}
