package nft

import "github.com/kernlb/kernlb/internal/rawnl"

// Place is the place of a rule in a chain. All places except Last are relative to another rule,
// which is given by its handle.
type Place uint8

// The places of a rule.
const (
	Last      Place = iota // at the end
	Before                 // before the other rule; at the beginning, if the handle is 0
	After                  // after the other rule
	InPlaceOf              // replaces the other rule
)

// BeginRule begins the message that puts a rule into a chain, for callers that encode expressions
// themselves. The caller then appends the expressions with [AppendPayload] and related functions,
// and calls EndRule.
func (e *Encoder) BeginRule(chain string, at Place, handle uint64) {
	switch at {
	case Last:
		e.ruleMessage(MsgNewRule, rawnl.FlagCreate|rawnl.FlagAppend, "add", chain)
	case Before:
		e.ruleMessage(MsgNewRule, rawnl.FlagCreate, "insert", chain)
		if handle != 0 {
			e.b.U64(attrRulePosition, handle)
		}
	case After:
		e.ruleMessage(MsgNewRule, rawnl.FlagCreate|rawnl.FlagAppend, "insert", chain)
		e.b.U64(attrRulePosition, handle)
	case InPlaceOf:
		e.ruleMessage(MsgNewRule, rawnl.FlagReplace, "replace", chain)
		e.b.U64(attrRuleHandle, handle)
	}

	e.exprs = e.b.Nest(attrRuleExpressions)
}

// EndRule ends the message of a rule. protocol is the protocol that the rule matches, or 0. The
// kernel checks matches and targets of x_tables against this protocol. comment may be empty.
func (e *Encoder) EndRule(protocol uint8, comment string) {
	e.b.End(e.exprs)
	if protocol != 0 {
		m := e.b.Nest(attrRuleCompat)
		e.b.U32(attrCompatProtocol, uint32(protocol))
		e.b.U32(attrCompatFlags, 0)
		e.b.End(m)
	}

	if comment != "" {
		var buf [maxUserData]byte
		e.b.Attr(attrRuleUserData, appendText(buf[:0], udComment, comment))
	}
}

// DeleteRule deletes the rule with a handle.
func (e *Encoder) DeleteRule(chain string, handle uint64) {
	e.ruleMessage(MsgDelRule, 0, "delete", chain)
	e.b.U64(attrRuleHandle, handle)
}

func (e *Encoder) ruleMessage(typ uint8, flags uint16, verb, chain string) {
	e.b.Message(rawnl.SubsysNFTables, typ, flags, e.f.NFProto, 0, rawnl.Object{Verb: verb,
		Kind: "chain", Name: chain, Within: e.within, Part: e.DescribeRule})
	e.b.Text(AttrRuleTable, e.table)
	e.b.Text(AttrRuleChain, chain)
}

// AppendGetRule appends a request for one rule, in any table of a family.
func AppendGetRule(b *rawnl.Batch, family uint8, table, chain string, handle uint64) {
	b.Message(rawnl.SubsysNFTables, MsgGetRule, 0, family, 0, rawnl.Object{Verb: "read rule of",
		Kind: "chain", Name: chain, Within: "table " + table})
	b.Text(AttrRuleTable, table)
	b.Text(AttrRuleChain, chain)
	b.U64(attrRuleHandle, handle)
}
