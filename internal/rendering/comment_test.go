package rendering

import (
	"cmp"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	sm "github.com/kernlb/kernlb/servicemodel"
)

var (
	web = sm.PortName{Name: sm.Name{Namespace: "default", Name: "web"}, Port: "http",
		Protocol: sm.TCP}
	key       = sm.FrontendKey{Addr: netip.MustParseAddr("10.96.0.10"), Protocol: sm.TCP, Port: 80}
	portRange = sm.FrontendKey{Addr: key.Addr, Protocol: sm.TCP, Port: 80, EndPort: 89}
)

func TestComments(t *testing.T) {
	t.Parallel()
	for want, f := range map[string]sm.Frontend{
		"default/web:http cluster IP": {
			Kind: sm.ClusterIP, Internal: sm.BalanceCluster, External: sm.BalanceCluster,
			Masquerade: sm.FromHost | sm.FromOutside,
		},
		"default/web:http loadbalancer IP": {
			Kind: sm.LoadBalancer, Internal: sm.BalanceCluster, External: sm.BalanceCluster,
			Masquerade: sm.FromAnywhere,
		},
		"default/web:http node port internal=cluster external=drop masquerade=host": {
			Kind: sm.NodePort, Internal: sm.BalanceCluster, External: sm.Drop,
			Masquerade: sm.FromHost,
		},
		"default/web:http external IP verdict=reject masquerade=none affinity=10800": {
			Kind: sm.ExternalIP, Affinity: 10800 * time.Second,
		},
		"default/web:http cluster IP masquerade=host,outside/not-pods": {
			Internal: sm.BalanceCluster, External: sm.BalanceCluster,
			Masquerade: sm.FromHost | sm.FromOutside, MasqueradePolicy: sm.MasqueradeNotPods,
		},
		"default/web:http cluster IP masquerade=none affinity=60/24+service": {
			Internal: sm.BalanceCluster, External: sm.BalanceCluster,
			Affinity: time.Minute, AffinityBits: 24, AffinityService: true,
		},
		"default/web:http cluster IP masquerade=none shifted affinity=60": {
			Key: portRange, Internal: sm.BalanceCluster, External: sm.BalanceCluster,
			Shifted: true, Affinity: time.Minute,
		},
	} {
		f.Key, f.Service = cmp.Or(f.Key, key), web
		require.Equal(t, want, Comment(&f))
		got, err := ParseComment(want, f.Key, nil)
		require.NoError(t, err)
		require.True(t, f.Equal(got), "%+v", got)
	}
}

func TestABackendAddsWords(t *testing.T) {
	t.Parallel()
	f := &sm.Frontend{Key: key, Service: web, Internal: sm.BalanceCluster, External: sm.Reject}
	s := Comment(f, "mark=7", "routed")
	require.Equal(t, "default/web:http cluster IP internal=cluster external=reject "+
		"masquerade=none mark=7 routed", s)
	var words []string
	got, err := ParseComment(s, key, func(word string) bool {
		words = append(words, word)
		return true
	})
	require.NoError(t, err)
	require.True(t, f.Equal(got), "%+v", got)
	require.Equal(t, []string{"mark=7", "routed"}, words)
	_, err = ParseComment(s, key, func(word string) bool { return word == "routed" })
	require.ErrorContains(t, err, `unknown word "mark=7"`)
}

// Every frontend has a full comment, even with the longest name that Kubernetes allows and the most
// words that a backend may add.
func TestCommentsOfAllFrontends(t *testing.T) {
	t.Parallel()
	long := func(c string) string { return strings.Repeat(c, 63) }
	longest := sm.PortName{
		Name: sm.Name{Namespace: long("n"), Name: long("s")}, Port: long("p"), Protocol: sm.TCP,
	}
	require.Len(t, longest.String(), 191)
	unnamed := web
	unnamed.Port = ""
	for _, more := range []string{"", strings.Repeat("x", 22)} {
		for _, name := range []sm.PortName{web, unnamed, longest} {
			for kind := range sm.HostIP + 1 {
				for m := range sm.FromAnywhere + 1 {
					for in := range sm.BalanceLocal + 1 {
						for out := range sm.BalanceLocal + 1 {
							f := &sm.Frontend{
								Key: portRange, Service: name, Kind: kind, Internal: in,
								External: out, Shifted: len(more) == 0,
								Masquerade: m, Affinity: 86400 * time.Second,
								AffinityBits: 128, AffinityService: len(more) == 0,
								MasqueradePolicy: policies[int(m)%len(policies)],
							}
							c := Comment(f, more)
							require.LessOrEqual(t, len(c), MaxLen)
							got, err := ParseComment(c, portRange,
								func(word string) bool { return word == more })
							require.NoError(t, err)
							require.True(t, f.Equal(got), "%s: %+v", c, got)
						}
					}
				}
			}
		}
	}
}

func TestCommentsThatAreNotOurs(t *testing.T) {
	t.Parallel()
	for _, c := range []string{
		"", "x", "web cluster IP", "default/web:http", "default cluster IP",
		"default/web:http cluster IPs", "default/ cluster IP", "default/web node",
		"default/web cluster IP verdict=maybe", "default/web cluster IP verdict=1",
		"default/web cluster IP internal=", "default/web cluster IP external=none",
		"default/web cluster IP v=1", "default/web cluster IP v=1/4",
		"default/web cluster IP masquerade=somewhere", "default/web cluster IP m=E",
		"default/web cluster IP masquerade=none/", "default/web cluster IP masquerade=none/x",
		"default/web cluster IP m=", "default/web cluster IP m=01",
		"default/web cluster IP affinity=0", "default/web cluster IP a=x",
		"default/web cluster IP restricted", "default/web cluster IP shifted",
		"default/web cluster IP affinity=60/0", "default/web cluster IP affinity=60/256",
		"default/web cluster IP affinity=60+", "default/web cluster IP a=60+service",
	} {
		_, err := ParseComment(c, key, nil)
		require.Error(t, err, c)
	}
}

// If a comment can be parsed, writing and parsing it again returns the same frontend.
func FuzzParseComment(f *testing.F) {
	f.Add("default/web:http cluster IP verdict=reject masquerade=none affinity=10800")
	f.Add("a/b node port internal=cluster external=local masquerade=pods,host")
	f.Add("a/b loadbalancer IP v=2/0 m=5 a=60")
	f.Add("a/b host IP m=y")
	f.Add("a/b host IP masquerade=host/never")
	f.Add("a/b loadbalancer IP v=2/0 m=5 a=60/1s+")
	f.Fuzz(func(t *testing.T, comment string) {
		fe, err := ParseComment(comment, key, nil)
		if err != nil {
			return
		}
		again, err := ParseComment(Comment(fe), key, nil)
		require.NoError(t, err)
		require.True(t, fe.Equal(again), "%q: %+v and %+v", comment, fe, again)
	})
}
