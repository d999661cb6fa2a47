package adopters

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/netns"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/nftables"
	"github.com/kernlb/kernlb/servicemodel"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

// opened returns an instance in a network namespace, which is closed when the test ends.
func opened(t *testing.T, ns netns.Namespace, instance string) backends.Backend {
	t.Helper()
	b, err := nftables.New(&nftables.Config{NetNS: ns, Table: instance})
	require.NoError(t, err)
	t.Cleanup(func() { b.Close() })
	return b
}

// apply applies a state that must be accepted as a whole and without a warning.
func apply(t *testing.T, e *dataplane.Engine, s servicemodel.State) {
	t.Helper()
	r, err := e.Apply(t.Context(), s)
	require.NoError(t, err)
	require.NoError(t, r.Unsettled)
	require.Empty(t, r.Refused)
	for w := range r.Warnings.All() {
		t.Errorf("warning: %v", w)
	}
}

// send sends a connection or datagram, which must be answered, and returns the outcome.
func send(t *testing.T, from *netnstest.Host, p servicemodel.Protocol, to string) (
	got netnstest.Outcome) {
	t.Helper()
	probe := netnstest.Probe{From: from, Proto: p, To: netip.MustParseAddrPort(to)}
	got = probe.Send(t.Context())
	require.Equal(t, netnstest.Answered, got.Kind, "%s: %s", probe, got)
	return got
}

// shares sends n connections, one after the other, and counts the answers of each server.
func shares(t *testing.T, from *netnstest.Host, to string, n int) map[string]int {
	t.Helper()
	count := map[string]int{}
	for range n {
		count[send(t, from, servicemodel.TCP, to).Server]++
	}
	return count
}

// endpoint is a host that serves a port.
func endpoint(addr netip.Addr, p servicemodel.Protocol, port uint16) servicemodel.Endpoint {
	return servicemodel.Endpoint{Addr: addr,
		Ports: []servicemodel.EndpointPort{{Protocol: p, Port: port}}}
}
