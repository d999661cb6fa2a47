package nft

import (
	"encoding/binary"
	"fmt"

	"github.com/kernlb/kernlb/internal/nfnl"
	"github.com/kernlb/kernlb/servicemodel"
)

// Messages that ask (enum nf_tables_msg_types in include/uapi/linux/netfilter/nf_tables.h).
const (
	MsgGetTable   = 1
	MsgGetChain   = 4
	MsgGetRule    = 7
	MsgGetSet     = 10
	MsgGetSetElem = 13
)

// AppendLookup appends a request for the elements of a set that have the keys of l, for
// [nfnl.Conn.Lookup]. l must be short enough for one message.
func AppendLookup(b *nfnl.Batch, f *Family, table string, s *Set, l *ElemList) {
	b.Message(nfnl.SubsysNFTables, MsgGetSetElem, 0, f.NFProto, 0,
		nfnl.Object{Verb: "read elements of", Kind: s.kind(), Name: s.Name, Within: table,
			Part: describeElem})
	b.Text(1, table)
	b.Text(2, s.Name)
	m := b.Nest(3) // NFTA_SET_ELEM_LIST_ELEMENTS
	for _, block := range l.blocks {
		b.Raw(block)
	}
	b.End(m)
}

// Messages that change.
const (
	msgNewTable   = 0
	msgDelTable   = 2
	msgNewChain   = 3
	msgDelChain   = 5
	msgNewRule    = 6
	msgDelRule    = 8
	msgNewSet     = 9
	msgDelSet     = 11
	msgNewSetElem = 12
	msgDelSetElem = 14
)

// Writer takes what is done to a table, one thing after the other: an [Encoder] as messages to the
// kernel, a [Text] as commands of nft. A plan that writes itself to either cannot say one thing and
// do another.
type Writer interface {
	AddTable()
	DeleteTable()
	AddSet(s *Set)
	DeleteSet(s *Set)
	AddElements(s *Set, l *ElemList)
	DeleteElements(s *Set, l *ElemList)
	AddChain(c *Chain)
	FlushChain(name string)
	DeleteChain(name string)
	AddRule(chain string, r *Rule)
}

// Encoder appends the messages about one table to a batch. What is added must not be there, except
// for chains.
type Encoder struct {
	b      *nfnl.Batch
	f      *Family
	table  string
	within string
	ids    uint32
}

var _ Writer = (*Encoder)(nil)

// NewEncoder returns an encoder for a table of a family.
func NewEncoder(b *nfnl.Batch, f *Family, table string) *Encoder {
	return &Encoder{b: b, f: f, table: table, within: "table " + f.Name + " " + table}
}

func (e *Encoder) message(typ uint8, flags uint16, verb, kind, name string) {
	e.b.Message(nfnl.SubsysNFTables, typ, flags, e.f.NFProto, 0,
		nfnl.Object{Verb: verb, Kind: kind, Name: name, Within: e.within, Part: describeElem})
	e.b.Text(1, e.table) // NFTA_TABLE_NAME, NFTA_SET_TABLE and so on
}

func (e *Encoder) tableMessage(typ uint8, flags uint16, verb string) {
	e.b.Message(nfnl.SubsysNFTables, typ, flags, e.f.NFProto, 0,
		nfnl.Object{Verb: verb, Kind: e.within})
	e.b.Text(1, e.table)
}

// AddTable makes the table.
func (e *Encoder) AddTable() {
	e.tableMessage(msgNewTable, nfnl.FlagCreate|nfnl.FlagExcl, "add")
	e.b.U32(2, 0) // NFTA_TABLE_FLAGS
}

// DeleteTable deletes the table with all that is in it.
func (e *Encoder) DeleteTable() { e.tableMessage(msgDelTable, 0, "delete") }

// AddSet makes a set.
func (e *Encoder) AddSet(s *Set) {
	e.message(msgNewSet, nfnl.FlagCreate|nfnl.FlagExcl, "add", s.kind(), s.Name)
	b := e.b
	b.Text(2, s.Name) // NFTA_SET_NAME
	b.U32(3, s.Flags)
	b.U32(4, concatType(s.Key))
	b.U32(5, concatLen(s.Key))
	if s.Data != nil {
		b.U32(6, concatType(s.Data))
		b.U32(7, concatLen(s.Data))
	}
	e.ids++
	b.U32(10, e.ids) // NFTA_SET_ID
	if s.Size > 0 || s.Flags&SetConcat != 0 {
		e.setDesc(s)
	}
	var ud [maxUserdata]byte
	b.Attr(13, appendSetUserdata(ud[:0], s)) // NFTA_SET_USERDATA
}

// setDesc appends NFTA_SET_DESC: the size, and for ranges of concatenations the length of each
// field.
func (e *Encoder) setDesc(s *Set) {
	d := e.b.Nest(9)
	if s.Size > 0 {
		e.b.U32(1, s.Size) // NFTA_SET_DESC_SIZE
	}
	if s.Flags&SetConcat != 0 {
		c := e.b.Nest(2) // NFTA_SET_DESC_CONCAT
		for _, f := range s.Key {
			l := e.b.Nest(1)
			e.b.U32(1, uint32(fieldTypes[f].len)) // NFTA_SET_FIELD_LEN
			e.b.End(l)
		}
		e.b.End(c)
	}
	e.b.End(d)
}

// DeleteSet deletes a set with its elements.
func (e *Encoder) DeleteSet(s *Set) {
	e.message(msgDelSet, 0, "delete", s.kind(), s.Name)
	e.b.Text(2, s.Name)
}

// AddElements adds elements to a set, in as many messages as they need.
func (e *Encoder) AddElements(s *Set, l *ElemList) {
	e.elements(msgNewSetElem, nfnl.FlagCreate|nfnl.FlagExcl, "add", s, l)
}

// DeleteElements deletes elements of a set, which must be there.
func (e *Encoder) DeleteElements(s *Set, l *ElemList) {
	e.elements(msgDelSetElem, 0, "delete", s, l)
}

func (e *Encoder) elements(typ uint8, flags uint16, verb string, s *Set, l *ElemList) {
	l.chunks(func(elems []byte) {
		e.message(typ, flags, verb, s.kind(), s.Name)
		e.b.Text(2, s.Name) // NFTA_SET_ELEM_LIST_SET
		m := e.b.Nest(3)    // NFTA_SET_ELEM_LIST_ELEMENTS
		e.b.Raw(elems)
		e.b.End(m)
	})
}

// AddChain makes a chain, which may be there.
func (e *Encoder) AddChain(c *Chain) {
	e.message(msgNewChain, nfnl.FlagCreate, "add", "chain", c.Name)
	e.b.Text(3, c.Name) // NFTA_CHAIN_NAME
	if c.Type == "" {
		return
	}
	h := e.b.Nest(4)           // NFTA_CHAIN_HOOK
	e.b.U32(1, c.Hook)         // NFTA_HOOK_HOOKNUM
	e.b.U32(2, uint32(c.Prio)) // NFTA_HOOK_PRIORITY
	e.b.End(h)
	e.b.U32(5, 1)       // NFTA_CHAIN_POLICY: NF_ACCEPT
	e.b.Text(7, c.Type) // NFTA_CHAIN_TYPE
}

// FlushChain deletes the rules of a chain.
func (e *Encoder) FlushChain(name string) {
	e.message(msgDelRule, 0, "flush", "chain", name)
	e.b.Text(2, name) // NFTA_RULE_CHAIN
}

// DeleteChain deletes a chain, which must be empty.
func (e *Encoder) DeleteChain(name string) {
	e.message(msgDelChain, 0, "delete", "chain", name)
	e.b.Text(3, name)
}

// AddRule appends a rule to a chain.
func (e *Encoder) AddRule(chain string, r *Rule) {
	for i := range r.Sets {
		e.anonymousSet(&r.Sets[i])
	}
	e.message(msgNewRule, nfnl.FlagCreate|nfnl.FlagAppend, "add", "rule", chain)
	e.b.Text(2, chain)
	l := e.b.Nest(4) // NFTA_RULE_EXPRESSIONS
	for _, x := range r.Exprs {
		x(e.b)
	}
	e.b.End(l)
	ud := [10]byte{udHash, 8}
	binary.BigEndian.PutUint64(ud[2:], r.Hash())
	e.b.Attr(7, ud[:]) // NFTA_RULE_USERDATA
}

// anonymousSet appends a set that the next rule looks up.
func (e *Encoder) anonymousSet(a *AnonymousSet) {
	if a.Jumps != nil {
		e.verdictMap(a)
		return
	}
	protocols := []servicemodel.Protocol{servicemodel.TCP, servicemodel.UDP, servicemodel.SCTP}
	e.newAnonymous(a.ID, anonymousSet, setAnonymous, FieldProto, len(protocols))
	end := e.beginAnonymous(a.ID, anonymousSet)
	for _, p := range protocols {
		n := e.b.Nest(1) // NFTA_LIST_ELEM
		dataValue(e.b, elemKey, []byte{byte(p)})
		e.b.End(n)
	}
	e.b.End(end)
}

// verdictMap appends the anonymous map from numbers to verdicts.
func (e *Encoder) verdictMap(a *AnonymousSet) {
	e.newAnonymous(a.ID, anonymousMap, setAnonymous|SetMap, FieldSlot, len(a.Jumps))
	end := e.beginAnonymous(a.ID, anonymousMap)
	for i, to := range a.Jumps {
		n := e.b.Nest(1)
		dataValue(e.b, elemKey, Native32(uint32(i)))
		d := e.b.Nest(elemData)
		dataVerdict(e.b, to)
		e.b.End(d)
		e.b.End(n)
	}
	e.b.End(end)
}

func (e *Encoder) newAnonymous(id uint32, name string, flags uint32, key Field, size int) {
	e.message(msgNewSet, nfnl.FlagCreate, "add", "set", name)
	e.b.Text(2, name)
	e.b.U32(3, flags)
	e.b.U32(4, fieldTypes[key].typ)
	e.b.U32(5, uint32(fieldTypes[key].len))
	if flags&SetMap != 0 {
		e.b.U32(6, dataTypeVerdict)
		e.b.U32(7, 16) // NFTA_SET_DATA_LEN: sizeof(struct nft_verdict)
	}
	e.b.U32(10, id)
	d := e.b.Nest(9)
	e.b.U32(1, uint32(size))
	e.b.End(d)
	if flags&SetMap != 0 {
		e.b.Attr(13, udU32(nil, udKeyOrder, orderHost))
	}
}

const dataTypeVerdict = 0xffffff00 // NFT_DATA_VERDICT

// beginAnonymous begins the list of elements.
func (e *Encoder) beginAnonymous(id uint32, name string) nfnl.Mark {
	e.message(msgNewSetElem, nfnl.FlagCreate, "add", "set", name)
	e.b.Text(2, name)
	e.b.U32(4, id) // NFTA_SET_ELEM_LIST_SET_ID
	return e.b.Nest(3)
}

// describeElem names the element that the kernel complained about, for errors.
var describeElem = nfnl.DescribeFunc(func(msg []byte, offset int) string {
	path := nfnl.AttrPath(msg, offset)
	for _, step := range path {
		if step.Type != 1 { // NFTA_LIST_ELEM
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
