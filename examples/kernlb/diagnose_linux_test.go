package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/diagnose"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/test/golden"
	"github.com/kernlb/kernlb/internal/test/nstest"
	"github.com/kernlb/kernlb/servicemodel"
)

// night is a cluster with a service, something wrong with it, and a client.
type night struct {
	*netnstest.Cluster
	t    *testing.T
	file string // its manifests
	from string // the client's namespace
}

// nightManifest returns a service with two endpoints, in pods of the node.
func nightManifest(metadata, spec string) string {
	return strings.Replace(serviceManifest("web", "10.96.0.10", metadata, spec),
		"conditions: {ready: true}}]", "conditions: {ready: true}}, {addresses: [10.244.1.3], "+
			"conditions: {ready: true}}]", 1)
}

// newNight starts the cluster with two servers, and applies the service.
func newNight(t *testing.T, o netnstest.Options, manifest string, args ...string) *night {
	t.Helper()
	n := &night{Cluster: netnstest.Start(t, o), t: t}
	n.file, n.from = filepath.Join(t.TempDir(), "services.yaml"), string(n.Pods[0].NS.NetNS())
	for _, pod := range n.Pods[1:] {
		require.NoError(t, pod.Serve(servicemodel.TCP, 8080))
	}
	n.apply(manifest, args...)
	return n
}

func (n *night) apply(manifest string, args ...string) {
	n.t.Helper()
	require.NoError(n.t, os.WriteFile(n.file, []byte(manifest), 0o600))
	done(n.t, n.Node.NS, "", "apply -f "+n.file, args...)
}

func (n *night) ip(ns *netnstest.NS, args string) { nstest.Run(n.t, ns, "ip "+args) }

// ingress gives a load balancer an address, at the end of its specification.
const ingress = "}\nstatus: {loadBalancer: {ingress: [{ip: 203.0.113.10}]}"

// trouble is a fault, and the findings of diagnose about it.
type trouble struct {
	options  netnstest.Options
	manifest string   // empty: nightManifest
	args     []string // of apply, and of diagnose
	to       string   // what is diagnosed; empty: the service
	make     func(n *night)
	want     string // in the line WRONG; empty: all is well
	do       string // in the line do
}

// sysctl sets a sysctl of the node.
func sysctl(name, value string) func(*night) {
	return func(n *night) { require.NoError(n.t, n.Node.NS.SetSysctl(name, value)) }
}

// rules adds a chain to a pod, or to the node if of is 0.
func rules(of int, text string) func(*night) {
	return func(n *night) {
		ns := n.Node.NS
		if of > 0 {
			ns = n.Pods[of-1].NS
		}
		nstest.NFT(n.t, ns, "table inet x { chain c { "+text+"; }; }")
	}
}

// pidIn starts a process in a namespace and returns its number, by which ip knows the namespace.
func pidIn(t *testing.T, ns *netnstest.NS) string {
	t.Helper()
	sleep := exec.Command("sleep", "60")
	require.NoError(t, ns.Do(sleep.Start))
	t.Cleanup(func() {
		require.NoError(t, sleep.Process.Kill())
		_ = sleep.Wait() // it was killed
	})
	return strconv.Itoa(sleep.Process.Pid)
}

// troubles are the faults of a night.
func troubles() map[string]trouble {
	return map[string]trouble{
		"nothing": {make: func(*night) {}},
		"an endpoint is silent": {make: rules(3, "type filter hook input priority 0; "+
			"tcp dport 8080 drop"), want: "silent: 10.244.1.3:8080 does not answer"},
		"a foreign rule drops": {make: rules(0, "type filter hook forward priority 0; "+
			"tcp dport 8080 drop"), want: "foreign-rule: another program drops the packet at the " +
			"hook forward: inet x c, handle 2: tcp dport 8080 drop"},
		"rp_filter": {make: func(n *night) {
			sysctl("net/ipv4/conf/veth1/rp_filter", "1")(n)
			n.ip(n.Node.NS, "route add 10.244.1.0/31 dev eth0")
			n.ip(n.Node.NS, "route del 10.244.1.1 dev veth1")
		}, want: "routing: the kernel does not forward the packet after prerouting: rp_filter " +
			"refuses 10.244.1.1 by veth1"},
		"nothing listens": {manifest: strings.Replace(nightManifest("", ""), "10.244.1.3",
			"10.244.1.1", 1), make: func(*night) {},
			want: "not-listening: 10.244.1.1:8080 refuses: nothing listens there"},
		"an MTU black hole": {make: rules(0, "type filter hook forward priority 0; "+
			"ip daddr 10.244.1.3 ip length > 1000 drop"),
			want: "full-size: 10.244.1.3:8080 acknowledges segments of 960 bytes and not of " +
				"1460: packets of more than 1000 bytes are lost on the way"},
		"a path that is 8 bytes too narrow": {make: rules(0, "type filter hook forward priority "+
			"0; ip daddr 10.244.1.3 ip length > 1492 drop"),
			want: "full-size: 10.244.1.3:8080 acknowledges segments of 1452 bytes and not of " +
				"1460: packets of more than 1492 bytes are lost on the way"},
		"an MTU black hole of IPv6": {manifest: strings.NewReplacer("10.96.0.10",
			`"fd00:10:96::10"`, "addressType: IPv4", "addressType: IPv6", "[10.244.1.2]",
			`["fd00:10:244:1::2"]`, "[10.244.1.3]", `["fd00:10:244:1::3"]`).
			Replace(nightManifest("", "")),
			make: rules(0, "type filter hook forward priority 0; "+
				"ip6 daddr fd00:10:244:1::3 ip6 length > 1360 drop"),
			want: "full-size: [fd00:10:244:1::3]:8080 acknowledges segments of 1340 bytes and " +
				"not of 1440: packets of more than 1400 bytes are lost on the way"},
		"a misnamed port": {manifest: strings.Replace(nightManifest("", ""),
			"name: http, port: 8080", "name: htpp, port: 8080", 1), make: func(*night) {},
			want: "refuses: the connection is rejected: 2 endpoints, none has a port named " +
				"http/tcp: they have htpp/tcp"},
		"forwarding is off": {make: sysctl("net/ipv4/ip_forward", "0"),
			want: "routing: the kernel does not forward the packet after prerouting: forwarding " +
				"is off"},
	}
}

// moreTroubles are faults that the document does not show.
func moreTroubles() map[string]trouble {
	noHairpin := "routing: the kernel does not forward the packet after prerouting: the bridge " +
		"cni0 sends no packet back by the port"
	if _, err := os.Stat("/proc/sys/net/bridge"); err != nil {
		noHairpin = "" // without br_netfilter, the node routes the packet, and all is well
	}

	return map[string]trouble{
		"a duplicated address": {options: netnstest.Options{Bridge: "cni0"}, make: func(n *night) {
			n.ip(n.Pods[1].NS, "addr add 10.244.1.3/32 dev eth0")
		}, want: "duplicate: 2 machines have the address 10.244.1.3 on cni0"},
		"a wrong network of pods": {
			manifest: nightManifest("", "type: LoadBalancer, externalTrafficPolicy: Local"+ingress),
			args:     []string{"-cluster-cidr", "10.245.0.0/16", "-node", "n1"},
			to:       "203.0.113.10:80", make: func(*night) {},
			want: "pod-network: the client is a pod of this node, and 10.244.1.1 is in no range"},
		"a stale flow": {make: func(n *night) {
			conns, err := netnstest.OpenConns(n.t.Context(), n.Pods[0],
				netip.MustParseAddrPort("10.96.0.10:80"), 20)
			require.NoError(n.t, err)
			n.t.Cleanup(func() { conns.Close() })
			n.apply(strings.Replace(nightManifest("", ""), ", {addresses: [10.244.1.3], "+
				"conditions: {ready: true}}", "", 1), "-keep-flows")
		}, want: "stale-flow: ", do: "conntrack -D -p tcp --orig-dst 10.96.0.10 --reply-src " +
			"10.244.1.3 deletes these"},
		"a hairpin without masquerade": {
			manifest: strings.Replace(serviceManifest("web", "10.96.0.10", "", ""), "10.244.1.2",
				"10.244.1.1", 1),
			make: func(n *night) {
				require.NoError(n.t, n.Pods[0].Serve(servicemodel.TCP, 8080))
				nstest.Run(n.t, n.Node.NS, "nft flush chain ip kernlb nat-postrouting")
			},
			want: "not-programmed: kernlb's objects in the kernel were changed: table ip: " +
				"the rules of chain nat-postrouting differ from what kernlb writes (2 missing, 0 " +
				"foreign)"},
		"a bridge port without hairpin": {options: netnstest.Options{Bridge: "cni0"},
			manifest: strings.Replace(serviceManifest("web", "10.96.0.10", "", ""), "10.244.1.2",
				"10.244.1.1", 1),
			make: func(n *night) {
				require.NoError(n.t, n.Pods[0].Serve(servicemodel.TCP, 8080))
				n.ip(n.Node.NS, "link set veth1 type bridge_slave hairpin off")
			}, want: noHairpin},
		"an own rule is deleted": {make: func(n *night) {
			nstest.Run(n.t, n.Node.NS, "nft flush chain ip kernlb nat-prerouting")
		}, want: "not-programmed: kernlb's objects in the kernel were changed: table ip: the " +
			"rules of chain nat-prerouting differ from what kernlb writes (1 missing, 0 foreign)"},
		"an expired neighbour": {make: func(n *night) {
			n.ip(n.Pods[2].NS, "link set eth0 arp off")
			n.ip(n.Node.NS, "neigh replace 10.244.1.3 dev veth3 nud failed")
		}, want: "neighbour: nothing answers for the endpoint 10.244.1.3 on veth3"},
		"a neighbour of a pod that is gone": {make: func(n *night) {
			n.ip(n.Node.NS, "neigh replace 10.244.1.3 lladdr 02:00:00:00:00:99 dev veth3 nud "+
				"permanent")
		}, want: "neighbour: the table of neighbours has the link-layer address 02:00:00:00:00:99"},
		"the answers are dropped": {make: rules(0, "type filter hook forward priority 0; "+
			"tcp sport 8080 drop"), want: "answer-lost: another program drops the answer of"},
		"the client has no route": {make: func(n *night) {
			n.ip(n.Pods[0].NS, "route del default")
		}, want: "client-route: the client has no route to 10.96.0.10"},
		"the client drops its packets": {make: rules(1, "type filter hook postrouting priority 0; "+
			"tcp dport 80 drop"), want: "client-route: the packets of 10.244.1.1 to " +
			"10.96.0.10:80 do not reach this node"},
		"a range that the client is not in": {manifest: nightManifest("", "type: LoadBalancer, "+
			"loadBalancerSourceRanges: [192.0.2.0/24]"+ingress), to: "203.0.113.10:80/tcp",
			make: func(*night) {}, want: "refuses: the connection is dropped: 10.244.1.1 may " +
				"not connect, only 192.0.2.0/24", do: "add 10.244.1.1 to " +
				"loadBalancerSourceRanges of default/web, or connect from 192.0.2.0/24"},
		"another service has the address": {manifest: nightManifest("", "") + "---\n" +
			strings.ReplaceAll(nightManifest("", ""), "name: web", "name: zweb"),
			to: "default/zweb", make: func(*night) {}, want: "conflict: default/web:http has " +
				"10.96.0.10:80/tcp, so default/zweb:http does not get it"},
		"no such service": {to: "10.96.0.11:80", make: func(*night) {},
			want: "no-service: no service answers at 10.96.0.11:80"},
		"nothing, on a bridge": {options: netnstest.Options{Bridge: "cni0"}, make: func(*night) {}},
	}
}

// answersElsewhere makes the answers of 10.244.1.3 come in by another link, which has rp_filter on.
func answersElsewhere(n *night) {
	n.ip(n.Node.NS, "link add veth3b address 02:00:00:00:00:3b type veth peer name eth1 "+
		"netns "+pidIn(n.t, n.Pods[2].NS))
	n.ip(n.Node.NS, "link set veth3b up")
	sysctl("net/ipv4/conf/veth3b/rp_filter", "1")(n)
	n.ip(n.Pods[2].NS, "link set eth1 up")
	n.ip(n.Pods[2].NS, "route replace default via 169.254.1.1 dev eth1 onlink")
	n.ip(n.Pods[2].NS, "neigh replace 169.254.1.1 lladdr 02:00:00:00:00:3b dev eth1")
}

// endpointTroubles are faults of the endpoints and of their definitions.
func endpointTroubles() map[string]trouble {
	return map[string]trouble{
		"all endpoints are silent": {make: func(n *night) {
			for pod := 2; pod <= 3; pod++ {
				rules(pod, "type filter hook input priority 0; tcp dport 8080 drop")(n)
			}
		}, want: "silent: 2 of 2 endpoints do not answer: 10.244.1.2:8080, 10.244.1.3:8080",
			do: "see what all endpoints share"},
		"no endpoint is ready": {manifest: strings.ReplaceAll(nightManifest("", ""), "ready: true",
			"ready: false"), make: func(n *night) { // attempts that nobody answered do not go on
			n.apply(nightManifest("", ""))
			rules(0, "type filter hook forward priority 0; tcp dport 8080 drop")(n)
			netnstest.SendAll(n.t.Context(), []netnstest.Probe{{From: n.Pods[0],
				Proto: servicemodel.TCP, To: netip.MustParseAddrPort("10.96.0.10:80")}})
			n.apply(strings.ReplaceAll(nightManifest("", ""), "ready: true", "ready: false"),
				"-keep-flows")
		}, want: "refuses: the connection is rejected: 2 endpoints, none ready",
			do: "see why the readiness of the pods fails"},
		"no endpoints": {manifest: strings.Replace(nightManifest("", ""), "service-name: web",
			"service-name: other", 1), make: func(*night) {},
			want: "refuses: the connection is rejected: the service has no endpoints",
			do: "no EndpointSlice of the namespace default with endpoints has the label " +
				"kubernetes.io/service-name: web"},
	}
}

// routingTroubles are faults of rp_filter and of forwarding at single links.
func routingTroubles() map[string]trouble {
	return map[string]trouble{
		"rp_filter drops the answers": {make: answersElsewhere, want: "answer-lost: "},
		"rp_filter refuses ARP for the answers": {make: func(n *night) {
			answersElsewhere(n)
			n.ip(n.Pods[2].NS, "neigh del 169.254.1.1 dev eth1")
			n.ip(n.Node.NS, "addr add 169.254.1.1/32 dev veth3b")
		}, want: "silent: 10.244.1.3:8080 does not answer", do: "by another link than veth3, " +
			"rp_filter refuses them (it is on at veth3b)"},
		"rp_filter for all links": {make: func(n *night) {
			troubles()["rp_filter"].make(n)
			sysctl("net/ipv4/conf/all/rp_filter", "1")(n)
		}, want: "routing: the kernel does not forward the packet after prerouting: rp_filter " +
			"refuses 10.244.1.1 by veth1", do: "sysctl -w net.ipv4.conf.veth1.rp_filter=0 " +
			"net.ipv4.conf.all.rp_filter=0 (the link has no IPv4 address"},
		"forwarding is off for a link": {make: sysctl("net/ipv4/conf/veth1/forwarding", "0"),
			want: "routing: the kernel does not forward the packet after prerouting: forwarding " +
				"is off", do: "sysctl -w net.ipv4.conf.veth1.forwarding=1"},
	}
}

// diagnose names each fault, within ten seconds, with one command. docs/debugging.md has a night
// with seven of them.
func TestDiagnoseNamesTheFaultsOfANight(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	said := map[string]string{}
	t.Run("", func(t *testing.T) {
		all := troubles()
		maps.Copy(all, moreTroubles())
		maps.Copy(all, endpointTroubles())
		maps.Copy(all, routingTroubles())
		for name, w := range troubles() {
			w.args = []string{"-backend", "iptables"}
			all[name+", iptables"] = w
		}

		for name, trouble := range all {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				out := trouble.diagnose(t)
				mu.Lock()
				defer mu.Unlock()
				said[name] = out
			})
		}
	})

	if _, err := os.Stat("../../docs"); err != nil || t.Failed() {
		return
	}
	var all strings.Builder
	for i, name := range []string{"an endpoint is silent", "a foreign rule drops", "rp_filter",
		"nothing listens", "an MTU black hole", "a misnamed port", "forwarding is off"} {
		if i > 0 {
			all.WriteByte('\n')
		}
		fmt.Fprintf(&all, "# %s\n$ kernlb diagnose default/web -f services.yaml -from pod1\n%s",
			name, said[name])
	}

	golden.Block(t, "../../docs/debugging.md", "night", all.String())
}

// A script tells a fault from a diagnosis that failed by the exit code, and reads its kind.
func TestDiagnoseAnswersScripts(t *testing.T) {
	t.Parallel()
	n := newNight(t, netnstest.Options{}, strings.Replace(nightManifest("", ""),
		"name: http, port: 8080", "name: htpp, port: 8080", 1))
	out, _ := kernlb(t, n.Node.NS, "", exitFault, "diagnose default/web -o json", "-from", n.from)
	var reports []diagnose.Report
	require.NoError(t, json.Unmarshal([]byte(out), &reports))
	require.Len(t, reports, 1)
	require.Equal(t, diagnose.Refused, reports[0].Fault.Kind)
	kernlb(t, n.Node.NS, "", exitFailed, "diagnose default/web", "-from", "/no/such/namespace")
}

// For addresses that diagnose does not probe, it reports the outcome in the tables.
func TestDiagnoseNamesOtherAddresses(t *testing.T) {
	t.Parallel()
	ranges := "type: LoadBalancer, loadBalancerSourceRanges: [192.0.2.0/24]" + ingress
	may := "at 203.0.113.10:80/tcp: the connection is dropped: 10.244.1.1 may not connect, only " +
		"192.0.2.0/24"
	for name, c := range map[string]struct{ spec, says, flags string }{
		"ranges":           {ranges, "  WRONG  refuses: " + may, ""},
		"ranges and a pod": {ranges, "  note   " + may, " -cluster-cidr 10.244.0.0/16"},
		"Local": {"type: LoadBalancer, externalTrafficPolicy: Local" + ingress, "  note   at " +
			"203.0.113.10:80/tcp clients from outside are refused: externalTrafficPolicy is Local",
			""},
		"an address": {"type: LoadBalancer" + ingress,
			"  note   not asked: 203.0.113.10:80/tcp", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			flags, code := strings.Fields("-node n1"+c.flags), exitDone
			if strings.Contains(c.says, "WRONG") {
				code = exitFault
			}
			n := newNight(t, netnstest.Options{}, nightManifest("", c.spec), flags...)
			out, _ := kernlb(t, n.Node.NS, "", code, "diagnose default/web -f "+n.file,
				append(flags, "-from", n.from)...)
			require.Contains(t, out, c.says)
			require.Contains(t, out, "  note   not tested: answers of full size")
		})
	}
}

// remedy is a command of an advice that a test can run.
var remedy = regexp.MustCompile(`^(sysctl -w( [^ ,;]+=\d+)+|nft delete rule [^,;]+|ip neigh ` +
	`del .*)`)

// follow runs the command of an advice: after that, diagnose no longer names the fault.
func (n *night) follow(command string, w *trouble) {
	n.t.Helper()
	if command == "" {
		return
	}
	nstest.Run(n.t, n.Node.NS, command)
	p, out := process(n.t, n.Node.NS, strings.Fields("diagnose "+cmp.Or(w.to, "default/web")+
		" -f "+n.file+" -from "+n.from+" "+strings.Join(w.args, " "))...)
	_ = p.Wait() // there may be another fault
	require.NotContains(n.t, out.String(), "WRONG  "+w.want, "after %s", command)
}

// diagnose makes the trouble, and returns what diagnose prints.
func (w *trouble) diagnose(t *testing.T) (out string) {
	t.Helper()
	n := newNight(t, w.options, cmp.Or(w.manifest, nightManifest("", "")), w.args...)
	w.make(n)
	code := exitFault
	if w.want == "" {
		code = exitDone
	}
	begun := time.Now()
	out, _ = kernlb(t, n.Node.NS, "", code, "diagnose "+cmp.Or(w.to, "default/web"),
		append([]string{"-f", n.file, "-from", n.from}, w.args...)...)
	require.Less(t, time.Since(begun), time.Minute)
	wrong := ""
	for line := range strings.Lines(out) {
		if text, ok := strings.CutPrefix(line, "  WRONG  "); ok {
			wrong += text
		}
	}

	if w.want == "" {
		require.Empty(t, wrong, out)
	}
	require.True(t, strings.HasPrefix(wrong, w.want), "%s\nwant %s", out, w.want)
	do := ""
	for line := range strings.Lines(out) {
		if text, ok := strings.CutPrefix(line, "  do     "); ok {
			do = text
		}
	}
	require.Contains(t, do, w.do)
	n.follow(remedy.FindString(do), w)
	return out
}
