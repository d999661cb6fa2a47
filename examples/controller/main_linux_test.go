package main

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/servicemodel"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

// The program runs on a node. Clients reach the declared services, even after the program has
// ended.
func TestClientsReachWhatIsDeclared(t *testing.T) {
	t.Parallel()
	cluster := netnstest.Start(t, netnstest.Options{})
	pod, node := cluster.Pods[0], cluster.Node.NS
	require.NoError(t, pod.Serve(servicemodel.TCP, 8080))
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	const at = "127.0.0.1:8080"
	file := filepath.Join(t.TempDir(), "state.json")
	go func() {
		ended <- node.Do(func() error { return start(ctx, at, file, 9) })
	}()

	client := &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, network, addr string) (c net.Conn, err error) {
			err = node.Do(func() error {
				c, err = (&net.Dialer{}).DialContext(ctx, network, addr)
				return err
			})
			return c, err
		}}}
	defer client.CloseIdleConnections()
	body := strings.Replace(web, "10.244.0.1", pod.IPv4.String(), 1)
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		request, err := http.NewRequestWithContext(ctx, http.MethodPut,
			"http://"+at+"/services/default/web", strings.NewReader(body))
		require.NoError(c, err)
		answer, err := client.Do(request)
		require.NoError(c, err)
		require.NoError(c, answer.Body.Close())
		require.Equal(c, http.StatusOK, answer.StatusCode)
	}, time.Minute, 10*time.Millisecond)

	probe := netnstest.Probe{From: cluster.Outside[0], Proto: servicemodel.TCP,
		To: netip.MustParseAddrPort("10.96.0.10:80")}
	require.Equal(t, pod.Name, probe.Send(ctx).Server)
	stop()
	require.NoError(t, <-ended)
	require.Equal(t, pod.Name, probe.Send(t.Context()).Server)
}
