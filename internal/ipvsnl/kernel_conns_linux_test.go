package ipvsnl_test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/dataplane/netnstest"
	. "github.com/kernlb/kernlb/internal/ipvsnl"
)

// quick is longer than any answer in one machine takes, even an emulated one; patient is longer
// than TCP waits before it sends again.
const (
	quick   = 500 * time.Millisecond
	patient = 30 * time.Second
)

// echoServer starts a server at 10.244.1.1:8080 in the namespace, which gets that address and
// 10.96.0.1 on its loopback.
func echoServer(t *testing.T, ns *netnstest.NS) {
	t.Helper()
	h, err := netlink.NewHandleAt(netns.NsHandle(ns.Fd()), unix.NETLINK_ROUTE)
	require.NoError(t, err)
	defer h.Close()
	lo, err := h.LinkByName("lo")
	require.NoError(t, err)
	for _, a := range []string{"10.244.1.1/32", "10.96.0.1/32"} {
		addr, err := netlink.ParseAddr(a)
		require.NoError(t, err)
		require.NoError(t, h.AddrAdd(lo, addr))
	}
	var l net.Listener
	require.NoError(t, ns.Do(func() (err error) {
		l, err = (&net.ListenConfig{}).Listen(t.Context(), "tcp", "10.244.1.1:8080")
		return err
	}))
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				io.Copy(conn, conn) //nolint:errcheck // it ends when the test does
				conn.Close()        //nolint:errcheck // nothing is lost
			}()
		}
	}()
}

// connect connects to the service web in the namespace.
func connect(t *testing.T, ns *netnstest.NS) (conn net.Conn, err error) {
	t.Helper()
	err = ns.Do(func() (err error) {
		conn, err = (&net.Dialer{Timeout: patient}).DialContext(t.Context(), "tcp", "10.96.0.1:80")
		return err
	})
	if err == nil {
		t.Cleanup(func() { conn.Close() }) //nolint:errcheck // nothing is lost
	}
	return conn, err
}

// echo sends a line and waits for it to come back.
func echo(conn net.Conn, line string, limit time.Duration) error {
	if err := conn.SetDeadline(time.Now().Add(limit)); err != nil {
		return err
	}
	if _, err := io.WriteString(conn, line+"\n"); err != nil {
		return err
	}
	got, err := bufio.NewReader(conn).ReadString('\n')
	if err == nil && got != line+"\n" {
		err = errors.New("got " + got)
	}
	return err
}

// What the documentation of Batch says about connections.
func TestKernelConnectionsGoOn(t *testing.T) {
	c, ns := kernelClient(t)
	echoServer(t, ns)
	d := Dest("10.244.1.1:8080")
	require.NoError(t, submit(t, c, func(b *Batch) {
		b.NewService(Wanted(Web))
		b.NewDestination(Web, d)
	}))
	conn, err := connect(t, ns)
	require.NoError(t, err)
	require.NoError(t, echo(conn, "hello", patient))
	list, err := c.Destinations(t.Context(), Web)
	require.NoError(t, err)
	require.Equal(t, uint32(1), list[0].ActiveConns)
	require.Eventually(t, func() bool {
		list, err := c.Destinations(t.Context(), Web)
		return err == nil && list[0].Stats.Connections == 1 && list[0].Stats.InBytes > 0 &&
			list[0].Stats.OutPackets > 0
	}, patient, 100*time.Millisecond, "statistics follow every two seconds")

	for _, scheduler := range []string{"wlc", "sh", "mh", "none", "rr"} {
		s := Service{ServiceKey: Web, Scheduler: scheduler, Flags: FlagHashPort | FlagPersistent,
			Timeout: time.Minute}
		require.NoError(t, submit(t, c, func(b *Batch) { b.SetService(s) }))
		require.NoError(t, echo(conn, scheduler, patient))
	}
	direct := d
	direct.Forward = ForwardDirectRoute
	require.NoError(t, submit(t, c, func(b *Batch) {
		b.SetService(Wanted(Web))
		b.SetDestination(Web, direct)
	}))
	require.NoError(t, echo(conn, "it keeps its forwarding method", patient))

	drained := d
	drained.Weight = 0
	require.NoError(t, submit(t, c, func(b *Batch) { b.SetDestination(Web, drained) }))
	require.NoError(t, echo(conn, "it is drained", patient))
	_, err = connect(t, ns)
	require.ErrorIs(t, err, syscall.ECONNREFUSED,
		"a new connection to a service without usable destination")
	require.NoError(t, submit(t, c, func(b *Batch) { b.SetDestination(Web, d) }))
	again, err := connect(t, ns)
	require.NoError(t, err)
	require.NoError(t, echo(again, "it is back", patient))
	require.NoError(t, echo(conn, "still here", patient))
}

func TestKernelConnectionsComeBackWithTheirDestination(t *testing.T) {
	c, ns := kernelClient(t)
	echoServer(t, ns)
	d := Dest("10.244.1.1:8080")
	require.NoError(t, submit(t, c, func(b *Batch) {
		// as long as there is a service of the family, IPVS sees packets
		b.NewService(Wanted(Marks))
		b.NewService(Wanted(Web))
		b.NewDestination(Web, d)
	}))
	for _, tt := range []struct {
		name        string
		remove, add func(b *Batch)
	}{
		{
			"the destination",
			func(b *Batch) { b.DelDestination(Web, d.DestinationKey) },
			func(b *Batch) { b.NewDestination(Web, d) },
		},
		{
			"the service",
			func(b *Batch) { b.DelService(Web) },
			func(b *Batch) { b.NewService(Wanted(Web)); b.NewDestination(Web, d) },
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			conn, err := connect(t, ns)
			require.NoError(t, err)
			require.NoError(t, echo(conn, "hello", patient))
			require.NoError(t, submit(t, c, tt.remove))
			err = echo(conn, "anybody there?", quick)
			var timeout net.Error
			require.ErrorAs(t, err, &timeout)
			require.True(t, timeout.Timeout(), "%v", err)
			require.NoError(t, submit(t, c, tt.add))
			require.NoError(t, conn.SetDeadline(time.Now().Add(patient)))
			line, err := bufio.NewReader(conn).ReadString('\n')
			require.NoError(t, err)
			require.Equal(t, "anybody there?\n", line)
		})
	}
}

func TestKernelConnectionsDieWithTheLastService(t *testing.T) {
	c, ns := kernelClient(t)
	echoServer(t, ns)
	d := Dest("10.244.1.1:8080")
	fill := func(b *Batch) { b.NewService(Wanted(Web)); b.NewDestination(Web, d) }
	require.NoError(t, submit(t, c, fill))
	conn, err := connect(t, ns)
	require.NoError(t, err)
	require.NoError(t, echo(conn, "hello", patient))
	require.NoError(t, submit(t, c, func(b *Batch) { b.DelService(Web) }))
	require.ErrorIs(t, echo(conn, "anybody there?", patient), syscall.ECONNRESET,
		"without any service, the packet goes to a port of this machine where nobody listens")
}
