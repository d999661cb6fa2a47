package ipvs

import (
	"encoding/binary"

	"github.com/kernlb/kernlb/internal/nfnl"
	"github.com/kernlb/kernlb/internal/nftwire"
)

// Messages (enum nf_tables_msg_types in include/uapi/linux/netfilter/nf_tables.h).
const (
	msgNewTable   = 0
	msgGetTable   = 1
	msgDelTable   = 2
	msgNewChain   = 3
	msgNewRule    = 6
	msgGetRule    = 7
	msgNewSet     = 9
	msgGetSet     = 10
	msgNewSetElem = 12
	msgGetSetElem = 13
	msgDelSetElem = 14
)

// encoder appends the messages about one companion table to a batch.
type encoder struct {
	b     *nfnl.Batch
	f     *family
	table string
	ids   uint32
}

func (e *encoder) message(typ uint8, flags uint16, verb, kind, name string) {
	e.b.Message(nfnl.SubsysNFTables, typ, flags, e.f.nfproto, 0,
		nfnl.Object{Verb: verb, Kind: kind, Name: name, Within: "table " + e.f.name + " " + e.table})
}

func (e *encoder) delTable() {
	e.message(msgDelTable, 0, "delete", "table", e.table)
	e.b.Text(1, e.table) // NFTA_TABLE_NAME
}

func (e *encoder) newTable() {
	e.message(msgNewTable, nfnl.FlagCreate|nfnl.FlagExcl, "add", "table", e.table)
	e.b.Text(1, e.table)
	e.b.U32(2, 0) // NFTA_TABLE_FLAGS
}

func (e *encoder) newSet(s *set) {
	e.message(msgNewSet, nfnl.FlagCreate|nfnl.FlagExcl, "add", "set", s.name)
	b := e.b
	b.Text(1, e.table)
	b.Text(2, s.name)
	b.U32(3, s.flags)
	b.U32(4, concatType(s.key))
	b.U32(5, uint32(keyLen(s.key)))
	if s.data != nil {
		b.U32(6, concatType(s.data))
		b.U32(7, uint32(keyLen(s.data)))
	}
	e.ids++
	b.U32(10, e.ids) // NFTA_SET_ID
	if s.flags&setConcat != 0 {
		d := b.Nest(9) // NFTA_SET_DESC
		c := b.Nest(2) // NFTA_SET_DESC_CONCAT
		for _, f := range s.key {
			l := b.Nest(1)
			b.U32(1, uint32(f.len)) // NFTA_SET_FIELD_LEN
			b.End(l)
		}
		b.End(c)
		b.End(d)
	}
	// What nft keeps about a set to print it: the byte orders of its key and data (enum nftnl_udata_set_types in libnftnl/udata.h).
	ud := udU32(nil, 0, byteOrder(s.key))
	if s.data != nil {
		ud = udU32(ud, 1, byteOrder(s.data))
	}
	b.Attr(13, ud)
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

func udU32(b []byte, typ byte, v uint32) []byte {
	return binary.NativeEndian.AppendUint32(append(b, typ, 4), v)
}

func keyLen(fs []field) int {
	if len(fs) == 1 {
		return fs[0].len
	}
	n := 0
	for _, f := range fs {
		n += (f.len + 3) &^ 3
	}
	return n
}

// concatType packs types as nft does, six bits for each (TYPE_BITS in include/datatype.h of nftables).
func concatType(fs []field) uint32 {
	var t uint32
	for _, f := range fs {
		t = t<<6 | f.typ
	}
	return t
}

// elements appends elements to add or to delete.
func (e *encoder) elements(set string, list *nftwire.ElemList, del bool) {
	typ, flags, verb := uint8(msgNewSetElem), nfnl.FlagCreate|nfnl.FlagExcl, "add"
	if del {
		typ, flags, verb = msgDelSetElem, 0, "delete"
	}
	list.Chunks(func(elems []byte) {
		e.message(typ, flags, verb, "elements of set", set)
		e.b.Text(1, e.table)
		e.b.Text(2, set)
		m := e.b.Nest(3) // NFTA_SET_ELEM_LIST_ELEMENTS
		e.b.Raw(elems)
		e.b.End(m)
	})
}

func (e *encoder) program(chains []programChain) {
	for i := range chains {
		e.newChain(&chains[i].chain)
	}
	for i := range chains {
		for j := range chains[i].rules {
			e.newRule(chains[i].name, &chains[i].rules[j])
		}
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
	e.b.End(h)
	e.b.U32(5, 1)      // NFTA_CHAIN_POLICY: NF_ACCEPT
	e.b.Text(7, c.typ) // NFTA_CHAIN_TYPE
}

func (e *encoder) newRule(chain string, r *rule) {
	e.message(msgNewRule, nfnl.FlagCreate|nfnl.FlagAppend, "add", "rule", chain)
	e.b.Text(1, e.table)
	e.b.Text(2, chain)
	l := e.b.Nest(4) // NFTA_RULE_EXPRESSIONS
	for _, x := range r.exprs {
		x(e.b)
	}
	e.b.End(l)
	e.b.Attr(7, binary.BigEndian.AppendUint64([]byte{nftwire.UserDataHash, 8}, r.hash())) // NFTA_RULE_USERDATA
}

// decodeSetName reads the name of a set.
func decodeSetName(attrs []byte) (name string, err error) {
	it := nfnl.Attrs(attrs)
	for it.Next() {
		if it.Type() == 2 {
			name = it.Text()
		}
	}
	return name, it.Err()
}

// decodeRule reads where a rule is, and its hash; 0 if it has none.
func decodeRule(attrs []byte) (table, chain string, hash uint64, err error) {
	it := nfnl.Attrs(attrs)
	for it.Next() {
		switch it.Type() {
		case 1:
			table = it.Text()
		case 2:
			chain = it.Text()
		case 7:
			nftwire.WalkUserdata(it.Data(), func(typ byte, v []byte) {
				if typ == nftwire.UserDataHash && len(v) == 8 {
					hash = binary.BigEndian.Uint64(v)
				}
			})
		}
	}
	return table, chain, hash, it.Err()
}
