package nft

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/kernlb/kernlb/internal/rawnl"
)

// TableInfo is a table as the kernel reports it.
type TableInfo struct {
	// Dormant means that the chains of the table have no effect.
	Dormant bool
	// Use is the number of the table's chains, sets, objects and flow tables.
	Use int
}

// DecodeTable decodes the attributes of a table.
func DecodeTable(attrs []byte) (TableInfo, error) {
	var t TableInfo
	it := rawnl.Attrs(attrs)
	for it.Next() {
		switch it.Type() {
		case attrTableFlags:
			t.Dormant = it.U32()&tableDormant != 0
		case attrTableUse:
			t.Use = int(it.U32())
		}
	}

	return t, it.Err()
}

// SetInfo is a set as the kernel reports it.
type SetInfo struct {
	Name string
	Spec SetSpec
	// Size is the maximum number of elements, or 0 if the set grows.
	Size uint32
	// Count is the number of elements, or -1 if the kernel does not report it. Linux 6.16 and newer
	// do.
	Count int
}

// DecodeSet decodes the attributes of a set.
func DecodeSet(attrs []byte) (SetInfo, error) {
	s := SetInfo{Count: -1}
	it := rawnl.Attrs(attrs)
	for it.Next() {
		switch it.Type() {
		case AttrSetName:
			s.Name = it.Text()
		case attrSetFlags:
			s.Spec.Flags = it.U32() & specFlags
		case attrSetKeyType:
			s.Spec.KeyType = it.U32()
		case attrSetKeyLen:
			s.Spec.KeyLen = it.U32()
		case attrSetDataType:
			s.Spec.DataType = it.U32()
		case attrSetDataLen:
			s.Spec.DataLen = it.U32()
		case attrSetDesc:
			d := it.Nest()
			for d.Next() {
				if d.Type() == attrDescSize {
					s.Size = d.U32()
				}
			}
		case attrSetCount:
			s.Count = int(it.U32())
		}
	}

	return s, it.Err()
}

// DecodeElements calls fn for each element in the attributes of a message about elements of a set.
func DecodeElements(attrs []byte, fn func(Elem) error) error {
	it := rawnl.Attrs(attrs)
	for it.Next() {
		if it.Type() != AttrElemsList {
			continue
		}
		if err := DecodeElems(it.Data(), fn); err != nil {
			return err
		}
	}

	return it.Err()
}

// ChainInfo is a chain as the kernel reports it.
type ChainInfo struct {
	Chain
	Table string
	Use   uint32 // the number of its rules, and of the rules that refer to it
}

// DecodeChain decodes the attributes of a chain.
func DecodeChain(attrs []byte) (ChainInfo, error) {
	var c ChainInfo
	it := rawnl.Attrs(attrs)
	for it.Next() {
		switch it.Type() {
		case AttrChainTable:
			c.Table = it.Text()
		case AttrChainName:
			c.Name = it.Text()
		case attrChainHook:
			if err := c.decodeHook(it.Nest()); err != nil {
				return c, err
			}
		case attrChainPolicy:
			c.Drops = it.U32() == VerdictDrop
		case attrChainUse:
			c.Use = it.U32()
		case attrChainType:
			c.Type = it.Text()
		}
	}

	return c, it.Err()
}

func (c *Chain) decodeHook(it rawnl.AttrIter) error {
	for it.Next() {
		switch it.Type() {
		case attrHookNumber:
			c.Hook = it.U32()
		case attrHookPriority:
			c.Prio = int32(it.U32())
		}
	}

	return it.Err()
}

// RuleInfo is a rule in a message of the kernel. The slices point into the message.
type RuleInfo struct {
	Table, Chain []byte // their names
	Handle       uint64
	Exprs        []byte // for [EachExpr]
	UserData     []byte
}

// DecodeRule decodes the attributes of a rule.
func DecodeRule(attrs []byte) (RuleInfo, error) {
	var r RuleInfo
	it := rawnl.Attrs(attrs)
	for it.Next() {
		switch it.Type() {
		case AttrRuleTable:
			r.Table = CString(it.Data())
		case AttrRuleChain:
			r.Chain = CString(it.Data())
		case attrRuleHandle:
			r.Handle = it.U64()
		case attrRuleExpressions:
			r.Exprs = it.Data()
		case attrRuleUserData:
			r.UserData = it.Data()
		}
	}

	return r, it.Err()
}

// Hash returns the hash that [Encoder.AddRule] stored in the rule, or 0 if there is none.
func (r *RuleInfo) Hash() (hash uint64) {
	walkUserData(r.UserData, func(typ byte, v []byte) {
		if typ == udHash && len(v) == 8 {
			hash = binary.BigEndian.Uint64(v)
		}
	})

	return hash
}

// ExprInfo is an expression in a message of the kernel.
type ExprInfo struct {
	Name  []byte
	Attrs []byte
}

// EachExpr calls fn for each expression of a rule, until fn returns false. It returns true if it
// could read the whole list and fn always returned true.
func EachExpr(list []byte, fn func(e ExprInfo) bool) bool {
	it := rawnl.Attrs(list)
	for it.Next() {
		if e, err := decodeExpr(it.Nest()); err != nil || !fn(e) {
			return false
		}
	}

	return it.Err() == nil
}

func decodeExpr(it rawnl.AttrIter) (e ExprInfo, err error) {
	for it.Next() {
		switch it.Type() {
		case exprName:
			e.Name = CString(it.Data())
		case exprData:
			e.Attrs = it.Data()
		}
	}

	return e, it.Err()
}

// Counted returns the sum of packets over the counters of the rule.
func (r *RuleInfo) Counted() (packets uint64, err error) {
	whole := EachExpr(r.Exprs, func(e ExprInfo) bool {
		if string(e.Name) != "counter" {
			return true
		}
		n, _, err := countedBy(e.Attrs)
		packets += n
		return err == nil
	})
	if !whole {
		return 0, fmt.Errorf("counters of a rule: %w", rawnl.ErrMalformed)
	}
	return packets, nil
}

// countedBy reads the attributes of a counter.
func countedBy(attrs []byte) (packets, bytes uint64, err error) {
	it := rawnl.Attrs(attrs)
	for it.Next() {
		switch it.Type() {
		case attrCounterPackets:
			packets = it.U64()
		case attrCounterBytes:
			bytes = it.U64()
		}
	}

	return packets, bytes, it.Err()
}

// Effect is the effect of a rule on packets, except verdicts in maps.
type Effect struct {
	Drops   bool     // silently
	Refuses bool     // answers with an ICMP error or a reset
	Chains  []string // the chains to which the rule jumps or goes
	// Accepts says that the rule accepts packets, or may accept them through a map or a queue.
	Accepts bool
}

// Effect derives the effect of the rule from its expressions.
func (r *RuleInfo) Effect() (does Effect) {
	EachExpr(r.Exprs, func(e ExprInfo) bool {
		f := fieldsOf(e.Attrs)
		switch string(e.Name) {
		case "reject":
			does.Refuses = true
		case "target": // of x_tables, written by iptables-nft
			name := f.text(AttrExtensionName)
			does.Refuses = does.Refuses || name == "REJECT"
			does.Drops = does.Drops || name == "DROP"
			does.Accepts = does.Accepts || name == "ACCEPT"
		case "queue":
			does.Accepts = true
		case "lookup":
			to, stored := f[attrLookupDReg]
			does.Accepts = does.Accepts ||
				stored && len(to) == 4 && f.u32(attrLookupDReg) == RegVerdict
		case "immediate":
			v := fieldsOf(fieldsOf(f[AttrImmediateData])[DataVerdict])
			if chain := v.text(AttrVerdictChain); chain != "" {
				does.Chains = append(does.Chains, chain)
			} else if v[AttrVerdictCode] != nil {
				code := int32(v.u32(AttrVerdictCode))
				does.Drops = does.Drops || code == VerdictDrop
				does.Accepts = does.Accepts || code == VerdictAccept
			}
		}

		return true
	})

	return does
}

// CString returns the bytes up to the first NUL.
func CString(b []byte) []byte {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		return b[:i]
	}
	return b
}
