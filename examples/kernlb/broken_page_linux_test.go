package main

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/test/nstest"
	"github.com/kernlb/kernlb/servicemodel"
)

// The page also shows why the eight services are broken, as docs/page.md says.
func TestBrokenServicesAreDiagnosedOnThePage(t *testing.T) {
	t.Parallel()
	c := netnstest.Start(t, netnstest.Options{})
	require.NoError(t, c.Pods[1].Serve(servicemodel.TCP, 8080))
	w := &watched{t: t, ns: c.Node.NS, dir: t.TempDir()}
	w.args = []string{"watch", "-f", w.dir, "-copies", t.TempDir(), "-node", "n1", "-node-ip",
		netnstest.Net.NodeIPv4, "-listen", "127.0.0.1:0"}
	w.write("services.yaml", brokenServices())
	nstest.NFT(t, w.ns, brokenRules)
	w.start()
	at := w.address()
	w.logs("msg=applied")
	for name, look := range map[string]struct{ path, says string }{
		"no ready endpoint":            {"/?show=problems", "1 endpoint, none ready"},
		"Local without endpoints here": {"/?show=problems", "no ready endpoint is on node n1"},
		"source ranges": {"/trace?from=198.51.100.11&link=eth1&to=203.0.113.3:80/tcp",
			"dropped: 198.51.100.11 may not connect, only 192.0.2.0/24"},
		"wrong targetPort": {"/?show=problems", "none has a port named http/tcp: they have htpp"},
		"node port of another": {"/service?name=default/second",
			"*4:30005/tcp: default/first:http wins over default/second:http"},
		"nothing listens": {"POST /ask?name=default/deaf", "refuses connections: nothing listens"},
		"firewall":        {"POST /ask?name=default/fw", "does not answer: "},
		"and whose it is": {"/hooks", "drop (&#34;no web&#34;)"},
		"refused":         {"/refused", "nftables cannot express service default/refused:http: "},
	} {
		t.Run(name, func(t *testing.T) {
			code, body := get(t, w.ns, at, at, look.path)
			require.Equal(t, http.StatusOK, code)
			require.Contains(t, body, look.says)
		})
	}
	w.halt()
}
