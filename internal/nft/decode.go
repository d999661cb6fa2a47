package nft

import (
	"encoding/binary"

	"github.com/kernlb/kernlb/internal/nfnl"
)

// TableInfo is what the kernel says of a table.
type TableInfo struct {
	// Dormant says that the chains of the table are not in effect.
	Dormant bool
	// Use is how many chains, sets, objects and flow tables it has.
	Use int
}

const tableDormant = 1 // NFT_TABLE_F_DORMANT

// DecodeTable decodes the attributes of a table.
func DecodeTable(attrs []byte) (TableInfo, error) {
	var t TableInfo
	it := nfnl.Attrs(attrs)
	for it.Next() {
		switch it.Type() {
		case 2: // NFTA_TABLE_FLAGS
			t.Dormant = it.U32()&tableDormant != 0
		case 3: // NFTA_TABLE_USE
			t.Use = int(it.U32())
		}
	}
	return t, it.Err()
}

// SetInfo is what the kernel says of a set.
type SetInfo struct {
	Name string
	Spec SetSpec
	// Count is how many elements it has; -1 if the kernel does not say. Linux 6.16 and newer say
	// it.
	Count int
}

// DecodeSet decodes the attributes of a set.
func DecodeSet(attrs []byte) (SetInfo, error) {
	s := SetInfo{Count: -1}
	it := nfnl.Attrs(attrs)
	for it.Next() {
		switch it.Type() {
		case 2:
			s.Name = it.Text()
		case 3:
			s.Spec.Flags = it.U32() & specFlags
		case 4:
			s.Spec.KeyType = it.U32()
		case 5:
			s.Spec.KeyLen = it.U32()
		case 6:
			s.Spec.DataType = it.U32()
		case 7:
			s.Spec.DataLen = it.U32()
		case 20: // NFTA_SET_COUNT
			s.Count = int(it.U32())
		}
	}
	return s, it.Err()
}

// DecodeElements calls fn for each element in the attributes of a message about elements of a set.
func DecodeElements(attrs []byte, fn func(Elem) error) error {
	it := nfnl.Attrs(attrs)
	for it.Next() {
		if it.Type() != 3 { // NFTA_SET_ELEM_LIST_ELEMENTS
			continue
		}
		if err := DecodeElems(it.Data(), fn); err != nil {
			return err
		}
	}
	return it.Err()
}

// DecodeChain decodes the attributes of a chain.
func DecodeChain(attrs []byte) (table string, c Chain, err error) {
	it := nfnl.Attrs(attrs)
	for it.Next() {
		switch it.Type() {
		case 1:
			table = it.Text()
		case 3:
			c.Name = it.Text()
		case 4:
			h := it.Nest()
			for h.Next() {
				switch h.Type() {
				case 1:
					c.Hook = h.U32()
				case 2:
					c.Prio = int32(h.U32())
				}
			}
			if err := h.Err(); err != nil {
				return "", c, err
			}
		case 5: // NFTA_CHAIN_POLICY
			c.Drops = it.U32() == 0 // NF_DROP
		case 7:
			c.Type = it.Text()
		}
	}
	return table, c, it.Err()
}

// DecodeRule decodes the attributes of a rule: where it is, and its hash; 0 if it has none.
func DecodeRule(attrs []byte) (table, chain string, hash uint64, err error) {
	it := nfnl.Attrs(attrs)
	for it.Next() {
		switch it.Type() {
		case 1:
			table = it.Text()
		case 2:
			chain = it.Text()
		case 7:
			walkUserdata(it.Data(), func(typ byte, v []byte) {
				if typ == udHash && len(v) == 8 {
					hash = binary.BigEndian.Uint64(v)
				}
			})
		}
	}
	return table, chain, hash, it.Err()
}
