package ipvs

import "github.com/kernlb/kernlb/internal/nfnl"

// Rules and routes have a header of the same size (struct fib_rule_hdr, struct rtmsg), and the
// number of the routing table in the attribute of the same type (FRA_TABLE, RTA_TABLE).
const (
	routeHeader = 12
	routeTable  = 15
)

// routingTable returns the routing table of a message about a rule or a route; 0 if it names none.
func routingTable(body []byte) (table uint32) {
	if len(body) < routeHeader {
		return 0
	}
	it := nfnl.Attrs(body[routeHeader:])
	for it.Next() {
		if it.Type() == routeTable {
			table = it.NativeU32()
		}
	}
	return table
}
