package nodeaddrs_test

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/dataplane/nodeaddrs"
	"github.com/kernlb/kernlb/internal/test/nstest"
	"github.com/kernlb/kernlb/servicemodel"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

// node is a network namespace with a link, and a source of its addresses.
type node struct {
	*nodeaddrs.Source
	t  *testing.T
	ns *netnstest.NS
}

func newNode(t *testing.T, except ...string) *node {
	t.Helper()
	n := &node{t: t, ns: nstest.New(t)}
	var err error
	n.Source, err = nodeaddrs.New(&nodeaddrs.Config{NetNS: n.ns.NetNS(), Except: except})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, n.Close()) })
	n.ip("link add v type veth peer name w")
	return n
}

// ip runs commands of ip.
func (n *node) ip(commands ...string) {
	n.t.Helper()
	for _, c := range commands {
		nstest.Run(n.t, n.ns, "ip "+c)
	}
}

// has requires these addresses, once the IPv6 addresses are usable: the kernel reports them some
// time after they were added.
func (n *node) has(want ...string) {
	n.t.Helper()
	require.EventuallyWithT(n.t, func(c *assert.CollectT) {
		got, err := n.Complete(n.t.Context(), servicemodel.Node{Name: "this"})
		require.NoError(c, err)
		require.Equal(c, "this", got.Name)
		text := []string{}
		for _, a := range got.Addresses {
			text = append(text, a.String())
		}
		require.Equal(c, append([]string{}, want...), text)
	}, time.Minute, 5*time.Millisecond)
}

func TestAddressesAreThoseThatOthersCanReach(t *testing.T) {
	t.Parallel()
	n := newNode(t, "w", "missing")
	n.has()
	n.ip("link set lo up", "link set w up", "link set v up")
	n.ip("address add 192.0.2.1/24 dev v", "address add 192.0.2.2/24 dev v",
		"address add 10.96.0.1/32 dev w", "address add 10.96.0.2/32 dev v scope host",
		"address add 2001:db8::1/64 dev v nodad",
		"address add 2001:db8::2/64 dev v nodad preferred_lft 0", "address add fe80::1/64 dev v")
	for _, d := range []string{"kube-ipvs0", "kube-dummy-if"} { // of other balancers
		n.ip("link add "+d+" type bridge", "address add 10.96.0.3/32 dev "+d,
			"address add fd00:96::3/128 dev "+d+" nodad")
	}

	n.has("192.0.2.1", "192.0.2.2", "2001:db8::1", "2001:db8::2")
	n.ip("address delete 192.0.2.1/24 dev v", "address add 198.51.100.1/32 dev lo",
		"address delete 2001:db8::1/64 dev v")

	// The kernel has removed 192.0.2.2 with the primary address of its network.
	n.has("198.51.100.1", "2001:db8::2")
	n.ip("address add 2001:db8::3/64 dev v nodad")
	n.has("198.51.100.1", "2001:db8::3", "2001:db8::2")
	said := servicemodel.Node{Addresses: []netip.Addr{netip.MustParseAddr("203.0.113.1")}}
	got, err := n.Complete(t.Context(), said)
	require.NoError(t, err)
	require.Equal(t, said, got, "what is said is left as it is")
}

// A closed source does not return the addresses of the program's own namespace.
func TestAClosedSource(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.has()
	require.NoError(t, n.Close())
	_, err := n.Complete(t.Context(), servicemodel.Node{})
	require.ErrorIs(t, err, kernelerr.ErrClosed)
	require.ErrorIs(t, n.Watch(t.Context(), func() {}), kernelerr.ErrClosed)
}

// While duplicate address detection runs, an address is not usable and does not count.
func TestATentativeAddressDoesNotCountYet(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	require.NoError(t, n.ns.SetSysctl("net/ipv6/conf/v/accept_dad", "1"))
	n.ip("link set v up", "address add 2001:db8::1/64 dev v") // down: no detection
	got, err := n.Complete(t.Context(), servicemodel.Node{})
	require.NoError(t, err)
	require.Empty(t, got.Addresses)
	n.ip("link set w up")
	n.has("2001:db8::1")
}

// A program that embeds an engine without addresses in its states has node ports at the present
// primary address of the node. Addresses that are not the node's cause no apply.
func TestAnEngineFollowsTheNode(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	kernel := &memory.Kernel{}
	e := dataplane.New(memory.New(kernel), &dataplane.Config{Node: n})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx, &dataplane.RunOptions{Resync: -1, CheckInterval: -1}) }()
	name := servicemodel.Name{Namespace: "default", Name: "web"}
	rev := e.Set(servicemodel.State{}.
		WithNode(servicemodel.Node{
			NodePortAddresses: servicemodel.NodePortAddresses{Primary: true}}).
		WithService(&servicemodel.Service{Name: name,
			ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")},
			Ports: []servicemodel.ServicePort{{Protocol: servicemodel.TCP, Port: 80,
				NodePort: 30080}}}))
	require.NoError(t, e.Wait(t.Context(), rev))
	at := func(want string) {
		t.Helper()
		require.Eventually(t, func() bool {
			return fmt.Sprint(kernel.Table().Rules().NodePorts) == want
		}, time.Minute, time.Millisecond, want)
	}

	at("[]")
	n.ip("address add 192.0.2.1/24 dev v")
	at("[192.0.2.1/32]")
	applies := e.Status().Totals.Applies
	n.ip("address add 127.0.0.7/8 dev lo", "link set v up", "address add 192.0.2.2/24 dev v")
	n.ip("address add 2001:db8::1/64 dev v nodad")
	at("[192.0.2.1/32 2001:db8::1/128]")
	require.LessOrEqual(t, e.Status().Totals.Applies, applies+2)
	n.ip("address delete 192.0.2.1/24 dev v")
	at("[2001:db8::1/128]")
	stop()
	require.ErrorIs(t, <-ended, context.Canceled)
}

// After lost notices, the source lists the addresses.
func TestABurstOfAddressesIsNoticed(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	s, err := nodeaddrs.New(&nodeaddrs.Config{NetNS: n.ns.NetNS()})
	require.NoError(t, err)
	defer s.Close()
	got, err := s.Complete(t.Context(), servicemodel.Node{})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	changed, ended := make(chan struct{}, 1), make(chan error, 1)
	go func() {
		ended <- s.Watch(ctx, func() {
			select {
			case changed <- struct{}{}:
			default:
			}
		})
	}()

	var batch strings.Builder
	for i := range 2000 {
		fmt.Fprintf(&batch, "address add 10.1.%d.%d/32 dev v\n", i>>8, i&0xff)
	}
	nstest.Exec(t, n.ns, batch.String(), "ip", "-batch", "-")
	for len(got.Addresses) < 2000 {
		select {
		case <-changed:
		case <-time.After(time.Minute):
			require.Fail(t, "nothing was noticed")
		}

		got, err = s.Complete(t.Context(), servicemodel.Node{})
		require.NoError(t, err)
	}

	stop()
	require.NoError(t, <-ended)
}
