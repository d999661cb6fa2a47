package kubeproxy

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/test/nstest"
)

// recordedFrontends are what the recorded rules of all versions serve.
const recordedFrontends = `*4:3001/tcp ns2/svc2:p80 []
*4:3002/tcp ns5/svc5:p80 [10.180.0.3:80]
*4:3003/tcp ns3/svc3:p80 [10.180.0.3:80]
1.2.3.4:80/tcp ns2/svc2:p80 []
5.6.7.8:80/tcp ns5/svc5:p80 [10.180.0.3:80]
172.30.0.41:80/tcp ns1/svc1:p80 [10.180.0.1:80]
172.30.0.42:80/tcp ns2/svc2:p80 [10.180.0.2:80]
172.30.0.43:80/tcp ns3/svc3:p80 [10.180.0.3:80]
172.30.0.44:80/tcp ns4/svc4:p80 [10.180.0.4:80 10.180.0.5:80]
172.30.0.45:80/tcp ns5/svc5:p80 [10.180.0.3:80]
172.30.0.46:80/tcp ns6/svc6:p80 []
192.168.99.22:80/tcp ns2/svc2:p80 []
192.168.99.33:80/tcp ns4/svc4:p80 [10.180.0.4:80 10.180.0.5:80]
`

// frontends returns the frontends of IPv4 as text, and how many there are of IPv6.
func frontends(t *testing.T, ns *netnstest.NS) (text string, v6 int) {
	t.Helper()
	all := ok(Frontends(t.Context(), &Config{NetNS: ns.Fd()}))(t)
	for _, f := range all {
		if f.Key.Addr.Is6() {
			v6++
			for _, e := range f.Endpoints {
				require.True(t, e.Addr().Is6())
			}
			continue
		}
		text += fmt.Sprintf("%s %s %v\n", f.Key, f.Service, f.Endpoints)
	}
	return text, v6
}

func TestFrontendsOfEachVersion(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"iptables-1.28.rules", "iptables-1.30.rules",
		"iptables-1.36.rules", "nftables-1.29.nft", "nftables-1.36.nft"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			ns := nstest.New(t)
			others(t, ns)
			got, n := frontends(t, ns)
			require.Empty(t, got)
			require.Zero(t, n)
			load(t, ns, version)
			want := recordedFrontends
			if strings.HasPrefix(version, "nftables") { // only comments name svc6
				want = strings.Replace(want, "ns6/svc6:p80", "", 1)
			}
			got, n = frontends(t, ns)
			require.Equal(t, want, got)
			if strings.HasPrefix(version, "iptables") {
				require.Equal(t, strings.Count(want, "\n"), n, "the same in IPv6")
			}
		})
	}
}

func TestLegacyTablesAreNotTakenForNothing(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	nstest.Exec(t, ns, recorded(t, "iptables-1.28.rules"), "iptables-legacy-restore", "--noflush")
	_, err := Frontends(t.Context(), &Config{NetNS: ns.Fd()})
	require.ErrorIs(t, err, ErrLegacy)
}

// Matches of ports that are extensions of x_tables are read, too: for SCTP there is no other.
func TestFrontendsOfSCTP(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	nstest.Exec(t, ns, `*nat
:KUBE-SERVICES - [0:0]
:KUBE-SVC-A - [0:0]
:KUBE-SEP-A - [0:0]
-A KUBE-SERVICES -m comment --comment "a/b:c cluster IP" -p sctp -d 10.96.0.1 --dport 80 `+
		`-j KUBE-SVC-A
-A KUBE-SVC-A -m comment --comment "a/b:c -> 10.1.1.1:8080" -j KUBE-SEP-A
COMMIT
`, "iptables-nft-restore", "--noflush")
	got, _ := frontends(t, ns)
	require.Equal(t, "10.96.0.1:80/sctp a/b:c [10.1.1.1:8080]\n", got)
}
