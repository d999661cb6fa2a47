package kubeproxy

import (
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	vishvananda "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/netns"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/test/nstest"
	"github.com/kernlb/kernlb/internal/test/rawnltest"
	"github.com/kernlb/kernlb/iptables"
	"github.com/kernlb/kernlb/nftables"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// Parts of recorded rules that differ from one copy of the services to the next.
var (
	serviceName = regexp.MustCompile(`\bns(\d)/svc`)
	serviceHash = regexp.MustCompile(`\b(KUBE-(?:SVC|SVL|EXT|FW|SEP)-)..`)
	servicePort = regexp.MustCompile(`\b300([1-9])\b`)
	serviceAddr = regexp.MustCompile(`\b(172\.30|10\.180|192\.168|1\.2|5\.6)\.(\d+)\.(\d+)\b`)
	nodeElement = regexp.MustCompile(`add element ip kube-proxy nodeport-ips`)
)

// copies returns recorded rules with n times the services, each copy with its own names, chains,
// addresses and node ports.
func copies(text string, n int) string {
	const base32 = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
	var all []string
	for line := range strings.Lines(text) {
		all = append(all, line)
		ofService := serviceName.MatchString(line) || serviceHash.MatchString(line) ||
			strings.HasPrefix(line, "add element") && !nodeElement.MatchString(line)
		for i := 1; i < n && ofService; i++ {
			line := serviceName.ReplaceAllString(line, fmt.Sprintf("ns${1}x%d/svc", i))
			line = serviceHash.ReplaceAllString(line,
				"${1}"+string(base32[i/32])+string(base32[i%32]))
			line = servicePort.ReplaceAllString(line, strconv.Itoa(200+i)+"${1}")
			line = serviceAddr.ReplaceAllStringFunc(line, func(addr string) string {
				b := netip.MustParseAddr(addr).As4()
				b[2] += byte(i)
				return netip.AddrFrom4(b).String()
			})
			all = append(all, line)
		}
	}

	return strings.Join(all, "")
}

// loadCopies is load with n times the services. In ipvs mode, it fills the device and a set.
func loadCopies(t *testing.T, ns *netnstest.NS, version string, n int) {
	t.Helper()
	text := copies(recorded(t, version), n)
	if strings.HasPrefix(version, "nftables") {
		nstest.NFT(t, ns, text)
		nstest.NFT(t, ns, tables6(text))
		return
	}

	if strings.Contains(text, "nfacct") && !makeCounters(t, ns) {
		t.Skip("the kernel has no nfnetlink_acct")
	}
	if !strings.HasPrefix(version, "ipvs") {
		restore(t, ns, text)
		return
	}

	makeSets(t, ns)
	h := ok(netlink.NewHandleAt(vishvananda.NsHandle(ns.Fd()), unix.NETLINK_NETFILTER))(t)
	defer h.Close()
	var batch strings.Builder
	batch.WriteString("link add kube-ipvs0 type bridge\n")
	for i := range n {
		for set, addr := range map[string]string{"KUBE-CLUSTER-IP": fmt.Sprint("10.96.0.", i),
			"KUBE-6-CLUSTER-IP": fmt.Sprint("fd00:96::", i)} {
			port, protocol := uint16(80), uint8(unix.IPPROTO_TCP)
			require.NoError(t, h.IpsetAdd(set, &netlink.IPSetEntry{IP: net.ParseIP(addr),
				Port: &port, Protocol: &protocol}))
			fmt.Fprintln(&batch, "address add", addr, "dev kube-ipvs0")
		}
	}

	nstest.Exec(t, ns, batch.String(), "ip", "-batch", "-")
	restore(t, ns, text)
}

// counted is a kernel whose messages are counted by operation.
type counted struct {
	*kernel
	counts map[string]int
	doing  string
}

func newCounted(t *testing.T, ns *netnstest.NS) *counted {
	t.Helper()
	c := &counted{kernel: ok(open(&Config{NetNS: ns.NetNS()}))(t), counts: map[string]int{}}
	t.Cleanup(c.close)
	c.nf.Close()
	count := func(what string, n int) { c.counts[c.doing+": "+what] += n }
	tap := &rawnltest.Tap{
		Request: func(l []rawnltest.Message) { count("requests", len(l)) },
		Answer: func(m rawnltest.Message) {
			count("answers", 1)
			count("bytes", len(m.Body))
		}}
	wrap := func(s rawnl.Socket) rawnl.Socket { return tap.Wrap(s) }
	c.nf = ok(rawnl.Dial(&rawnl.Config{NetNS: ns.NetNS(), Wrap: wrap}))(t)
	c.links.Wrap(func(_ bool, do func() error) error {
		count("requests to rtnetlink", 1)
		return do()
	})

	return c
}

// wanted is a state with the frontends of kube-proxy.
func wanted(c contents) sm.State {
	s := sm.State{}.WithNode(sm.Node{Name: "this"})
	for key, f := range c {
		svc := &sm.Service{Name: sm.Name{Namespace: "default", Name: strings.NewReplacer(".", "-",
			":", "-", "/", "-", "*", "any").Replace(key.String())},
			Ports: []sm.ServicePort{{Protocol: key.Protocol, Port: key.Port}}}
		svc.ExternalIPs = []netip.Addr{key.Addr}
		if key.NodePort() {
			svc.ExternalIPs, svc.Ports[0].NodePort = nil, key.Port
			svc.ClusterIPs = []netip.Addr{netip.AddrFrom4([4]byte{10, 97, byte(key.Port >> 8),
				byte(key.Port)})}
			if key.Addr.Is6() {
				svc.ClusterIPs[0] = netip.AddrFrom16([16]byte{0xfd, 14: byte(key.Port >> 8),
					15: byte(key.Port)})
			}
		}

		var l []sm.Endpoint
		for _, e := range f.Endpoints {
			l = append(l, sm.Endpoint{Addr: e.Addr(),
				Ports: []sm.EndpointPort{{Protocol: key.Protocol, Port: e.Port()}}})
		}

		s = s.WithService(svc).WithEndpoints(svc.Name, l)
	}

	return s
}

// countedHandOver counts a comparison, an apply of the same services and a clean-up.
func countedHandOver(t *testing.T, version string, n int,
	backend func(ns netns.Namespace) (backends.Backend, error)) map[string]int {
	t.Helper()
	ns := nstest.New(t)
	loadCopies(t, ns, version, n)
	k := newCounted(t, ns)
	k.doing = "compare"
	found := contents{}
	require.NoError(t, k.readContents(t.Context(), found))
	k.counts["frontends"] = len(found)
	for _, f := range found {
		k.counts["endpoints"] += len(f.Endpoints)
	}

	b := ok(backend(ns.NetNS()))(t)
	defer b.Close()
	result := ok(dataplane.New(b, nil).Apply(t.Context(), wanted(found)))(t)
	require.Empty(t, result.Refused)
	k.counts["take over: messages"] = result.Stats.Messages
	k.counts["take over: bytes"] = result.Stats.Bytes

	for _, k.doing = range []string{"find", "clean up"} {
		do := k.find
		if k.doing == "clean up" {
			do = k.cleanup
		}
		p := ok(do(t.Context()))(t)
		k.counts[k.doing+": objects"] = len(p.Rules) + len(p.Chains) + len(p.Tables) +
			len(p.VirtualServers) + len(p.Sets)
	}

	require.True(t, ok(k.find(t.Context()))(t).Empty())
	return k.counts
}

// requireProportional compares the costs of n, 2n and 4n services. Partly filled messages and
// logarithms make the costs a little uneven.
func requireProportional(t *testing.T, one, two, four map[string]int) {
	t.Helper()
	for what := range four {
		assert.LessOrEqual(t, four[what]-two[what], 2*max(0, two[what]-one[what])+four[what]/20+8,
			"%s: %d, %d, %d", what, one[what], two[what], four[what])
	}
}

// The costs of comparisons, take-overs and clean-ups are proportional to the number of kube-proxy's
// objects, in each of its versions and modes, and for both families.
func TestAHandOverIsProportional(t *testing.T) {
	t.Parallel()
	versions := ok(filepath.Glob("testdata/*-1.*"))(t)
	require.NotEmpty(t, versions)
	for _, version := range versions {
		for name, backend := range map[string]func(ns netns.Namespace) (backends.Backend, error){
			"nftables": func(ns netns.Namespace) (backends.Backend, error) {
				return nftables.New(&nftables.Config{NetNS: ns})
			},
			"iptables": func(ns netns.Namespace) (backends.Backend, error) {
				return iptables.New(&iptables.Config{NetNS: ns})
			},
		} {
			t.Run(filepath.Base(version)+" to "+name, func(t *testing.T) {
				t.Parallel()
				costs := map[int]map[string]int{}
				for _, n := range []int{8, 16, 32} {
					costs[n] = countedHandOver(t, filepath.Base(version), n, backend)
				}
				requireProportional(t, costs[8], costs[16], costs[32])
				if !strings.Contains(version, "ipvs") {
					recorded := 2 * strings.Count(recordedFrontends, "\n") // of both families
					require.Equal(t, 32*recorded, costs[32]["frontends"])
				}
			})
		}
	}
}

// A service with many addresses and endpoints is read once.
func TestAComparisonReadsEachServiceOnce(t *testing.T) {
	t.Parallel()
	costs := map[int]map[string]int{}
	for _, n := range []int{15, 30, 60} {
		var text strings.Builder
		text.WriteString("add table ip kube-proxy\nadd chain ip kube-proxy services\n" +
			"add chain ip kube-proxy service-A-a/b/tcp/c\nadd map ip kube-proxy service-ips " +
			"{ type ipv4_addr . inet_proto . inet_service : verdict ; }\n")
		var endpoints []string
		for i := range n {
			fmt.Fprintf(&text, "add element ip kube-proxy service-ips { 203.0.113.%d . tcp . 80 : "+
				"goto service-A-a/b/tcp/c }\n", i)
			endpoints = append(endpoints, fmt.Sprintf("%d : 10.180.0.%d . 80", i, i))
		}

		fmt.Fprintf(&text, "add rule ip kube-proxy service-A-a/b/tcp/c meta l4proto tcp dnat "+
			"ip addr . port to numgen random mod %d map { %s }\n", n,
			strings.Join(endpoints, " , "))
		ns := nstest.New(t)
		nstest.NFT(t, ns, text.String())
		nstest.NFT(t, ns, tables6(text.String()))

		k, found := newCounted(t, ns), contents{}
		require.NoError(t, k.readContents(t.Context(), found))
		require.Len(t, found, 2*n)
		for key, f := range found {
			require.Len(t, f.Endpoints, n, key)
		}
		costs[n] = k.counts
	}

	requireProportional(t, costs[15], costs[30], costs[60])
}
