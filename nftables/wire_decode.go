package nftables

import "github.com/kernlb/kernlb/internal/nfnl"

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
