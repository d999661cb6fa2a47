package main

import (
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/test/nstest"
)

// The chains of a kube-proxy that runs are its own, until another instance has other names.
func TestARunningKubeProxyIsSpared(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	file := filepath.Join(t.TempDir(), "plan.json")
	out := done(t, ns, webManifest, "plan -f - -backend iptables -o json")
	require.NoError(t, os.WriteFile(file, []byte(out), 0o600))
	var l net.Listener
	require.NoError(t, ns.Do(func() (err error) {
		l, err = net.Listen("tcp", "127.0.0.1:10249")
		return err
	}))
	server := &http.Server{Handler: http.HandlerFunc(func(a http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(a, "iptables")
	})}
	go server.Serve(l)
	t.Cleanup(func() { server.Close() })
	for _, args := range []string{"apply -f -", "apply -changes " + file,
		"watch -f " + t.TempDir()} {
		fails(t, ns, webManifest, exitFailed, "kube-proxy runs in iptables mode", args+
			" -backend iptables")
	}
	done(t, ns, webManifest, "apply -f - -backend iptables -instance mine")
	done(t, ns, webManifest, "apply -f -")
}
