package netnstest

import (
	"context"
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/servicemodel"
)

func TestAServerStopsAndCanBeReplaced(t *testing.T) {
	t.Parallel()
	ns := newNS(t)
	h := &Host{Name: "self", NS: ns, anySource: true}
	for _, addr := range []string{"127.0.0.1", "::1"} {
		for _, proto := range Protocols() {
			to := netip.AddrPortFrom(netip.MustParseAddr(addr), 80)
			for _, name := range []string{"first", "the second"} {
				s := ok(ns.Serve(name, proto, to))(t)
				require.Equal(t, to, s.Addr)
				_, err := ns.Serve("third", proto, to)
				require.ErrorContains(t, err, "address already in use")
				for hits := range uint64(3) {
					require.Equal(t, hits, s.Hits())
					o := Probe{From: h, Proto: proto, To: to}.Send(context.Background())
					require.Equal(t, name, o.Server, "%s", o)
				}

				require.NoError(t, s.Close())
			}

			o := Probe{From: h, Proto: proto, To: to}.Send(context.Background())
			require.Equal(t, Refused, o.Kind, "%s to %s: %s", proto, to, o)
		}
	}
}

func TestAServerTakesAFreePort(t *testing.T) {
	t.Parallel()
	ns := newNS(t)
	h := &Host{Name: "self", NS: ns, anySource: true}
	for _, proto := range []servicemodel.Protocol{servicemodel.TCP, servicemodel.UDP} {
		for _, addr := range []string{"127.0.0.1", "::1"} {
			s := ok(ns.Serve("free", proto, netip.AddrPortFrom(netip.MustParseAddr(addr), 0)))(t)
			require.NotZero(t, s.Addr.Port())
			require.Equal(t, addr, s.Addr.Addr().String())
			o := Probe{From: h, Proto: proto, To: s.Addr}.Send(context.Background())
			require.Equal(t, "free", o.Server, "%s", o)
		}
	}
}

func TestServersThatCannotStartSaySo(t *testing.T) {
	t.Parallel()
	ns := newNS(t)
	for name, s := range map[string]struct {
		proto servicemodel.Protocol
		addr  netip.AddrPort
	}{
		"needs one address": {servicemodel.TCP, netip.MustParseAddrPort("0.0.0.0:80")},
		"needs a port":      {servicemodel.SCTP, netip.MustParseAddrPort("127.0.0.1:0")},
		"unknown protocol":  {1, netip.MustParseAddrPort("127.0.0.1:80")},
		"cannot assign":     {servicemodel.UDP, netip.MustParseAddrPort("10.1.1.1:80")},
	} {
		_, err := ns.Serve("none", s.proto, s.addr)
		require.ErrorContains(t, err, name)
	}
}

// A second Close of a server, even after its namespace, is an error, and leaves other servers at
// its address alone.
func TestAServerIsClosedTwice(t *testing.T) {
	t.Parallel()
	for _, proto := range Protocols() {
		ns := newNS(t)
		h := &Host{Name: "self", NS: ns, anySource: true}
		to := netip.MustParseAddrPort("127.0.0.1:80")
		first := ok(ns.Serve("first", proto, to))(t)
		require.NoError(t, first.Close())
		second := ok(ns.Serve("second", proto, to))(t)
		require.ErrorIs(t, first.Close(), net.ErrClosed)
		o := Probe{From: h, Proto: proto, To: to}.Send(context.Background())
		require.Equal(t, "second", o.Server, "%s", o)
		require.NoError(t, ns.Close())
		require.ErrorIs(t, second.Close(), net.ErrClosed)
	}
}
