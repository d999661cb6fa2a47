package nftables

import (
	"fmt"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/rendering"
	"github.com/kernlb/kernlb/servicemodel"
)

// Check returns the parts of a change set that nftables cannot express on any kernel: schedulers
// other than random, rr, wrr, sh and mh; forwarding other than NAT; pools whose weights, divided by
// their greatest common divisor, add up to more than 65,536; and, in tables that are not made by
// servicemodel.Resolve, source ranges of node ports and some combinations of origins whose packets
// are masqueraded. The errors, which [dataplane.Problems] lists, are *[dataplane.UnsupportedError]
// values. Check needs neither a kernel nor Linux. The change set of a whole table is
// servicemodel.Diff(nil, table).
func Check(c *servicemodel.ChangeSet) error {
	k := rendering.NewChecker(Name, c)
	k.Schedulers(func(s servicemodel.Scheduler) bool {
		_, ok := wayOf(s)
		return ok
	}, "nftables has random, rr, wrr, sh and mh, and ipvs the others")
	k.Masquerade()
	k.Sources()
	k.Forwarding("nftables translates addresses")
	k.Pools(func(p *servicemodel.Pool) {
		if n := slotCount(p); !expressible(p) {
			k.Refuse(p.ID.Service, dataplane.FieldWeights, fmt.Sprintf("sum %d", n),
				fmt.Sprintf("the weights of a pool, divided by their greatest common divisor, "+
					"add up to at most %d", maxSlots))
		}
	})
	return k.Err()
}

// maxSlots bounds the elements of one pool.
const maxSlots = 1 << 16
