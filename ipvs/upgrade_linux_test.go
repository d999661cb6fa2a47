package ipvs_test

import (
	"testing"

	"github.com/kernlb/kernlb/internal/test/dataplanetest"
)

const newerNumber = `nft -f - << END
delete element ip kernlb-ipvs settings { 0x00000001 }
add element ip kernlb-ipvs settings { 0x00000001 comment "layout 1000" }
delete element ip6 kernlb-ipvs settings { 0x00000001 }
add element ip6 kernlb-ipvs settings { 0x00000001 comment "layout 1000" }
END
`

const newerObjects = `nft -f - << END
add element ip kernlb-ipvs settings { 0x00000063 comment "something new" }
add set ip kernlb-ipvs new { type ipv4_addr; elements = { 10.96.0.10 }; }
add chain ip kernlb-ipvs new
add rule ip kernlb-ipvs new ip daddr @new counter
insert rule ip kernlb-ipvs admit jump new
END
`

// older turns the companion into one from before layouts had numbers.
const older = `nft -f - << END
delete element ip kernlb-ipvs settings { 0x00000001 }
delete element ip6 kernlb-ipvs settings { 0x00000001 }
END
`

// A program takes over from an older one and from newer ones. The companion is replaced, and
// virtual servers stay.
func TestKernelUpgrade(t *testing.T) {
	t.Parallel()
	dataplanetest.Upgraded(t, underTest,
		dataplanetest.Layout{Name: "older", Edit: older},
		dataplanetest.Layout{Name: "newer by its number", Edit: newerNumber},
		dataplanetest.Layout{Name: "newer by its objects", Edit: newerNumber + newerObjects})
}
