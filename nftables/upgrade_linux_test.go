package nftables_test

import (
	"os/exec"
	"testing"

	"github.com/kernlb/kernlb/internal/test/dataplanetest"
)

const newerNumber = `nft -f - << END
delete element ip kernlb settings { 0x00000001 }
add element ip kernlb settings { 0x00000001 comment "layout 1000" }
delete element ip6 kernlb settings { 0x00000001 }
add element ip6 kernlb settings { 0x00000001 comment "layout 1000" }
END
`

const newerObjects = `nft -f - << END
add element ip kernlb settings { 0x00000063 comment "something new" }
add set ip kernlb new { type ipv4_addr; elements = { 10.96.0.10 }; }
add chain ip kernlb new
add rule ip kernlb new ip daddr @new counter
insert rule ip kernlb services jump new
END
`

// A program takes over from an older one and from newer ones. The rulesets of older programs were
// recorded with nft list ruleset. A file's name is the program's commit.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("nft is not installed (Debian package nftables)")
	}
	dataplanetest.Upgraded(t, underTest,
		dataplanetest.Layout{Name: "older", Recorded: "nft -f testdata/layouts/752c62b.nft"},
		dataplanetest.Layout{Name: "with a set for each number of slots",
			Recorded: "nft -f testdata/layouts/c6e37d1.nft"},
		dataplanetest.Layout{Name: "with a binary search",
			Recorded: "nft -f testdata/layouts/6878ce2.nft"},
		dataplanetest.Layout{Name: "newer by its number", Edit: newerNumber},
		dataplanetest.Layout{Name: "newer by its objects", Edit: newerNumber + newerObjects})
}
