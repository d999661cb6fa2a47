package nftables

import "github.com/kernlb/kernlb/internal/nfnl"

// This file decodes what the kernel says of sets, chains and rules; they are encoded in wire_objects.go.

func decodeSet(attrs []byte) (name string, s rawSet, err error) {
	it := nfnl.Attrs(attrs)
	for it.Next() {
		switch it.Type() {
		case 2:
			name = it.Text()
		case 3:
			s.flags = it.U32() & comparableFlags
		case 4:
			s.keyType = it.U32()
		case 5:
			s.keyLen = it.U32()
		case 6:
			s.dataType = it.U32()
		case 7:
			s.dataLen = it.U32()
		}
	}
	return name, s, it.Err()
}

func decodeChain(attrs []byte) (table string, c chain, err error) {
	it := nfnl.Attrs(attrs)
	for it.Next() {
		switch it.Type() {
		case 1:
			table = it.Text()
		case 3:
			c.name = it.Text()
		case 4:
			h := it.Nest()
			for h.Next() {
				switch h.Type() {
				case 1:
					c.hook = h.U32()
				case 2:
					c.prio = int32(h.U32())
				}
			}
			if err := h.Err(); err != nil {
				return "", c, err
			}
		case 7:
			c.typ = it.Text()
		}
	}
	return table, c, it.Err()
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
			hash, _ = hashOf(it.Data())
		}
	}
	return table, chain, hash, it.Err()
}
