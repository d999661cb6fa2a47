package nft

import (
	"encoding/binary"
	"fmt"

	"github.com/kernlb/kernlb/internal/rawnl"
)

// AppendLookup appends a request for the elements of a set with the keys in l, for
// [rawnl.Conn.Lookup]. l must be short enough for one message.
func AppendLookup(b *rawnl.Batch, f *Family, table string, s *Set, l *ElemList) {
	b.Message(rawnl.SubsysNFTables, MsgGetSetElem, 0, f.NFProto, 0,
		rawnl.Object{Verb: "read elements of", Kind: s.kind(), Name: s.Name, Within: table,
			Part: describeElem})
	b.Text(AttrElemsTable, table)
	b.Text(AttrElemsSet, s.Name)
	m := b.Nest(AttrElemsList)
	for _, block := range l.blocks {
		b.Raw(block)
	}
	b.End(m)
}

// Writer receives the changes of a table one after another. An [Encoder] writes them as messages to
// the kernel, and a [Text] as commands of nft. A plan writes itself to either, so its text cannot
// differ from its effect.
type Writer interface {
	AddTable()
	DeleteTable()
	AddSet(s *Set)
	DeleteSet(s *Set)
	Elements(op Op, s *Set, l *ElemList)
	FlushSet(s *Set)
	AddChain(c *Chain)
	FlushChain(name string)
	DeleteChain(name string)
	AddRule(chain string, r Rule)
}

// Op is a change of elements.
type Op string

// The changes of elements.
const (
	Add    Op = "add"
	Delete Op = "delete"
)

// Encoder appends messages about one table to a batch. Objects that it adds must not exist yet,
// except chains.
type Encoder struct {
	b      *rawnl.Batch
	f      *Family
	table  string
	within string

	ids       uint32     // id of the last set
	anonymous uint32     // id of the last anonymous set
	exprs     rawnl.Mark // the attribute that BeginRule opened

	// Pause is called after each message with elements, unless it is nil. It may take the messages
	// from the batch and send them.
	Pause func(*Set)
	// DescribeRule names the rule of a message of [Encoder.BeginRule], for errors.
	DescribeRule rawnl.Describer
}

var _ Writer = (*Encoder)(nil)

// NewEncoder returns an encoder for a table of a family.
func NewEncoder(b *rawnl.Batch, f *Family, table string) *Encoder {
	return &Encoder{b: b, f: f, table: table, within: "table " + f.Name + " " + table,
		anonymous: uint32(f.NFProto) << 16, DescribeRule: aRule}
}

// aRule describes any rule.
var aRule = rawnl.DescribeFunc(func([]byte, int) string { return "rule" })

func (e *Encoder) message(typ uint8, flags uint16, verb, kind, name string) {
	e.b.Message(rawnl.SubsysNFTables, typ, flags, e.f.NFProto, 0,
		rawnl.Object{Verb: verb, Kind: kind, Name: name, Within: e.within, Part: describeElem})
	e.b.Text(AttrTableName, e.table) // in each message, the table is this attribute
}

func (e *Encoder) tableMessage(typ uint8, flags uint16, verb string) {
	e.b.Message(rawnl.SubsysNFTables, typ, flags, e.f.NFProto, 0,
		rawnl.Object{Verb: verb, Kind: e.within})
	e.b.Text(AttrTableName, e.table)
}

// AddTable creates the table.
func (e *Encoder) AddTable() { e.newTable(rawnl.FlagCreate|rawnl.FlagExcl, 0) }

// AddOwnedTable creates a table that only this connection can change. The table disappears when the
// connection is closed. Linux before 5.12 does not support this and answers EINVAL or EOPNOTSUPP.
func (e *Encoder) AddOwnedTable() { e.newTable(rawnl.FlagCreate|rawnl.FlagExcl, tableOwner) }

// EnsureTable creates the table. An existing table stays as it is.
func (e *Encoder) EnsureTable() { e.newTable(rawnl.FlagCreate, 0) }

func (e *Encoder) newTable(flags uint16, tableFlags uint32) {
	e.tableMessage(MsgNewTable, flags, "add")
	e.b.U32(attrTableFlags, tableFlags)
}

// DeleteTable deletes the table with everything in it.
func (e *Encoder) DeleteTable() { e.tableMessage(MsgDelTable, 0, "delete") }

// DeleteEmptyTable deletes the table if it is empty. Otherwise the error is EBUSY.
func (e *Encoder) DeleteEmptyTable() { e.tableMessage(MsgDelTable, rawnl.FlagNonRec, "delete") }

// AddSet creates a set.
func (e *Encoder) AddSet(s *Set) {
	e.message(MsgNewSet, rawnl.FlagCreate|rawnl.FlagExcl, "add", s.kind(), s.Name)
	b := e.b
	b.Text(AttrSetName, s.Name)
	b.U32(attrSetFlags, s.Flags)
	b.U32(attrSetKeyType, concatType(s.Key))
	b.U32(attrSetKeyLen, concatLen(s.Key))
	if s.Data != nil {
		b.U32(attrSetDataType, concatType(s.Data))
		b.U32(attrSetDataLen, concatLen(s.Data))
	}

	e.ids++
	b.U32(attrSetID, e.ids)
	if s.Size > 0 || s.Flags&SetConcat != 0 {
		e.setDesc(s)
	}
	var ud [maxUserData]byte
	b.Attr(attrSetUserData, appendSetUserData(ud[:0], s))
	if e.Pause != nil {
		e.Pause(s)
	}
}

// setDesc appends NFTA_SET_DESC: the size, and for ranges of concatenations the length of each
// field.
func (e *Encoder) setDesc(s *Set) {
	d := e.b.Nest(attrSetDesc)
	if s.Size > 0 {
		e.b.U32(attrDescSize, s.Size)
	}
	if s.Flags&SetConcat != 0 {
		c := e.b.Nest(attrDescConcat)
		for _, f := range s.Key {
			l := e.b.Nest(listElem)
			e.b.U32(attrFieldLen, uint32(fieldTypes[f].len))
			e.b.End(l)
		}

		e.b.End(c)
	}

	e.b.End(d)
}

// DeleteSet deletes a set with its elements.
func (e *Encoder) DeleteSet(s *Set) {
	e.message(MsgDelSet, 0, "delete", s.kind(), s.Name)
	e.b.Text(AttrSetName, s.Name)
}

// Elements adds elements to a set, or deletes elements, which must exist. It writes as many
// messages as the elements need.
func (e *Encoder) Elements(op Op, s *Set, l *ElemList) {
	typ, flags := uint8(MsgDelSetElem), uint16(0)
	if op == Add {
		typ, flags = MsgNewSetElem, rawnl.FlagCreate|rawnl.FlagExcl
	}
	for _, elems := range l.blocks {
		if len(elems) == 0 {
			continue
		}
		e.message(typ, flags, string(op), s.kind(), s.Name)
		e.b.Text(AttrElemsSet, s.Name)
		e.b.Attr(AttrElemsList|rawnl.AttrNested, elems)
		if e.Pause != nil {
			e.Pause(s)
		}
	}
}

// FlushSet deletes all elements of a set.
func (e *Encoder) FlushSet(s *Set) {
	e.message(MsgDelSetElem, 0, "flush", s.kind(), s.Name)
	e.b.Text(AttrElemsSet, s.Name)
}

// AddChain creates a chain. An existing chain stays as it is.
func (e *Encoder) AddChain(c *Chain) { e.chain(rawnl.FlagCreate, c) }

// CreateChain creates a chain, which must not exist.
func (e *Encoder) CreateChain(c *Chain) { e.chain(rawnl.FlagCreate|rawnl.FlagExcl, c) }

func (e *Encoder) chain(flags uint16, c *Chain) {
	e.message(MsgNewChain, flags, "add", "chain", c.Name)
	e.b.Text(AttrChainName, c.Name)
	if c.Type == "" {
		return
	}
	h := e.b.Nest(attrChainHook)
	e.b.U32(attrHookNumber, c.Hook)
	e.b.U32(attrHookPriority, uint32(c.Prio))
	e.b.End(h)
	e.b.U32(attrChainPolicy, VerdictAccept)
	e.b.Text(attrChainType, c.Type)
}

// FlushChain deletes the rules of a chain.
func (e *Encoder) FlushChain(name string) {
	e.message(MsgDelRule, 0, "flush", "chain", name)
	e.b.Text(AttrRuleChain, name)
}

// DeleteChain deletes a chain, which must be empty.
func (e *Encoder) DeleteChain(name string) { e.deleteChain(0, name) }

// DeleteUnusedChain deletes a chain without rules to which no rule jumps or goes. If the chain is
// in use, the error is EBUSY.
func (e *Encoder) DeleteUnusedChain(name string) { e.deleteChain(rawnl.FlagNonRec, name) }

func (e *Encoder) deleteChain(flags uint16, name string) {
	e.message(MsgDelChain, flags, "delete", "chain", name)
	e.b.Text(AttrChainName, name)
}

// AddRule appends a rule to a chain.
func (e *Encoder) AddRule(chain string, r Rule) {
	e.rule(chain, r)
	e.b.Attr(attrRuleUserData, binary.BigEndian.AppendUint64([]byte{udHash, 8}, r.Hash()))
}

// rule appends a rule without its hash. The anonymous sets of the rule come first.
func (e *Encoder) rule(chain string, r Rule) {
	id := e.anonymous
	for i := range r {
		if r[i].set != nil {
			e.anonymousSet(r[i].set)
		}
	}

	e.message(MsgNewRule, rawnl.FlagCreate|rawnl.FlagAppend, "add", "rule", chain)
	e.b.Text(AttrRuleChain, chain)
	l := e.b.Nest(attrRuleExpressions)
	for i := range r {
		r[i].exprs(e.b)
		if r[i].set != nil {
			id++
			appendLookupAnonymous(e.b, r[i].set, id)
		}
	}

	e.b.End(l)
}

// anonymousSet appends a set that the next rule looks up. Its id must be unique in the transaction:
// before Linux 6.0, the kernel searches the sets of all tables for the id.
func (e *Encoder) anonymousSet(a *AnonymousSet) {
	e.anonymous++
	e.newAnonymous(a)
	e.message(MsgNewSetElem, rawnl.FlagCreate, "add", "set", a.name())
	e.b.Text(AttrElemsSet, a.name())
	e.b.U32(attrElemsSetID, e.anonymous)
	l := e.b.Nest(AttrElemsList)
	for _, p := range a.Protocols {
		n := e.b.Nest(listElem)
		appendValue(e.b, elemKey, []byte{byte(p)})
		e.b.End(n)
	}

	for i, v := range a.Verdicts {
		n := e.b.Nest(listElem)
		appendValue(e.b, elemKey, Native32(uint32(i)))
		appendVerdict(e.b, elemData, v.Code, v.Chain)
		e.b.End(n)
	}

	e.b.End(l)
}

func (e *Encoder) newAnonymous(a *AnonymousSet) {
	key, flags, size := FieldProto, uint32(setAnonymous|setConstant), len(a.Protocols)
	if a.isMap() {
		key, flags, size = FieldSlot, flags|SetMap, len(a.Verdicts)
	}
	e.message(MsgNewSet, rawnl.FlagCreate, "add", "set", a.name())
	e.b.Text(AttrSetName, a.name())
	e.b.U32(attrSetFlags, flags)
	e.b.U32(attrSetKeyType, fieldTypes[key].typ)
	e.b.U32(attrSetKeyLen, uint32(fieldTypes[key].len))
	if a.isMap() {
		e.b.U32(attrSetDataType, dataTypeVerdict)
		e.b.U32(attrSetDataLen, verdictLen)
	}

	e.b.U32(attrSetID, e.anonymous)
	d := e.b.Nest(attrSetDesc)
	e.b.U32(attrDescSize, uint32(size))
	e.b.End(d)
	if a.isMap() {
		e.b.Attr(attrSetUserData, udU32(nil, udKeyOrder, orderHost))
	}
}

// describeElem names the element that the kernel complained about, for errors.
var describeElem = rawnl.DescribeFunc(func(msg []byte, offset int) string {
	path := rawnl.AttrPath(msg, offset)
	for _, step := range path {
		if step.Type != listElem {
			continue
		}
		if e, err := decodeElem(step.Data); err == nil && e.Key != nil {
			if c := CommentOf(e.UserData); c != "" {
				return fmt.Sprintf("element %x (%s)", e.Key, c)
			}
			return fmt.Sprintf("element %x", e.Key)
		}
	}
	return ""
})
