package kubeproxy

import (
	"errors"
	"io"
	"net"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/internal/test/nstest"
)

func TestRunning(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, addr, path, says string
		code                   int
		want                   string
	}{
		{"iptables", "127.0.0.1", "/proxyMode", "iptables", http.StatusOK, "iptables"},
		{"IPv6 alone", "[::1]", "/proxyMode", "nftables\n", http.StatusOK, "nftables"},
		{"another program's metrics", "127.0.0.1", "/metrics", "iptables", http.StatusOK, ""},
		{"says something else", "127.0.0.1", "/proxyMode", "a mode that nobody has", http.StatusOK,
			""},
		{"an error", "127.0.0.1", "/proxyMode", "ipvs", http.StatusInternalServerError, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ns := nstest.New(t)
			cfg := &Config{NetNS: ns.Fd()}
			mode := ok(Running(t.Context(), cfg))(t)
			require.Empty(t, mode, "nobody listens")

			mux := http.NewServeMux()
			mux.HandleFunc(c.path, func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(c.code)
				io.WriteString(w, c.says) //nolint:errcheck // the test would fail
			})
			var l net.Listener
			require.NoError(t, ns.Do(func() (err error) {
				l, err = (&net.ListenConfig{}).Listen(t.Context(), "tcp", c.addr+":10249")
				return err
			}))
			server := &http.Server{Handler: mux}
			go server.Serve(l) //nolint:errcheck // ends with Close
			t.Cleanup(func() { server.Close() })
			mode = ok(Running(t.Context(), cfg))(t)
			require.Equal(t, c.want, mode)
		})
	}
	ns := nstest.New(t)
	require.NoError(t, ns.Do(func() error {
		const nobody = 65534
		if _, err := unix.SetfsuidRetUid(nobody); err != nil {
			return err
		}
		l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:10249")
		if _, again := unix.SetfsuidRetUid(0); err != nil || again != nil {
			return errors.Join(err, again)
		}
		mux := http.NewServeMux()
		mux.HandleFunc("/proxyMode", func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, "ipvs") //nolint:errcheck // the test would fail
		})
		go http.Serve(l, mux) //nolint:errcheck // ends with the listener
		t.Cleanup(func() { l.Close() })
		return nil
	}))
	mode := ok(Running(t.Context(), &Config{NetNS: ns.Fd()}))(t)
	require.Empty(t, mode, "any user can listen there")
	_, err := Running(t.Context(), &Config{NetNS: -1})
	require.ErrorContains(t, err, "NetNS: -1 is not a file descriptor")
}
