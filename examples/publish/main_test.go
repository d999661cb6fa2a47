package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/nftables"
	"github.com/kernlb/kernlb/servicemodel"
)

// node is a node whose kernel is in memory. Each command of a runtime is a new process there, which
// writes warnings to said.
type node struct {
	*testing.T
	kernel *memory.Kernel
	said   *bytes.Buffer
}

// run answers a command for a container, with the ports that are translated to port 8080 of its
// address.
func (n node) run(command, container, addr string, ports ...mapping) (string, error) {
	r := request{Name: "net", PrevResult: fmt.Appendf(nil, `{"ips":[{"address":"%s/24"}]}`, addr),
		RuntimeConfig: runtimeConfig(ports...)}
	if command == "GC" {
		r.ValidAttachments = []attachment{{container, "eth0"}}
	}
	backend := memory.New(n.kernel)
	backend.Refuse(nftables.Check)
	var out bytes.Buffer
	err := r.run(n.Context(), dataplane.NewParts(backend, nil), command,
		r.owner(attachment{container, "eth0"}), &out, n.said)
	return out.String(), err
}

func runtimeConfig(ports ...mapping) json.RawMessage {
	text, _ := json.Marshal(map[string]any{"portMappings": ports}) // never fails
	return text
}

// reaches returns what a client outside meets at a port of the node.
func (n node) reaches(at string) string {
	to := netip.MustParseAddrPort(at)
	return n.kernel.Table().Decide(servicemodel.Packet{Protocol: servicemodel.TCP, Dst: to,
		Src: netip.MustParseAddrPort("192.0.2.9:40000")}, servicemodel.Locality{to.Addr()}).Reason
}

func TestCommandsWithoutAKernel(t *testing.T) {
	t.Parallel()
	n := node{t, &memory.Kernel{}, &bytes.Buffer{}}
	web, admin := mapping{HostPort: 80, ContainerPort: 8080}, mapping{HostPort: 81,
		ContainerPort: 8081, HostIP: netip.MustParseAddr("198.51.100.1")}
	out, err := n.run("ADD", "one", "10.1.0.1", web, admin)
	require.NoError(t, err)
	require.JSONEq(t, `{"ips": [{"address": "10.1.0.1/24"}]}`, out)
	require.Equal(t, "node-port of net,one,eth0/port-0, from outside", n.reaches("198.51.100.1:80"))
	require.Equal(t, "host-ip of net,one,eth0/port-1, from outside",
		n.reaches("198.51.100.1:81"))
	require.Contains(t, n.reaches("198.51.100.2:81"), "no service")

	_, err = n.run("CHECK", "one", "10.1.0.1", web, admin)
	require.NoError(t, err)
	_, err = n.run("CHECK", "one", "10.1.0.1", web)
	require.ErrorContains(t, err, "- frontend 198.51.100.1:81/tcp")
	_, err = n.run("ADD", "two", "10.1.0.2", web)
	var taken *servicemodel.TakenError
	require.ErrorAs(t, err, &taken)
	require.Equal(t, "net,one,eth0", taken.Holder.Name.Namespace)
	require.Equal(t, 100, code(err))

	_, err = n.run("ADD", "two", "10.1.0.2", mapping{HostPort: 82, ContainerPort: 8080})
	require.NoError(t, err)
	_, err = n.run("GC", "two", "")
	require.NoError(t, err)
	require.Contains(t, n.reaches("198.51.100.1:80"), "no service")
	require.Contains(t, n.reaches("198.51.100.1:82"), "net,two,eth0/port-0")
	for range 2 { // a second DEL finds nothing, which is no error
		_, err = n.run("DEL", "two", "")
		require.NoError(t, err)
	}
	require.Zero(t, n.kernel.Table().Len())
}

// Ports that follow one another are a range for packets, and stay ports for their owners: a mapping
// at one address goes before it, and one for the same port at all addresses is refused.
func TestPortsThatFollowOneAnotherAreARange(t *testing.T) {
	t.Parallel()
	n := node{t, &memory.Kernel{}, &bytes.Buffer{}}
	var ports []mapping
	for p := uint16(8100); p >= 8000; p-- {
		ports = append(ports, mapping{HostPort: p, ContainerPort: p})
	}
	ports[50].Protocol = "TCP"
	admin := mapping{HostPort: 8050, ContainerPort: 81, HostIP: netip.MustParseAddr("198.51.100.1")}
	_, err := n.run("ADD", "one", "10.1.0.1", append(ports, admin)...)
	require.NoError(t, err)
	require.Equal(t, 2, n.kernel.Table().Len(), "a range, and a port")
	require.Contains(t, n.reaches("198.51.100.1:8000"), "node-port of net,one,eth0/port-100")
	require.Contains(t, n.reaches("198.51.100.2:8050"), "node-port of net,one,eth0/port-100")
	require.Contains(t, n.reaches("198.51.100.1:8050"), "host-ip of net,one,eth0/port-101")
	require.Contains(t, n.reaches("198.51.100.1:8101"), "no service")

	for _, second := range []mapping{{HostPort: 8050, ContainerPort: 8050},
		{HostPort: 8050, ContainerPort: 81, HostIP: netip.IPv4Unspecified()}} {
		_, err = n.run("ADD", "one", "10.1.0.1", append(ports, second)...)
		var taken *servicemodel.TakenError
		require.ErrorAs(t, err, &taken, "one port leads to two places")
		_, err = n.run("ADD", "two", "10.1.0.2", second)
		require.ErrorAs(t, err, &taken, "another container has it")
	}
	_, err = n.run("DEL", "one", "")
	require.NoError(t, err)
	require.Zero(t, n.kernel.Table().Len())
}

// A port at an address whose family differs from the pod's is published, and rejects connections.
func TestWarningsAreSaidOnce(t *testing.T) {
	t.Parallel()
	n := node{t, &memory.Kernel{}, &bytes.Buffer{}}
	_, err := n.run("ADD", "one", "10.1.0.1", mapping{HostPort: 80, ContainerPort: 8080,
		HostIP: netip.MustParseAddr("2001:db8::1")})
	require.NoError(t, err)
	require.Equal(t, "publish: warning: service net,one,eth0/port-0: endpoints[0].addr: "+
		"0 of 1 ports of the service have an address of IPv4\n", n.said.String())
}

func TestErrorsHaveTheCodesOfCNI(t *testing.T) {
	t.Parallel()
	n := node{t, &memory.Kernel{}, &bytes.Buffer{}}
	for want, m := range map[string]mapping{
		"protocol: ": {HostPort: 80, ContainerPort: 8080, Protocol: "icmp"},
		"port: ":     {ContainerPort: 8080},
		"hostIPs[0]": {HostPort: 80, ContainerPort: 8080, HostIP: netip.IPv6Loopback()},
	} {
		_, err := n.run("ADD", "one", "10.1.0.1", m)
		require.ErrorContains(t, err, want)
		require.Equal(t, 7, code(err), err)
	}
	require.Equal(t, 50, code(fmt.Errorf("%w: no module", errUnavailable)))
	require.Equal(t, 100, code(errors.New("another")))
	r := request{Name: "net", PrevResult: []byte(`{}`),
		RuntimeConfig: runtimeConfig(mapping{HostPort: 80, ContainerPort: 8080})}
	_, err := r.state("net,one,eth0")
	require.EqualError(t, err, "prevResult.ips: the pod has no address")
}

// A runtime sends DEL after an ADD that was refused, with the same wrong ports.
func TestDELIgnoresThePorts(t *testing.T) {
	t.Parallel()
	const text = `{"name": "net", "runtimeConfig": {"portMappings": [{"hostIP": "localhost"}]},
		"prevResult": {}}`
	var r request
	require.NoError(t, json.Unmarshal([]byte(text), &r))
	parts := dataplane.NewParts(memory.New(nil), nil)
	require.ErrorContains(t, r.run(t.Context(), parts, "ADD", "net,one,eth0", nil, nil),
		"localhost")
	require.NoError(t, r.run(t.Context(), parts, "DEL", "net,one,eth0", nil, nil))
}
