package iptables

import (
	"os/exec"
	"testing"

	"github.com/kernlb/kernlb/internal/test/dataplanetest"
)

const newerNumber = `iptables -t nat -R KUBE-SETTINGS 1 -m comment --comment "layout 1000"
`

const newerObjects = `iptables-restore --noflush << END
*nat
:KUBE-SVC-SOMETHINGNEWNEWN -
-A KUBE-SVC-SOMETHINGNEWNEWN -d 10.96.0.10/32 -j RETURN
-A KUBE-SETTINGS -m comment --comment "something new"
-I KUBE-SERVICES -j KUBE-SVC-SOMETHINGNEWNEWN
COMMIT
END
`

// A program takes over from an older one and from newer ones. The rulesets of older programs were
// recorded with iptables-save and ip6tables-save. A file's name is the program's commit.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("iptables-restore"); err != nil {
		t.Skip("iptables-restore is not installed (Debian package iptables)")
	}
	dataplanetest.Upgraded(t, underTest,
		dataplanetest.Layout{Name: "older", Recorded: `
			iptables-restore < testdata/layouts/752c62b.ipv4
			ip6tables-restore < testdata/layouts/752c62b.ipv6`},
		dataplanetest.Layout{Name: "newer by its number", Edit: newerNumber},
		dataplanetest.Layout{Name: "newer by its objects", Edit: newerNumber + newerObjects})
}
