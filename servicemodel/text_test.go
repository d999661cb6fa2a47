package servicemodel_test

import (
	"encoding"
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	sm "github.com/kernlb/kernlb/servicemodel"
)

func TestTextIsReadBack(t *testing.T) {
	t.Parallel()
	name := sm.Name{Namespace: "default", Name: "web"}
	for _, test := range []struct {
		value any
		text  string
	}{
		{sm.TCP, "tcp"}, {sm.UDP, "udp"}, {sm.SCTP, "sctp"},
		{sm.IPv4, "IPv4"}, {sm.IPv6, "IPv6"},
		{name, "default/web"},
		{key("10.96.0.10:80", sm.TCP), "10.96.0.10:80/tcp"},
		{key("[fd00::1]:80", sm.UDP), "[fd00::1]:80/udp"},
		{key("0.0.0.0:30080", sm.TCP), "*4:30080/tcp"},
		{key("[::]:30080", sm.SCTP), "*6:30080/sctp"},
		{sm.ClusterIP, "cluster-ip"}, {sm.LoadBalancer, "load-balancer"},
		{sm.ExternalIP, "external-ip"}, {sm.NodePort, "node-port"}, {sm.HostIP, "host-ip"},
		{sm.Reject, "reject"}, {sm.Drop, "drop"}, {sm.BalanceCluster, "cluster"},
		{sm.BalanceLocal, "local"},
		{sm.Origins(0), "none"}, {sm.FromAnywhere, "all"}, {sm.FromHost, "host"},
		{sm.FromPods, "pods"}, {sm.FromOutside, "outside"},
		{sm.FromPods | sm.FromHost, "pods,host"}, {sm.FromPods | sm.FromOutside, "pods,outside"},
		{sm.FromHost | sm.FromOutside, "host,outside"},
		{sm.ConnectionPolicy{}, "default"},
		{sm.ConnectionPolicy{Mode: sm.LeaveConnections}, "leave"},
		{sm.ConnectionPolicy{Mode: sm.DrainConnections, Drain: 90 * time.Second}, "drain 1m30s"},
		{sm.ConnectionPolicy{Mode: sm.CutConnections}, "cut"},
		{sm.SessionAffinity{}, "none"}, {sm.SessionAffinity{ClientIP: true}, "default"},
		{sm.SessionAffinity{ClientIP: true, Timeout: time.Minute}, "1m0s"},
		{sm.SessionAffinity{ClientIP: true, Timeout: time.Hour, Bits4: 24, Bits6: 56,
			WholeService: true}, "1h0m0s ipv4/24 ipv6/56 service"},
		{sm.SessionAffinity{ClientIP: true, Bits4: 32, Bits6: 128}, "default ipv4/32 ipv6/128"},
		{sm.SessionAffinity{ClientIP: true, WholeService: true}, "default service"},
	} {
		text := ok(test.value.(encoding.TextMarshaler).MarshalText())(t)
		require.Equal(t, test.text, string(text))
		if s, ok := test.value.(fmt.Stringer); ok {
			require.Equal(t, test.text, s.String())
		}
		back := reflect.New(reflect.TypeOf(test.value))
		require.NoError(t, back.Interface().(encoding.TextUnmarshaler).UnmarshalText(text))
		require.Equal(t, test.value, back.Elem().Interface())
	}
}

func key(at string, p sm.Protocol) sm.FrontendKey {
	a := netip.MustParseAddrPort(at)
	return sm.FrontendKey{Addr: a.Addr(), Port: a.Port(), Protocol: p}
}

func TestTextThatIsNoneIsAnError(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		into encoding.TextUnmarshaler
		text string
		want string
	}{
		{new(sm.Protocol), "icmp", `"icmp": must be tcp, udp or sctp`},
		{new(sm.Verdict), "accept", `"accept": must be reject, drop, cluster or local`},
		{new(sm.Name), "web", `"web": must be NAMESPACE/NAME`},
		{new(sm.Name), "a/b/c", `"a/b/c": must be NAMESPACE/NAME`},
		{new(sm.FrontendKey), "10.96.0.10:80", `"10.96.0.10:80": must be ADDRESS:PORT/PROTOCOL`},
		{new(sm.FrontendKey), "*4:99999/tcp", `"*4:99999/tcp": port: `},
		{new(sm.FrontendKey), "10.96.0.10/tcp", `"10.96.0.10/tcp": not an ip:port`},
		{new(sm.FrontendKey), "10.96.0.10:80/http",
			`"10.96.0.10:80/http": protocol "http": must be`},
		{new(sm.SessionAffinity), "1s ipv4/33",
			`"1s ipv4/33": "ipv4/33" must be ipv4/BITS, ipv6/BITS or service`},
		{new(sm.SessionAffinity), "1s ipv6/0",
			`"1s ipv6/0": "ipv6/0" must be ipv4/BITS, ipv6/BITS or service`},
		{new(sm.SessionAffinity), "0s", `"0s": must be none, default or a time such as 30s`},
	} {
		require.ErrorContains(t, test.into.UnmarshalText([]byte(test.text)), test.want)
	}

	for _, value := range []encoding.TextMarshaler{sm.Verdict(9), sm.Kind(77),
		sm.Family(5), sm.FrontendKey{Port: 80}, sm.ConnectionPolicy{Mode: 9}} {
		_, err := value.MarshalText()
		require.ErrorContains(t, err, "has no", fmt.Sprint(value))
	}
}

func FuzzParseFrontendKey(f *testing.F) {
	for _, s := range []string{"10.96.0.10:80/tcp", "*6:1/udp", "[fd00::1%x]:80/sctp", "*4:/tcp"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		var k, again sm.FrontendKey
		if k.UnmarshalText([]byte(s)) != nil {
			return
		}
		require.NoError(t, again.UnmarshalText([]byte(k.String())))
		require.Equal(t, k, again)
	})
}

func TestWordsOfDefaultsAreTaken(t *testing.T) {
	t.Parallel()
	var s sm.Service
	require.NoError(t, json.Unmarshal([]byte(`{"name": "default/web", "forwarding": "nat",
		"internalTrafficPolicy": "Cluster", "externalTrafficPolicy": "Local",
		"masquerade": {"clusterIPs": "default", "nodePorts": "host"}}`), &s))
	require.Equal(t, sm.Service{Name: s.Name, ExternalTrafficPolicy: sm.PolicyLocal,
		Masquerade: sm.Masquerade{NodePorts: sm.MasqueradeHost}}, s)
}

func TestConnectionPoliciesAreValidated(t *testing.T) {
	t.Parallel()
	require.Equal(t, "policy 9", sm.ConnectionPolicy{Mode: 9}.String())
	require.Error(t, sm.ConnectionPolicy{Mode: 9}.Validate())
	drain := sm.ConnectionPolicy{Mode: sm.DrainConnections, Drain: time.Second}
	require.NoError(t, drain.Validate())
	require.EqualError(t, sm.ConnectionPolicy{Mode: sm.DrainConnections}.Validate(),
		"connection policy: drain: 0s: must be at least 1s")
}

// A connection policy does not change the table. Only package flows acts on the policy.
func TestConnectionPoliciesStayOutOfTheTable(t *testing.T) {
	t.Parallel()
	svc := webService(func(s *sm.Service) { s.Connections.Mode = sm.CutConnections })
	state := sm.State{}.WithNode(thisNode).WithService(webService()).WithEndpoints(web,
		[]sm.Endpoint{endpoint("10.64.0.1")})
	table := mustResolve(t, nil, state)
	changed := state.WithService(svc)
	require.False(t, state.Same(changed))
	require.Equal(t, sm.CutConnections, changed.Service(web).Connections.Mode)
	require.True(t, sm.Diff(table, mustResolve(t, table, changed)).Empty())
}
