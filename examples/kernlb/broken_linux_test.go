package main

import (
	"context"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/test/nstest"
	"github.com/kernlb/kernlb/servicemodel"
)

// brokenServices are eight services, each broken in another way. The endpoints are pods of
// netnstest. The services fw and deaf are correct, but their surroundings are not.
func brokenServices() string {
	s := serviceManifest("unready", "10.96.0.1", "", "")
	s = strings.Replace(s, "{ready: true}", "{ready: false}", 1) +
		serviceManifest("local", "10.96.0.2", "", "type: NodePort, externalTrafficPolicy: Local") +
		serviceManifest("ranges", "10.96.0.3", "",
			"type: LoadBalancer, loadBalancerSourceRanges: [192.0.2.0/24]") +
		strings.Replace(serviceManifest("port", "10.96.0.4", "", ""),
			"ports: [{name: http, port: 8080", "ports: [{name: htpp, port: 8080", 1) +
		serviceManifest("first", "10.96.0.50", "", "type: NodePort") +
		serviceManifest("second", "10.96.0.5", "", "type: NodePort") +
		strings.Replace(serviceManifest("deaf", "10.96.0.6", "", ""), "port: 8080", "port: 9999",
			1) +
		serviceManifest("fw", "10.96.0.7", "", "") +
		serviceManifest("refused", "10.96.0.8", "annotations: {kernlb.io/scheduler: sed}", "")
	for name, port := range map[string]string{"local": "30002", "first": "30005",
		"second": "30005"} {
		at := strings.Index(s, "name: "+name+", namespace")
		s = s[:at] + strings.Replace(s[at:], "port: 80,", "port: 80, nodePort: "+port+",", 1)
	}

	at := strings.Index(s, "name: ranges, namespace")
	end := at + strings.Index(s[at:], "\n---")
	return s[:end] + "\nstatus: {loadBalancer: {ingress: [{ip: 203.0.113.3}]}}" + s[end:]
}

// brokenRules are those of another program, which keep the clients of fw away.
const brokenRules = `table inet fw {
chain out {
type filter hook postrouting priority 10
tcp dport 8080 drop comment "no web"
}
}`

// Eight services are broken in eight ways. For each, one command of docs/debugging.md finds the
// reason, and one view of the page, as docs/page.md says.
func TestBrokenServicesAreDiagnosed(t *testing.T) {
	t.Parallel()
	c := netnstest.Start(t, netnstest.Options{})
	require.NoError(t, c.Pods[1].Serve(servicemodel.TCP, 8080))
	w := &watched{t: t, ns: c.Node.NS, dir: t.TempDir()}
	node := []string{"-f", w.dir, "-node", "n1", "-node-ip", netnstest.Net.NodeIPv4}
	w.args = append([]string{"watch", "-copies", t.TempDir(), "-listen", "127.0.0.1:0"}, node...)
	w.write("services.yaml", brokenServices())
	nstest.NFT(t, w.ns, brokenRules)
	w.start()
	at := w.address()
	w.logs("msg=applied")
	for name, b := range map[string]struct{ command, says, path, shows string }{
		"no ready endpoint": {"trace -from 10.244.1.1%veth1 -to 10.96.0.1:80/tcp",
			"rejected: 1 endpoint, none ready", "/?show=problems", "1 endpoint, none ready"},
		"Local without endpoints here": {"trace -from 198.51.100.11%eth1 -to 192.0.2.10:30002/tcp",
			"dropped: externalTrafficPolicy is Local and no ready endpoint is on node n1",
			"/?show=problems", "no ready endpoint is on node n1"},
		"source ranges": {"trace -from 198.51.100.11%eth1 -to 203.0.113.3:80/tcp",
			"dropped: 198.51.100.11 may not connect, only 192.0.2.0/24",
			"/trace?from=198.51.100.11&link=eth1&to=203.0.113.3:80/tcp",
			"dropped: 198.51.100.11 may not connect, only 192.0.2.0/24"},
		"wrong targetPort": {"explain default/port", "none has a port named http",
			"/?show=problems", "none has a port named http/tcp: they have htpp"},
		"node port of another": {"explain default/second", "conflict: ",
			"/service?name=default/second",
			"*4:30005/tcp: default/first:http wins over default/second:http"},
		"nothing listens": {"trace -send -from 192.0.2.10 -to 10.96.0.6:80/tcp",
			"\n10.244.1.2:9999 refuses: nothing listens there\n",
			"POST /ask?name=default/deaf", "refuses connections: nothing listens"},
		"firewall": {"trace -send -from 192.0.2.10 -to 10.96.0.7:80/tcp",
			"\nanother program (inet fw out, handle 2 (\"no web\")) drops it\n",
			"POST /ask?name=default/fw", "does not answer: "},
		"refused": {"explain default/refused", "refused: nftables cannot express service " +
			"default/refused:http: ", "/refused", "nftables cannot express service " +
			"default/refused:http: "},
	} {
		t.Run(name, func(t *testing.T) {
			require.Contains(t, done(t, w.ns, "", b.command, node...), b.says)
			code, body := get(t, w.ns, at, at, b.path)
			require.Equal(t, http.StatusOK, code)
			require.Contains(t, body, b.shows)
		})
	}

	_, body := get(t, w.ns, at, at, "/hooks")
	require.Contains(t, body, "drop (&#34;no web&#34;)", "whose firewall it is")
}

// trace -live waits for a packet that matches, from any sender, and follows it.
func TestTraceLive(t *testing.T) {
	t.Parallel()
	c := netnstest.Start(t, netnstest.Options{})
	require.NoError(t, c.Pods[1].Serve(servicemodel.UDP, 8080))
	udp := strings.ReplaceAll(serviceManifest("web", "10.96.0.1", "", ""), "TCP", "UDP")
	none := strings.Replace(serviceManifest("none", "10.96.0.2", "", ""), "ready: true",
		"ready: false", 1)
	done(t, c.Node.NS, udp+none, "apply -f -")
	ctx, cancel := context.WithCancel(t.Context())
	sent := make(chan bool)
	go func() {
		defer close(sent)
		for ctx.Err() == nil {
			netnstest.Probe{From: c.Pods[0], Proto: servicemodel.UDP,
				To: netip.MustParseAddrPort("10.96.0.1:80")}.Send(ctx)
		}
	}()

	defer func() {
		cancel()
		<-sent
	}()

	const trace = "trace -live -from 10.244.1.1%veth1 -to 10.96.0.1:80/udp"
	out, errs := kernlb(t, c.Node.NS, "", exitDone, trace)
	require.Equal(t, "waiting for a packet from 10.244.1.1%veth1 to 10.96.0.1:80/udp\n", errs)
	require.Contains(t, out, "\nit works: 10.244.1.2:8080 answers\n")
	out = done(t, c.Node.NS, "", trace+" -o json -wait 1m")
	require.Contains(t, out, `"summary": "it works: 10.244.1.2:8080 answers"`)
	require.Contains(t, out, `"fate": "sent"`)

	out = done(t, c.Node.NS, "", "trace -send -from 192.0.2.10 -to 10.96.0.2:80/tcp")
	require.Contains(t, out, "\nkernlb (ip kernlb answer-reset, handle ")
	require.Contains(t, out, ") refuses it: no endpoint can be used")
	fails(t, c.Node.NS, "", exitInvalid, "-send: 10.0.0.9 is no address of this node",
		"trace -to 10.96.0.1:80/udp -from 10.0.0.9 -send")
	fails(t, c.Node.NS, "", exitFailed, "no packet from 10.0.0.9 to 10.96.0.1:80/udp came within "+
		"1ms", "trace -to 10.96.0.1:80/udp -from 10.0.0.9 -live -wait 1ms")
}
