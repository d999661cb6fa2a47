package rtnetlink_test

import (
	"net"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/rtnetlink"
	"github.com/kernlb/kernlb/internal/test/nstest"
	"github.com/kernlb/kernlb/internal/threadns"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

// open opens a connection in a new namespace, where lo is up.
func open(t *testing.T) *rtnetlink.Conn {
	t.Helper()
	ns, err := threadns.Open(nstest.New(t).NetNS())
	require.NoError(t, err)
	t.Cleanup(func() { ns.Close() })
	c, err := rtnetlink.Open(ns)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	lo, err := c.LinkByName("lo")
	require.NoError(t, err)
	require.NoError(t, c.LinkSetUp(lo))
	return c
}

// dumps returns the calls that list objects.
func dumps(c *rtnetlink.Conn) map[string]func() (any, error) {
	return map[string]func() (any, error){
		"links":     func() (any, error) { return c.LinkList() },
		"addresses": func() (any, error) { return c.AddrList() },
		"routes":    func() (any, error) { return c.RouteList(unix.AF_INET, unix.RT_TABLE_LOCAL) },
		"rules":     func() (any, error) { return c.RuleList(unix.AF_INET) },
		"a request": func() (any, error) {
			req := nl.NewNetlinkRequest(unix.RTM_GETADDR, unix.NLM_F_DUMP)
			req.AddData(nl.NewIfAddrmsg(unix.AF_UNSPEC))
			return c.Execute(req, unix.RTM_NEWADDR)
		},
	}
}

// A dump that other programs interrupt is repeated. The objects of a dump that is always
// interrupted are discarded.
func TestInterruptedDumpsAreBegunAgain(t *testing.T) {
	t.Parallel()
	c := open(t)
	calls, interrupted := 0, 0
	c.Wrap(func(dump bool, do func() error) error {
		calls++
		if err := do(); err != nil || !dump || calls > interrupted {
			return err
		}
		return netlink.ErrDumpInterrupted
	})

	for what, list := range dumps(c) {
		interrupted = 0
		want, err := list()
		require.NoError(t, err, what)
		require.NotEmpty(t, want, what)
		calls, interrupted = 0, 7
		got, err := list()
		require.NoError(t, err, what)
		require.Equal(t, want, got, what)
		require.Equal(t, 8, calls, what)
		calls, interrupted = 0, 100
		got, err = list()
		require.ErrorIs(t, err, netlink.ErrDumpInterrupted, what)
		require.Empty(t, got, what)
		require.Equal(t, 8, calls, what)
	}
}

// A change that another program has made a moment before is not an error. A missing object is an
// error that says so, if the caller needs the object.
func TestOthersMayBeFirst(t *testing.T) {
	t.Parallel()
	c := open(t)
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "v"
	v := &netlink.GenericLink{LinkAttrs: attrs, LinkType: "bridge"}
	require.NoError(t, c.LinkAdd(v))
	require.ErrorIs(t, c.LinkAdd(v), syscall.EEXIST)
	link, err := c.LinkByName("v")
	require.NoError(t, err)
	byIndex, err := c.LinkByIndex(link.Attrs().Index)
	require.NoError(t, err)
	require.Equal(t, "v", byIndex.Attrs().Name)

	rule := netlink.NewRule()
	rule.Family, rule.Table, rule.Priority = unix.AF_INET, 99, 99
	_, all, _ := net.ParseCIDR("0.0.0.0/0")
	route := &netlink.Route{LinkIndex: 1, Table: 99, Type: unix.RTN_LOCAL,
		Scope: unix.RT_SCOPE_HOST, Family: unix.AF_INET, Dst: all}
	c.Wrap(func(_ bool, do func() error) error {
		_ = do()
		return do()
	})

	for _, change := range []func() error{
		func() error { return c.RuleAdd(rule) },
		func() error { return c.RouteReplace(route) },
		func() error { return c.RuleDel(rule) },
		func() error { return c.RouteDel(route) },
		func() error { return c.LinkDel("v") },
		func() error { return c.LinkDel("v") },
	} {
		require.NoError(t, change())
	}

	require.True(t, rtnetlink.Gone(c.LinkSetUp(link)))
	_, err = c.LinkByName("v")
	require.True(t, rtnetlink.Gone(err), err)
	_, err = c.LinkByIndex(link.Attrs().Index)
	require.True(t, rtnetlink.Gone(err), err)
	require.Error(t, c.AddrDel(1, &net.IPNet{IP: net.IPv4(192, 0, 2, 1),
		Mask: net.CIDRMask(32, 32)}))
	routes, err := c.RouteGet(net.IPv4(127, 0, 0, 1), 1)
	require.NoError(t, err)
	require.Len(t, routes, 1)
}
