package nftables

import (
	"encoding/binary"

	"github.com/kernlb/kernlb/internal/nfnl"
	"github.com/kernlb/kernlb/internal/nftwire"
)

// Messages (enum nf_tables_msg_types in include/uapi/linux/netfilter/nf_tables.h).
const (
	msgNewTable       = 0
	msgGetTable       = 1
	msgDelTable       = 2
	msgNewChain       = 3
	msgGetChain       = 4
	msgDelChain       = 5
	msgNewRule        = 6
	msgGetRule        = 7
	msgDelRule        = 8
	msgNewSet         = 9
	msgGetSet         = 10
	msgDelSet         = 11
	msgNewSetElem     = 12
	msgGetSetElem     = 13
	msgDelSetElem     = 14
	msgDestroySetElem = 30 // Linux 6.3
)

// encoder appends the messages of a plan to a batch.
type encoder struct {
	b      *nfnl.Batch
	f      *family
	table  string
	within string
	ids    uint32
}

func (e *encoder) message(typ uint8, flags uint16, verb, kind, name string) {
	e.b.Message(nfnl.SubsysNFTables, typ, flags, e.f.nfproto, 0,
		nfnl.Object{Verb: verb, Kind: kind, Name: name, Within: e.within, Part: describeElem})
}

// encode appends the plan.
func (p *plan) encode(b *nfnl.Batch) {
	for i := range p.families {
		fp := &p.families[i]
		e := &encoder{b: b, f: fp.f, table: p.table, within: "table " + fp.f.name + " " + p.table}
		e.family(fp)
	}
}

func (e *encoder) family(fp *familyPlan) {
	if fp.rebuild {
		e.message(msgDelTable, 0, "delete", "table", e.table)
		e.b.Text(1, e.table) // NFTA_TABLE_NAME
	}
	if fp.create {
		e.message(msgNewTable, nfnl.FlagCreate|nfnl.FlagExcl, "add", "table", e.table)
		e.b.Text(1, e.table)
		e.b.U32(2, 0) // NFTA_TABLE_FLAGS
	}
	for _, s := range fp.newSets {
		e.newSet(s)
	}
	for _, del := range []bool{true, false} {
		for _, s := range fp.sets {
			if ops := fp.ops[s.name]; ops != nil {
				e.elements(s, ops, del)
			}
		}
	}
	if fp.program != nil {
		e.program(fp)
	}
	for i := range fp.newRules {
		e.newRule(fp.newRules[i].chain, &fp.newRules[i].rule)
	}
	for _, s := range fp.goneSets {
		e.message(msgDelSet, 0, "delete", "set", s.name)
		e.b.Text(1, e.table) // NFTA_SET_TABLE
		e.b.Text(2, s.name)
	}
}

func (e *encoder) newSet(s *set) {
	e.message(msgNewSet, nfnl.FlagCreate|nfnl.FlagExcl, "add", "set", s.name)
	b := e.b
	b.Text(1, e.table) // NFTA_SET_TABLE
	b.Text(2, s.name)  // NFTA_SET_NAME
	b.U32(3, s.flags)
	b.U32(4, concatType(s.key))
	b.U32(5, uint32(keyLen(s.key)))
	if s.data != nil {
		b.U32(6, concatType(s.data))
		b.U32(7, uint32(keyLen(s.data)))
	}
	e.ids++
	b.U32(10, e.ids) // NFTA_SET_ID
	if s.size > 0 || s.flags&setConcat != 0 {
		e.setDesc(s)
	}
	b.Attr(13, setUserdata(e.f, s))
}

// setDesc appends NFTA_SET_DESC: the size, and for ranges of concatenations the length of each field.
func (e *encoder) setDesc(s *set) {
	d := e.b.Nest(9)
	if s.size > 0 {
		e.b.U32(1, s.size) // NFTA_SET_DESC_SIZE
	}
	if s.flags&setConcat != 0 {
		c := e.b.Nest(2) // NFTA_SET_DESC_CONCAT
		for _, f := range s.key {
			l := e.b.Nest(1)
			e.b.U32(1, uint32(f.len)) // NFTA_SET_FIELD_LEN
			e.b.End(l)
		}
		e.b.End(c)
	}
	e.b.End(d)
}

// keyLen is the length of a key or data: a single field is not padded.
func keyLen(fs []field) int {
	if len(fs) == 1 {
		return fs[0].len
	}
	return padded(fs)
}

// concatType packs types as nft does, six bits for each (TYPE_BITS in include/datatype.h of nftables).
func concatType(fs []field) uint32 {
	var t uint32
	for _, f := range fs {
		t = t<<6 | f.typ
	}
	return t
}

// elements appends the elements of a set to delete or to add, in as many messages as they need.
func (e *encoder) elements(s *set, ops *setOps, del bool) {
	typ, flags, verb, list := uint8(msgNewSetElem), nfnl.FlagCreate|nfnl.FlagExcl, "add", &ops.add
	if del {
		typ, flags, verb, list = msgDelSetElem, 0, "delete", &ops.del
	}
	list.Chunks(func(elems []byte) {
		e.message(typ, flags, verb, "set", s.name)
		e.b.Text(1, e.table) // NFTA_SET_ELEM_LIST_TABLE
		e.b.Text(2, s.name)  // NFTA_SET_ELEM_LIST_SET
		m := e.b.Nest(3)     // NFTA_SET_ELEM_LIST_ELEMENTS
		e.b.Raw(elems)
		e.b.End(m)
	})
}

// program appends the chains, all of them before any rule, since rules jump to chains.
func (e *encoder) program(fp *familyPlan) {
	for _, c := range fp.program.chains {
		e.newChain(&c.chain)
	}
	if !fp.create {
		for _, c := range fp.program.chains {
			e.flushChain(c.name)
		}
		for _, name := range fp.goneChains {
			e.flushChain(name)
		}
	}
	for _, c := range fp.program.chains {
		for i := range c.rules {
			e.newRule(c.name, &c.rules[i])
		}
	}
	for _, name := range fp.goneChains {
		e.message(msgDelChain, 0, "delete", "chain", name)
		e.b.Text(1, e.table) // NFTA_CHAIN_TABLE
		e.b.Text(3, name)    // NFTA_CHAIN_NAME
	}
}

func (e *encoder) newChain(c *chain) {
	e.message(msgNewChain, nfnl.FlagCreate, "add", "chain", c.name)
	e.b.Text(1, e.table)
	e.b.Text(3, c.name)
	if c.typ == "" {
		return
	}
	h := e.b.Nest(4)           // NFTA_CHAIN_HOOK
	e.b.U32(1, c.hook)         // NFTA_HOOK_HOOKNUM
	e.b.U32(2, uint32(c.prio)) // NFTA_HOOK_PRIORITY
	e.b.End(h)                 //
	e.b.U32(5, policyAccept)   // NFTA_CHAIN_POLICY
	e.b.Text(7, c.typ)         // NFTA_CHAIN_TYPE
}

const policyAccept = 1 // NF_ACCEPT

// flushChain deletes the rules of a chain.
func (e *encoder) flushChain(name string) {
	e.message(msgDelRule, 0, "flush", "chain", name)
	e.b.Text(1, e.table) // NFTA_RULE_TABLE
	e.b.Text(2, name)    // NFTA_RULE_CHAIN
}

func (e *encoder) newRule(chain string, r *rule) {
	for _, a := range r.anon {
		e.anonymous(a)
	}
	e.message(msgNewRule, nfnl.FlagCreate|nfnl.FlagAppend, "add", "rule", chain)
	e.b.Text(1, e.table)
	e.b.Text(2, chain)
	appendRule(e.b, r)
	e.b.Attr(7, ruleUserdata(r)) // NFTA_RULE_USERDATA
}

func ruleUserdata(r *rule) []byte {
	return binary.BigEndian.AppendUint64([]byte{nftwire.UserDataHash, 8}, r.hash())
}

// hashOf returns the hash in a rule's user data.
func hashOf(ud []byte) (hash uint64, ok bool) {
	nftwire.WalkUserdata(ud, func(typ byte, v []byte) {
		if typ == nftwire.UserDataHash && len(v) == 8 {
			hash, ok = binary.BigEndian.Uint64(v), true
		}
	})
	return hash, ok
}

// setUserdata is what nft keeps about a set to print it as it was declared (enum nftnl_udata_set_types in libnftnl/udata.h).
func setUserdata(f *family, s *set) []byte {
	b := udU32(nil, 0, byteOrder(s.key)) // NFTNL_UDATA_SET_KEYBYTEORDER
	if s.data != nil {
		b = udU32(b, 1, byteOrder(s.data)) // NFTNL_UDATA_SET_DATABYTEORDER
	}
	if s.typeof {
		b = udTLV(b, 3, typeofFields(f, s.key))  // NFTNL_UDATA_SET_KEY_TYPEOF
		b = udTLV(b, 4, typeofFields(f, s.data)) // NFTNL_UDATA_SET_DATA_TYPEOF
	}
	if s.comment != "" {
		b = udTLV(b, 7, append([]byte(s.comment), 0)) // NFTNL_UDATA_SET_COMMENT
	}
	return b
}

// byteOrder is nft's enum byteorder: none for a concatenation, the machine's for numbers, and the network's.
func byteOrder(fs []field) uint32 {
	switch {
	case len(fs) > 1:
		return 0
	case fs[0] == fieldMark:
		return 1
	}
	return 2
}

// typeofFields describes a concatenation of the expressions that load the fields (enum expr_types in include/expression.h of nftables,
// and the numbers of protocols and header fields in src/proto.c).
func typeofFields(f *family, fs []field) []byte {
	var l []byte
	for i, fd := range fs {
		var one []byte
		switch fd {
		case f.addr:
			one = typeofPayload(f.udProto, f.udDaddr)
		case fieldProto:
			one = udTLV(udU32(nil, 0, 9), 1, udU32(nil, 0, nftwire.MetaL4Proto)) // EXPR_META
		case fieldPort:
			one = typeofPayload(11, 2) // the transport header, dport
		case fieldSlot:
			one = udTLV(udU32(nil, 0, 23), 1, udU32(udU32(udU32(nil, 0, 1), 1, 2), 2, 0)) // EXPR_NUMGEN random mod 2 offset 0
		}
		l = udTLV(l, byte(i), one)
	}
	return udTLV(udU32(nil, 0, 13), 1, l) // EXPR_CONCAT
}

func typeofPayload(proto, field byte) []byte {
	return udTLV(udU32(nil, 0, 7), 1, udU32(udU32(nil, 0, uint32(proto)), 1, uint32(field))) // EXPR_PAYLOAD
}

func udTLV(b []byte, typ byte, v []byte) []byte {
	return append(append(b, typ, byte(len(v))), v...)
}

func udU32(b []byte, typ byte, v uint32) []byte {
	return binary.NativeEndian.AppendUint32(append(b, typ, 4), v)
}
