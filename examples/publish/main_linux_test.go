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
	// addrs are the pod's addresses, and ports the published ports: a host port leads to port 8080.
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

// BenchmarkProcess measures a process that publishes three ports of a pod and one that removes
// them, while there are 5,100 frontends of other pods.
func BenchmarkProcess(b *testing.B) {
	netnstest.Require(b)
	ns, err := netnstest.NewNS(b.Name())
	require.NoError(b, err)
	defer ns.Close()
	others(b, ns, 1700)
	p := plugin{ns: ns, network: "net", pod: pod(1), addrs: []string{"10.2.0.1/16"},
		ports: tcp(8000, 8001, 8002)}
	for _, command := range []string{"VERSION", "ADD", "DEL"} {
		b.Run(command, func(b *testing.B) {
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
