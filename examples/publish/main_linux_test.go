package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/test/dataplanetest"
	"github.com/kernlb/kernlb/nftables"
	"github.com/kernlb/kernlb/servicemodel"
)

// The test binary is also the plugin.
func TestMain(m *testing.M) {
	if os.Getenv("CNI_COMMAND") != "" {
		main()
		return
	}
	netnstest.Main(m)
}

// plugin runs the plugin as a process in a namespace.
type plugin struct {
	ns      *netnstest.NS
	command string
	network string
	pod     attachment
	// addrs are the pod's addresses, and ports the published ports: a host port is translated to
	// port 8080.
	addrs []string
	ports []mapping
	valid []attachment
}

// run runs the process, and returns its output and whether it succeeded.
func (p plugin) run(tb testing.TB) (string, bool) {
	var r request
	r.CNIVersion, r.Name, r.RuntimeConfig = "1.1.0", p.network, runtimeConfig(p.ports...)
	r.ValidAttachments = p.valid
	ips := []map[string]string{}
	for _, a := range p.addrs {
		ips = append(ips, map[string]string{"address": a})
	}
	var err error
	r.PrevResult, err = json.Marshal(map[string]any{"cniVersion": "1.1.0", "ips": ips})
	require.NoError(tb, err)
	input, err := json.Marshal(r)
	require.NoError(tb, err)
	var out bytes.Buffer
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "CNI_COMMAND="+p.command,
		"CNI_CONTAINERID="+p.pod.ContainerID, "CNI_IFNAME="+p.pod.IfName)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(input), &out, &out
	if p.ns != nil {
		require.NoError(tb, p.ns.Do(cmd.Start))
		err = cmd.Wait()
	} else { // on the calling thread
		err = cmd.Run()
	}
	return out.String(), err == nil
}

func (p plugin) mustRun(tb testing.TB) {
	tb.Helper()
	out, ok := p.run(tb)
	require.True(tb, ok, out)
}

// pod returns the attachment of a container, with an ID as long as containerd's.
func pod(n int) attachment { return attachment{fmt.Sprintf("%064x", n), "eth0"} }

func tcp(ports ...uint16) (l []mapping) {
	for _, p := range ports {
		l = append(l, mapping{HostPort: p, ContainerPort: 8080})
	}
	return l
}

func TestPublish(t *testing.T) {
	t.Parallel()
	c := netnstest.Start(t, netnstest.Options{})
	for _, p := range c.Pods[:2] {
		require.NoError(t, p.Serve(servicemodel.TCP, 8080))
		require.NoError(t, p.Serve(servicemodel.UDP, 8080))
	}
	plugins := [2]plugin{}
	for i := range plugins {
		plugins[i] = plugin{ns: c.Node.NS, command: "ADD", network: "net", pod: pod(i),
			addrs: []string{c.Pods[i].IPv4.String() + "/24", c.Pods[i].IPv6.String() + "/64"},
			ports: append(tcp(uint16(8000+i)), mapping{HostPort: 53, ContainerPort: 8080,
				Protocol: "UDP", HostIP: c.NodeAddrs()[i]})}
		plugins[i].mustRun(t)
	}
	reaches := func(proto servicemodel.Protocol, addr netip.Addr, port uint16, want string) {
		t.Helper()
		o := netnstest.Probe{From: c.Outside[0], Proto: proto,
			To: netip.AddrPortFrom(addr, port)}.Send(t.Context())
		require.Equal(t, want, o.Server, o)
		if want != "" {
			require.Equal(t, c.Outside[0].Addr(addr), o.Source.Addr(), "the client's own address")
		}
	}
	for i, name := range []string{c.Pods[0].Name, c.Pods[1].Name} {
		reaches(servicemodel.TCP, c.Node.IPv4, uint16(8000+i), name)
		reaches(servicemodel.TCP, c.Node.IPv6, uint16(8000+i), name)
		reaches(servicemodel.UDP, c.NodeAddrs()[i], 53, name)
	}

	o := netnstest.Probe{From: c.Node, Proto: servicemodel.TCP,
		To: netip.MustParseAddrPort("127.0.0.1:8001")}.Send(t.Context())
	require.Equal(t, c.Pods[1].Name, o.Server, o)

	third := plugin{ns: c.Node.NS, command: "ADD", network: "net", pod: pod(3),
		addrs: plugins[0].addrs, ports: tcp(8001, 8002)}
	out, ok := third.run(t)
	require.False(t, ok)
	require.Contains(t, out, fmt.Sprintf(`*4:8001/tcp is held by net,%064x,eth0/port-0, and `+
		`claimed by net,%064x,eth0/port-0`, 1, 3))
	reaches(servicemodel.TCP, c.Node.IPv4, 8002, "")

	plugins[0].command = "DEL"
	plugins[0].mustRun(t)
	plugins[0].mustRun(t)
	reaches(servicemodel.TCP, c.Node.IPv4, 8000, "")
	reaches(servicemodel.TCP, c.Node.IPv4, 8001, c.Pods[1].Name)
	plugin{ns: c.Node.NS, command: "GC", network: "other"}.mustRun(t)
	reaches(servicemodel.TCP, c.Node.IPv4, 8001, c.Pods[1].Name)
	plugin{ns: c.Node.NS, command: "GC", network: "net", valid: []attachment{pod(1)}}.mustRun(t)
	reaches(servicemodel.TCP, c.Node.IPv4, 8001, c.Pods[1].Name)
	plugin{ns: c.Node.NS, command: "GC", network: "net"}.mustRun(t)
	reaches(servicemodel.TCP, c.Node.IPv4, 8001, "")
}

// run returns n mappings that keep their ports, from a first port on.
func run(first, n int) (l []mapping) {
	for p := first; p < first+n; p++ {
		l = append(l, mapping{HostPort: uint16(p), ContainerPort: uint16(p)})
	}
	return l
}

// elements counts the elements of nf_tables in a namespace.
func elements(tb testing.TB, ns *netnstest.NS) (n int) {
	tb.Helper()
	var out []byte
	require.NoError(tb, ns.Do(func() (err error) {
		out, err = exec.Command("nft", "-j", "list", "ruleset").Output()
		return err
	}))
	var list struct {
		Nftables []map[string]struct{ Elem []json.RawMessage }
	}
	require.NoError(tb, json.Unmarshal(out, &list))
	for _, o := range list.Nftables {
		n += len(o["set"].Elem) + len(o["map"].Elem)
	}
	return n
}

// A container publishes 100 ports that follow one another at other ports that follow one another.
// They are one range, and each of them reaches its port of the container.
func TestPublishedRangeIsMapped(t *testing.T) {
	t.Parallel()
	c := netnstest.Start(t, netnstest.Options{})
	for _, port := range []uint16{79, 80, 113, 179} {
		for _, a := range []netip.Addr{c.Pods[0].IPv4, c.Pods[0].IPv6} {
			_, err := c.Pods[0].NS.Serve(fmt.Sprint(port), servicemodel.TCP,
				netip.AddrPortFrom(a, port))
			require.NoError(t, err)
		}
	}
	mapped := func(to uint16) (l []mapping) {
		for i := range uint16(100) {
			l = append(l, mapping{HostPort: 8000 + i, ContainerPort: to + i})
		}
		return l
	}
	publish := func(command string, ports []mapping) bool {
		_, ok := plugin{ns: c.Node.NS, command: command, network: "net", pod: pod(0), ports: ports,
			addrs: []string{c.Pods[0].IPv4.String() + "/24",
				c.Pods[0].IPv6.String() + "/64"}}.run(t)
		return ok
	}
	require.True(t, publish("ADD", mapped(80)))
	require.LessOrEqual(t, elements(t, c.Node.NS), 2*(100+40), "one for each port and family")
	reach := func(from *netnstest.Host, to netip.Addr) {
		t.Helper()
		for at, want := range map[uint16]string{8000: "80", 8033: "113", 8099: "179"} {
			o := netnstest.Probe{From: from, Proto: servicemodel.TCP,
				To: netip.AddrPortFrom(to, at)}.Send(t.Context())
			require.Equal(t, want, o.Server, "%v", o)
		}
	}
	for _, a := range c.NodeAddrs() {
		reach(c.Outside[0], a)
		reach(c.Pods[0], a)
	}
	reach(c.Node, netip.MustParseAddr("127.0.0.1"))
	require.True(t, publish("CHECK", mapped(80)))
	require.False(t, publish("CHECK", mapped(81)))
	require.True(t, publish("DEL", nil))
	o := netnstest.Probe{From: c.Outside[0], Proto: servicemodel.TCP,
		To: netip.AddrPortFrom(c.Node.IPv4, 8033)}.Send(t.Context())
	require.Empty(t, o.Server, "%v", o)
}

// A container publishes 10,000 ports, which take no more elements than 100 do. They answer in the
// middle and at both ends of the range, and not next to the ends. A port of another container stays
// with that container.
func TestPublishTenThousandPorts(t *testing.T) {
	t.Parallel()
	c := netnstest.Start(t, netnstest.Options{})
	at := func(i int) string { return fmt.Sprintf("%s/%d", c.Pods[0].Name, i) }
	for _, port := range []uint16{7999, 8000, 12345, 17999, 18000} {
		for _, a := range []netip.Addr{c.Pods[0].IPv4, c.Pods[0].IPv6} {
			_, err := c.Pods[0].NS.Serve(at(int(port)), servicemodel.TCP,
				netip.AddrPortFrom(a, port))
			require.NoError(t, err)
		}
	}
	require.NoError(t, c.Pods[1].Serve(servicemodel.TCP, 8080))
	publish := func(command string, i int, ports ...mapping) (string, bool) {
		addrs := []string{c.Pods[i].IPv4.String() + "/24", c.Pods[i].IPv6.String() + "/64"}
		return plugin{ns: c.Node.NS, command: command, network: "net", pod: pod(i), ports: ports,
			addrs: addrs}.run(t)
	}
	must := func(out string, ok bool) {
		t.Helper()
		require.True(t, ok, out)
	}
	reaches := func(port uint16, want string) {
		t.Helper()
		for _, a := range c.NodeAddrs() {
			o := netnstest.Probe{From: c.Outside[0], Proto: servicemodel.TCP,
				To: netip.AddrPortFrom(a, port)}.Send(t.Context())
			require.Equal(t, want, o.Server, "%v", o)
			if want != "" {
				require.Equal(t, c.Outside[0].Addr(a), o.Source.Addr(), "the client's address")
			}
		}
	}

	must(publish("ADD", 1, tcp(18000)...))
	before := elements(t, c.Node.NS)
	must(publish("ADD", 0, run(8000, 10000)...))
	more := elements(t, c.Node.NS) - before
	require.Positive(t, more)
	require.LessOrEqual(t, more, 2*(7+6), "the range has 7 blocks in each family")
	for _, port := range []int{8000, 12345, 17999} {
		reaches(uint16(port), at(port))
	}
	reaches(7999, "")
	reaches(18000, c.Pods[1].Name)
	o := netnstest.Probe{From: c.Node, Proto: servicemodel.TCP,
		To: netip.MustParseAddrPort("127.0.0.1:12345")}.Send(t.Context())
	require.Equal(t, at(12345), o.Server, o)
	o = netnstest.Probe{From: c.Pods[0], Proto: servicemodel.TCP,
		To: netip.AddrPortFrom(c.Node.IPv4, 12345)}.Send(t.Context())
	require.Equal(t, at(12345), o.Server, "the container reaches itself: %v", o)

	must(publish("CHECK", 0, run(8000, 10000)...))
	_, ok := publish("CHECK", 0, run(8000, 9999)...)
	require.False(t, ok)
	for _, ports := range [][]mapping{tcp(12345), run(17999, 20), run(1, 8000)} {
		out, ok := publish("ADD", 1, ports...)
		require.False(t, ok)
		require.Contains(t, out, fmt.Sprintf("*4:8000-17999/tcp is held by net,%064x,eth0", 0))
	}
	at0 := mapping{HostPort: 12345, ContainerPort: 8080, HostIP: c.NodeAddrs()[0]}
	must(publish("ADD", 1, append(tcp(18000), at0)...))
	o = netnstest.Probe{From: c.Outside[0], Proto: servicemodel.TCP,
		To: netip.AddrPortFrom(at0.HostIP, 12345)}.Send(t.Context())
	require.Equal(t, c.Pods[1].Name, o.Server, "one address goes before all: %v", o)

	must(publish("DEL", 0))
	reaches(8000, "")
	reaches(18000, c.Pods[1].Name)
	must(publish("ADD", 1, tcp(8000)...))
	out, ok := publish("ADD", 0, run(7990, 20)...)
	require.False(t, ok)
	require.Contains(t, out, fmt.Sprintf("*4:8000/tcp is held by net,%064x,eth0", 1))
	reaches(8000, c.Pods[1].Name)
}

// On a kernel without nf_tables, DEL and GC have nothing to remove.
func TestDELSucceedsWithoutNFTables(t *testing.T) {
	t.Parallel()
	netnstest.Require(t)
	for command, want := range map[string]bool{"ADD": false, "DEL": true, "GC": true} {
		var out string
		var ok bool
		require.NoError(t, dataplanetest.WithoutNetfilter(func() error {
			out, ok = plugin{command: command, network: "net", pod: pod(0)}.run(t)
			return nil
		}))
		require.Equal(t, want, ok, "%s: %s", command, out)
	}
}

// others publishes three ports for each of the pods, as processes would.
func others(tb testing.TB, ns *netnstest.NS, pods int) {
	backend, err := nftables.New(&nftables.Config{Table: "published", NetNS: ns.NetNS()})
	require.NoError(tb, err)
	defer backend.Close()
	p := dataplane.NewParts(backend, nil)
	for i := range pods {
		var r request
		var ports []mapping
		for _, port := range []uint16{80, 81, 82} {
			ports = append(ports, mapping{HostPort: port, ContainerPort: 8080,
				HostIP: netip.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i)})})
		}
		r.RuntimeConfig = runtimeConfig(ports...)
		r.PrevResult = fmt.Appendf(nil, `{"ips": [{"address": "10.1.%d.%d/16"}]}`, i>>8, i&255)
		owner := "other," + pod(i).ContainerID + ",eth0"
		state, err := r.state(owner)
		require.NoError(tb, err)
		_, err = p.Apply(tb.Context(), owner, state)
		require.NoError(tb, err)
	}
}

// BenchmarkProcess measures a process that publishes three ports of a pod and a process that
// removes them, while there are 5,100 frontends of other pods.
func BenchmarkProcess(b *testing.B) {
	netnstest.Require(b)
	ns, err := netnstest.NewNS(b.Name())
	require.NoError(b, err)
	defer ns.Close()
	others(b, ns, 1700)
	p := plugin{ns: ns, network: "net", pod: pod(1), addrs: []string{"10.2.0.1/16"},
		ports: tcp(8000, 8001, 8002)}
	for _, command := range []string{"VERSION", "ADD", "DEL"} {
		for name, ports := range map[string][]mapping{"": p.ports, "/1-port": run(8000, 1),
			"/10000-ports": run(8000, 10000)} {
			b.Run(command+name, func(b *testing.B) {
				p.ports = ports
				for b.Loop() {
					b.StopTimer()
					if command != "VERSION" {
						p.command = map[string]string{"ADD": "DEL", "DEL": "ADD"}[command]
						p.mustRun(b)
					}
					p.command = command
					b.StartTimer()
					p.mustRun(b)
				}
			})
		}
	}
}
