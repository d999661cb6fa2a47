package silence_test

import (
	"math"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/dataplane/silence"
	"github.com/kernlb/kernlb/servicemodel"
)

// failures are the ways in which an endpoint, the first pod, stops answering, and comes back.
var failures = map[string]struct{ fail, mend func(n *network) }{
	"link down": {
		func(n *network) {
			// The pod's kernel forgets its route and neighbour with the link.
			n.saved = n.t.TempDir() + "/ip"
			run(n.t, n.Pods[0], "(echo link set eth0 up; "+
				"ip -4 neigh | sed 's/^/neigh replace /; s/PERMANENT/nud permanent/; "+
				"s/ used [0-9/]*//; s/ probes [0-9]*//'; "+ // of busybox
				"ip -4 route show default | sed 's/^/route replace /; s/ *$/ onlink/') > "+
				n.saved+"; ip link set eth0 down", "sh")
		},
		func(n *network) { run(n.t, n.Pods[0], "", "ip", "-batch", n.saved) },
	},
	"dropped": {
		func(n *network) {
			n.drop(n.Pods[0], "tcp dport 8080")
		},
		func(n *network) { run(n.t, n.Pods[0], "", "nft", "delete", "table", "ip", "t") },
	},
	"refused": {
		func(n *network) { require.NoError(n.t, n.servers[0].Close()) },
		func(n *network) { n.serve(0) },
	},
}

// An endpoint that stops answering gets no new connections until it answers again, under ten
// connections a second of five clients.
func TestKernelGivesSilentEndpointsNoConnections(t *testing.T) {
	t.Parallel()
	for kind := range kinds {
		for how, failure := range failures {
			t.Run(kind+"/"+how, func(t *testing.T) {
				t.Parallel()
				n := start(t, kind, 2, 5)
				n.warm(300)
				n.traffic(100 * time.Millisecond)
				require.Eventually(t, func() bool { return len(n.since(time.Time{})) >= 5 },
					2*time.Minute, 50*time.Millisecond)
				began := time.Now()
				failure.fail(n)
				out := n.next()
				require.True(t, out.Out)
				silent := netip.AddrPortFrom(n.Pods[0].IPv4, port)
				require.Equal(t, silent, out.Endpoint)
				require.GreaterOrEqual(t, out.Clients, 2)
				ejected := n.follower.Ejected()
				require.Len(t, ejected, 1)
				require.Equal(t, out, ejected[0])

				// Connections that begin later are answered by the other endpoint.
				require.Eventually(t, func() bool { return len(n.since(out.Time)) >= 15 },
					2*time.Minute, 50*time.Millisecond)
				var first, last time.Time
				for _, o := range n.since(began) {
					if o.Kind == netnstest.Answered {
						continue
					}
					if first.IsZero() {
						first = o.began
					}
					last = o.began
				}

				t.Logf("ejected %s, last connection %s after the first unanswered one",
					out.Time.Sub(first), last.Sub(first))
				require.Less(t, last.Sub(first), 30*time.Second)

				failure.mend(n)
				mended := time.Now()
				in := n.next()
				require.False(t, in.Out)
				require.False(t, in.Trial)
				require.Equal(t, silent, in.Endpoint)
				require.Empty(t, n.follower.Ejected())
				require.Eventually(t, func() bool {
					for _, o := range n.since(in.Time) {
						if o.Server == n.Pods[0].Name {
							t.Logf("back %s, first connection %s after the end of the failure",
								in.Time.Sub(mended), o.began.Sub(mended))
							return true
						}
					}

					return false
				}, 2*time.Minute, 50*time.Millisecond)

				require.Less(t, in.Time.Sub(mended), time.Minute)
			})
		}
	}
}

// Endpoints that answer stay in, whatever happens to the connections of some clients.
func TestEndpointsThatAnswerStay(t *testing.T) {
	t.Parallel()
	const few, many = 200, 3000
	for how, c := range map[string]struct {
		connections int
		cold        bool
		begin       func(n *network)
	}{
		"packets are lost": {many, false, func(n *network) {
			for _, pod := range n.Pods {
				run(n.t, pod, "table inet t { chain i { type filter hook input priority 0; "+
					"numgen random mod 100 == 0 drop; }; chain o { type filter hook output "+
					"priority 0; numgen random mod 100 == 0 drop; }; }", "nft", "-f", "-")
			}
		}},
		"it answers after a second": {few, true, func(n *network) {
			run(n.t, n.Pods[0], "table ip t { set s { type ipv4_addr . inet_service; "+
				"flags dynamic; size 65535; }; chain c { type filter hook input priority 0; "+
				"ip saddr 198.51.100.0/24 tcp flags syn ip saddr . tcp sport != @s "+
				"add @s { ip saddr . tcp sport } drop; }; }", "nft", "-f", "-")
		}},
		"a client gets no answers": {few, false, func(n *network) {
			n.drop(n.Outside[0], "ip daddr "+n.Outside[0].IPv4.String())
		}},
		"a policy drops a client": {few, false, func(n *network) {
			for _, pod := range n.Pods {
				n.drop(pod, "ip saddr "+n.Outside[0].IPv4.String())
			}
		}},
		"a policy drops three clients at one endpoint": {few, false, func(n *network) {
			n.drop(n.Pods[0], "ip saddr { 198.51.100.11, 198.51.100.12, 198.51.100.13 }")
		}},
		"forged sources": {few, false, func(n *network) { n.forge(false) }},
		"forged sources that endpoints drop": {few, false, func(n *network) {
			for _, pod := range n.Pods {
				n.drop(pod, "ip saddr 192.168.0.0/16")
			}
			n.forge(false)
		}},
		"forged resets": {few, false, func(n *network) { n.forge(true) }},
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			n := start(t, "nftables", 3, 5)
			if !c.cold {
				n.warm(300)
			}
			c.begin(n)
			if c.connections == many {
				n.sendMany(many)
			} else {
				n.traffic(20 * time.Millisecond)
			}

			require.Eventually(t, func() bool {
				return len(n.since(time.Time{})) >= c.connections
			}, 2*time.Minute, 50*time.Millisecond)
			answered := 0
			all := n.since(time.Time{})
			for _, o := range all {
				if o.Kind == netnstest.Answered {
					answered++
				}
			}

			t.Logf("%d of %d connections were answered at once", answered, len(all))
			require.Positive(t, answered)
			require.Empty(t, n.changes)
			require.Empty(t, n.follower.Ejected())
		})
	}
}

func TestWrongConfigurationsAreRefused(t *testing.T) {
	t.Parallel()
	table := func() *servicemodel.Table { return nil }
	for want, cfg := range map[string]*silence.Config{
		"Config.Table: is not set":                {},
		"Config.MaxShare: -1 is not from 0 to 1":  {Table: table, MaxShare: -1},
		"Config.MaxShare: 1.5 is not from 0 to 1": {Table: table, MaxShare: 1.5},
		"Config.MaxShare: NaN is not from 0 to 1": {Table: table, MaxShare: math.NaN()},
		"silence: open the conntrack table: ":     {Table: table, NetNS: "/nowhere"},
	} {
		_, err := silence.NewFollower(nil, cfg)
		require.ErrorContains(t, err, want)
	}
}

func TestChangesHaveText(t *testing.T) {
	t.Parallel()
	c := silence.Change{Service: servicemodel.PortName{Name: name, Port: "http",
		Protocol: servicemodel.TCP}, Endpoint: netip.MustParseAddrPort("10.0.0.1:8080"), Out: true,
		Since: time.Unix(0, 0), Time: time.Unix(0, 4e8), Connections: 12, Clients: 5}
	const what = "10.0.0.1:8080 of default/web:http "
	require.Equal(t, what+"ejected: 12 connections of 5 clients unanswered in 400ms", c.String())
	c.Out = false
	require.Equal(t, what+"answers again after 400ms", c.String())
	c.Trial = true
	require.Equal(t, what+"let in on trial after 400ms", c.String())
}
