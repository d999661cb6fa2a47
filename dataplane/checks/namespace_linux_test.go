package checks_test

import (
	"net"
	"net/http"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/checks"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/test/nstest"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

// Each type of check asks from the namespace of its monitor, and only from there.
func TestChecksComeFromANetworkNamespace(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	var tcp, udp net.Addr
	require.NoError(t, ns.Do(func() error {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		tcp = l.Addr()
		s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.ProtoMajor == 2 {
				answerGRPC(w, r)
			}
		}), Protocols: &http.Protocols{}}
		s.Protocols.SetHTTP1(true)
		s.Protocols.SetUnencryptedHTTP2(true)
		t.Cleanup(func() { _ = s.Close() })
		go func() { _ = s.Serve(l) }()
		conn, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err == nil {
			udp = conn.LocalAddr()
			t.Cleanup(func() { _ = conn.Close() })
		}

		return err
	}))

	inside := ok(checks.New(&checks.Config{NetNS: ns.NetNS()}))(t)
	outside := ok(checks.New(nil))(t)
	for kind, at := range map[checks.Type]net.Addr{checks.TCP: tcp, checks.HTTP: tcp,
		checks.GRPC: tcp, checks.UDP: udp} {
		target := checks.Check{Type: kind, Source: netip.MustParseAddr("127.0.0.5")}.
			Target(addrOf(at))
		require.NoError(t, inside.Ask(t.Context(), target), kind)
		require.ErrorContains(t, outside.Ask(t.Context(), target), "refused", kind)
	}
}
