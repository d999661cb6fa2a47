package netnstest

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/threadns"
	"github.com/kernlb/kernlb/servicemodel"
)

// newNS returns a namespace that is closed when the test ends.
func newNS(tb testing.TB) *NS {
	tb.Helper()
	Require(tb)
	ns := ok(NewNS(tb.Name()))(tb)
	tb.Cleanup(func() { require.NoError(tb, ns.Close()) })
	return ns
}

// threadNS names the namespace of the calling thread.
func threadNS() (string, error) { return os.Readlink("/proc/thread-self/ns/net") }

func TestDoRunsInTheNamespaceAndNowhereElse(t *testing.T) {
	t.Parallel()
	a, b := newNS(t), newNS(t)
	home := ok(threadNS())(t)
	var inA, inB, inAAgain string
	require.NoError(t, a.Do(func() (err error) {
		if inA, err = threadNS(); err != nil {
			return err
		}
		err = b.Do(func() (err error) {
			inB, err = threadNS()
			return err
		})
		if err != nil {
			return err
		}
		inAAgain, err = threadNS()
		return err
	}))

	require.Equal(t, inA, inAAgain)
	require.NotEqual(t, inA, inB)
	require.NotContains(t, []string{inA, inB}, home)
	var others sync.WaitGroup
	for range 50 {
		others.Go(func() {
			a.Do(func() error { return nil }) //nolint:errcheck // only its thread matters
			now, err := threadNS()
			if err != nil || now != home {
				t.Errorf("a thread was left in %s (%v)", now, err)
			}
		})
	}

	others.Wait()
}

func TestDoReturnsTheError(t *testing.T) {
	t.Parallel()
	ns, mine := newNS(t), errors.New("mine")
	require.Equal(t, mine, ns.Do(func() error { return mine }))
	require.ErrorIs(t, ns.Do(func() error { runtime.Goexit(); return nil }), threadns.ErrEnded)
	require.NoError(t, ns.Do(func() error { return nil }))
}

func TestASocketStaysInItsNamespace(t *testing.T) {
	t.Parallel()
	a, b := newNS(t), newNS(t)
	var l net.Listener
	listen := func() (err error) {
		l, err = net.Listen("tcp", "127.0.0.1:80")
		return err
	}

	require.NoError(t, a.Do(listen))
	defer l.Close() //nolint:errcheck // nothing was written
	require.Error(t, a.Do(listen), "the address is taken here")
	_, err := b.Serve("other", servicemodel.TCP, netip.MustParseAddrPort("127.0.0.1:80"))
	require.NoError(t, err, "but not there")
}

func TestSettingsBelongToTheNamespace(t *testing.T) {
	t.Parallel()
	a, b := newNS(t), newNS(t)
	for _, key := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
		require.NoError(t, a.SetSysctl(key, "1"))
		value := ok(a.Sysctl(key))(t)
		require.Equal(t, "1", value)
		value = ok(b.Sysctl(key))(t)
		require.Equal(t, "0", value)
	}

	require.ErrorContains(t, a.SetSysctl("net/ipv4/no_such_key", "1"), "no_such_key")
	_, err := a.Sysctl("net/ipv4/no_such_key")
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestAClosedNamespaceRefusesEverything(t *testing.T) {
	t.Parallel()
	Require(t)
	ns := ok(NewNS("closed"))(t)
	require.NoError(t, ns.Close())
	require.NoError(t, ns.Close())
	require.Equal(t, "closed", ns.name)
	require.Error(t, ns.Do(func() error { return nil }))
	_, err := ns.Serve("late", servicemodel.TCP, netip.MustParseAddrPort("127.0.0.1:80"))
	require.Error(t, err)
}
