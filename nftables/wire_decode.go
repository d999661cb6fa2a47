package nftables

import "github.com/kernlb/kernlb/internal/nfnl"

// This file decodes what the kernel says of sets, chains and rules; they are encoded in wire_objects.go.

// decodeSet reads a set. The count of its elements is -1 if the kernel does not say.
func decodeSet(attrs []byte) (name string, s rawSet, count int, err error) {
	count = -1
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
		case 20: // NFTA_SET_COUNT, Linux 6.16
			count = int(it.U32())
		}
	}
	return name, s, count, it.Err()
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

// decodeCounters returns the sum of the packets that a rule's counters have counted.
func decodeCounters(attrs []byte) (packets uint64, err error) {
	it := nfnl.Attrs(attrs)
	for it.Next() {
		if it.Type() != 4 { // NFTA_RULE_EXPRESSIONS
			continue
		}
		exprs := it.Nest()
		for exprs.Next() {
			n, err := decodeCounter(exprs.Nest())
			if err != nil {
				return 0, err
			}
			packets += n
		}
		if err := exprs.Err(); err != nil {
			return 0, err
		}
	}
	return packets, it.Err()
}

// decodeCounter returns the packets of one expression, if it is a counter.
func decodeCounter(it nfnl.AttrIter) (packets uint64, err error) {
	isCounter := false
	for it.Next() {
		switch {
		case it.Type() == 1: // NFTA_EXPR_NAME
			isCounter = it.Text() == "counter"
		case it.Type() == 2 && isCounter: // NFTA_EXPR_DATA
			data := it.Nest()
			for data.Next() {
				if data.Type() == 2 { // NFTA_COUNTER_PACKETS
					packets = data.U64()
				}
			}
			if err := data.Err(); err != nil {
				return 0, err
			}
		}
	}
	return packets, it.Err()
}
