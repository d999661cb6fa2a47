package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/test/dataplanetest"
	"github.com/kernlb/kernlb/internal/test/must"
	"github.com/kernlb/kernlb/nftables"
	"github.com/kernlb/kernlb/servicemodel"
)

func tcp(host, container int) mapping {
	return mapping{HostPort: host, ContainerPort: container, Protocol: "tcp"}
}

// For each version of the specification and each kind of network, a container is added, checked and
// deleted.
func TestChains(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, network(t, "bridged", version, ours(nil)),
				overPTP(network(t, "routed", version, ours(nil))))
			for i, name := range []string{"bridged", "routed"} {
				c := h.newContainer(name, tcp(8000+i, 80))
				testChain(t, h, name, c, version >= "0.4.0")
			}
		})
	}
}

func testChain(t *testing.T, h *host, network string, c *container, checks bool) {
	h.mustAdd(network, c)
	c.serve(t, servicemodel.TCP, 80)
	port := uint16(c.ports[0].HostPort)
	for _, addr := range h.NodeAddrs() {
		source := h.reaches(h.Outside[0], addr, port, c.Name)
		require.Equal(t, h.Outside[0].Addr(addr), source, "the client's own address")
	}

	h.reaches(h.Node, netip.MustParseAddr("127.0.0.1"), port, c.Name)
	h.reaches(&c.Host, h.Node.IPv4, port, c.Name)
	if checks {
		h.must("check", network, c)
	}
	h.must("status", network, c)
	h.must("del", network, c)
	h.must("del", network, c)
	h.reaches(h.Outside[0], h.Node.IPv4, port, "")
	require.Empty(t, h.owners())
}

// Consecutive host ports at other consecutive ports of a container are one range.
func TestARangeIsMapped(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	var ports []mapping
	for i := range 20 {
		ports = append(ports, tcp(8000+i, 80+i))
	}
	c := h.newContainer("c", ports...)
	must.OK(h.try(h.plugin("ADD", c, request(c.ports, nil))))(t)
	text := must.OK(h.try(exec.Command("nft", "list", "map", "ip", instance,
		"noderange-shifts")))(t)
	require.Contains(t, text, ". 8019 : 99")
	must.OK(h.try(h.plugin("CHECK", c, request(c.ports, nil))))(t)
	must.OK(h.try(h.plugin("DEL", c, request(c.ports, nil))))(t)
	require.Empty(t, h.owners())
}

// Fifty containers come at once, and go at once.
func TestFiftyAtOnce(t *testing.T) {
	t.Parallel()
	h := newHost(t, network(t, "net", "1.1.0", ours(nil)))
	containers := make([]*container, 50)
	for i := range containers {
		containers[i] = h.newContainer(fmt.Sprint("c", i), tcp(8000+i, 80), tcp(9000+i, 80))
	}
	atOnce := func(do func(c *container) error) {
		t.Helper()
		var g errgroup.Group
		for _, c := range containers {
			g.Go(func() error { return do(c) })
		}
		require.NoError(t, g.Wait())
	}

	atOnce(func(c *container) error { return h.add("net", c) })
	require.Len(t, h.owners(), len(containers))
	for i, c := range containers {
		c.serve(t, servicemodel.TCP, 80)
		h.reaches(h.Outside[0], h.Node.IPv4, uint16(8000+i), c.Name)
		h.reaches(h.Outside[0], h.Node.IPv6, uint16(9000+i), c.Name)
	}

	atOnce(func(c *container) error {
		_, err := h.try(h.cnitool("del", "net", c))
		return err
	})

	require.Empty(t, h.owners())
}

// plugin returns the plugin, to be started on the host without cnitool.
func (h *host) plugin(command string, c *container, conf object) *exec.Cmd {
	cmd := exec.Command(filepath.Join(h.plugins, "kernlb-portmap"))
	cmd.Env = h.env(c, "CNI_COMMAND="+command, "CNI_CONTAINERID="+c.Name, "CNI_IFNAME=eth0",
		"CNI_NETNS="+c.path())
	text := must.OK(json.Marshal(conf))(h.tb)
	cmd.Stdin = bytes.NewReader(text)
	return cmd
}

// request returns the input from a runtime for ADD, with further fields.
func request(ports []mapping, fields object) object {
	o := object{"cniVersion": "1.1.0", "name": "net", "type": "kernlb-portmap",
		"runtimeConfig": object{"portMappings": ports}, "prevResult": object{"cniVersion": "1.1.0",
			"ips": []object{{"address": "10.88.0.2/16"}, {"address": "fd00:10:88::2/64"}}}}
	for k, v := range fields {
		o[k] = v
	}
	return o
}

// The plugin refuses wrong input by the name of its field, and changes nothing. The file has the
// errors, each with the fields of its request.
func TestRefused(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	for _, family := range []string{"ipv4", "ipv6"} { // then bind takes any address
		require.NoError(t, h.Node.NS.SetSysctl("net/"+family+"/ip_nonlocal_bind", "1"))
	}
	broadcast := h.Node.IPv4.As4()
	broadcast[3] = 255
	text := strings.ReplaceAll(string(must.OK(os.ReadFile("testdata/refused.txt"))(t)), "BROADCAST",
		netip.AddrFrom4(broadcast).String())
	for test := range strings.SplitSeq(text, "\n\n") {
		want, fields, _ := strings.Cut(test, "\n")
		var o object
		require.NoError(t, json.Unmarshal([]byte(fields), &o), want)
		_, err := h.try(h.plugin("ADD", h.newContainer("c"), request([]mapping{tcp(8000, 80)}, o)))
		require.ErrorContains(t, err, want)
	}

	require.Empty(t, h.owners())
}

// An accepted request leaves no mapping out: no two of its services claim one place.
func TestMappingsOfOnePlace(t *testing.T) {
	t.Parallel()
	at := []string{"", "0.0.0.0", "::", "127.0.0.1", "127.0.0.2"}
	accepted, refused := 0, 0
	for i := range len(at) * len(at) * 2 * 3 * 3 {
		ports := []mapping{{HostPort: 80, ContainerPort: 1, HostIP: at[i%5]},
			{HostPort: 80, ContainerPort: 1 + i/25%2, HostIP: at[i/5%5]}}
		only := [][]string{nil, {"-d", "127.0.0.1"}, {"-d", "127.0.0.2"}}[i/50%3]
		ips := []object{{"address": "10.88.0.2/16"}, {"address": "fd00:10:88::2/64"}}
		conf, err := parse(must.OK(json.Marshal(object{"cniVersion": "1.1.0", "name": "net",
			"conditionsV4":  only,
			"runtimeConfig": object{"portMappings": ports},
			"prevResult": object{"cniVersion": "1.1.0",
				"ips": [][]object{ips, ips[:1], ips[1:]}[i/150]}}))(t), "eth0")
		if err != nil {
			require.ErrorContains(t, err, "portMappings[1].hostPort: 80: portMappings[0] has it")
			require.NotEqual(t, ports[0].ContainerPort, ports[1].ContainerPort)
			refused++
			continue
		}

		table := must.OK(servicemodel.Resolve(nil, conf.state("net,c,eth0")))(t)
		require.Empty(t, slices.Collect(table.Conflicts()), "%v, conditions %v", ports, only)
		accepted++
	}

	require.Positive(t, accepted)
	require.Positive(t, refused)
}

// The example of GC in docs/programs.md removes the ports of all attachments except the named one.
func TestGarbageIsCollectedAsTheDocumentSays(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	text := must.OK(os.ReadFile("../../docs/programs.md"))(t)
	_, example, found := strings.Cut(string(text), "```sh\nCNI_COMMAND=GC")
	require.True(t, found)
	example, _, _ = strings.Cut(example, "```")
	for i, name := range []string{"one", "two"} {
		c := h.newContainer(name, tcp(8000+i, 80))
		must.OK(h.try(h.plugin("ADD", c, request(c.ports, object{"name": "hostports"}))))(t)
	}

	must.OK(h.try(exec.Command("sh", "-ec", "CNI_COMMAND=GC"+
		strings.ReplaceAll(example, "/opt/cni/bin", h.plugins))))(t)
	require.Equal(t, []string{"hostports,one,eth0"}, h.owners())
}

// DEL and GC can remove containers that a version with another layout published. Until then STATUS
// says that ADD fails.
func TestThePluginIsReplacedByOneWithAnotherLayout(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	run := func(command string, c *container, fields object) error {
		_, err := h.try(h.plugin(command, c, request(c.ports, fields)))
		return err
	}

	var containers []*container
	for i := range 3 {
		c := h.newContainer(fmt.Sprint("c", i), tcp(8000+i, 80))
		require.NoError(t, run("ADD", c, nil))
		containers = append(containers, c)
	}

	other := exec.Command("nft", "flush set ip "+instance+" settings; add element ip "+instance+
		` settings { 0x00000001 comment "layout 1000" }`)
	must.OK(h.try(other))(t)
	next := h.newContainer("next", tcp(8009, 80))
	for range containers {
		require.ErrorContains(t, run("ADD", next, nil), "another version of kernlb")
		err := run("STATUS", next, nil)
		require.ErrorContains(t, err, `"code": 50`)
		require.ErrorContains(t, err, "another version of kernlb")
		if len(containers) == 2 { // the network has one valid attachment
			require.NoError(t, run("GC", next, object{"cni.dev/valid-attachments": []object{
				{"containerID": containers[1].Name, "ifname": "eth0"}}}))
			require.Equal(t, []string{"net,c2,eth0"}, h.owners())
			containers = containers[1:]
			break
		}

		require.NoError(t, run("DEL", containers[0], nil))
		containers = containers[1:]
	}

	require.NoError(t, run("DEL", containers[0], nil))
	require.NoError(t, run("DEL", containers[0], nil))
	require.NoError(t, run("STATUS", next, nil))
	require.NoError(t, run("ADD", next, nil))
	require.Equal(t, []string{"net,next,eth0"}, h.owners())
}

// The plugin refuses a port that another container holds, and a setting that differs from the
// instance's.
func TestTaken(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	add := func(name string, fields object, ports ...mapping) error {
		_, err := h.try(h.plugin("ADD", h.newContainer(name), request(ports, fields)))
		return err
	}

	require.NoError(t, add("one", object{"markMasqBit": 13}, tcp(8000, 80), tcp(8001, 80)))
	err := add("two", nil, tcp(8002, 80), tcp(8001, 80))
	require.ErrorContains(t, err, "runtimeConfig.portMappings[1].hostPort: ")
	require.ErrorContains(t, err, "is held by net,one,eth0/portMappings[1]-IPv4")
	require.ErrorContains(t, add("two", object{"markMasqBit": 14}, tcp(8002, 80)),
		"markMasqBit: 14: ")
	require.NoError(t, add("two", object{"markMasqBit": 13}, tcp(8002, 80)))
	require.NoError(t, add("three", nil, tcp(8003, 80)))

	joined := []mapping{tcp(7000, 80)}
	for port := 7990; port < 8010; port++ {
		joined = append(joined, tcp(port, port))
	}
	require.ErrorContains(t, add("four", nil, joined...),
		"runtimeConfig.portMappings[11].hostPort: ", "the mapping of 8000")
}

// DEL removes the ports, whatever the fields that it does not need contain, and although the
// namespace of the container is gone.
func TestOnlyTheNameMattersToDEL(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	c := h.newContainer("c", tcp(8000, 80))
	for _, wrong := range []object{{"prevResult": 1}, {"ipam": 1}, {"dns": 1}, {"capabilities": 1},
		{"runtimeConfig": 1}, {"prevResult": nil}, {"backend": "iptables"}} {
		must.OK(h.try(h.plugin("ADD", c, request(c.ports, nil))))(t)
		del := h.plugin("DEL", c, request(nil, wrong))
		del.Env = append(del.Env, "CNI_NETNS=/nowhere")
		must.OK(h.try(del))(t)
		require.Empty(t, h.owners())
	}
}

// On a kernel without nf_tables, DEL and GC have nothing to remove. All else fails.
func TestDELSucceedsWithoutNFTables(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	c := h.newContainer("c", tcp(8000, 80))
	for command, want := range map[string]string{"ADD": "missing module nfnetlink",
		"CHECK": "missing module nfnetlink", "STATUS": `"code": 50`, "DEL": "", "GC": ""} {
		cmd := h.plugin(command, c, request(c.ports, nil))
		var out []byte
		err := dataplanetest.WithoutNetfilter(func() (err error) {
			out, err = cmd.CombinedOutput()
			return err
		})
		require.Contains(t, string(out), want, command)
		require.Equal(t, want == "", err == nil, "%s: %v", command, err)
	}
}

// A container without an address of the family of its mappings publishes nothing. CHECK accepts
// that, and the host holds nothing.
func TestNothingToPublish(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	c := h.newContainer("c", mapping{HostPort: 8000, ContainerPort: 80, HostIP: "127.0.0.1"})
	only6 := object{"prevResult": object{"cniVersion": "1.1.0",
		"ips": []object{{"address": "fd00:10:88::2/64"}}}}
	for _, command := range []string{"ADD", "CHECK", "ADD", "CHECK"} {
		must.OK(h.try(h.plugin(command, c, request(c.ports, only6))))(t)
		require.NotContains(t, must.OK(h.try(exec.Command("nft", "list", "tables")))(t), instance)
	}
}

// Settings of the instance can leave a mapping without effect.
func TestWarningsArePrinted(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	add := func(host int) string {
		var said strings.Builder
		plugin := h.plugin("ADD", h.newContainer(fmt.Sprint("c", host)),
			request([]mapping{tcp(host, 80)}, nil))
		plugin.Stderr = &said
		require.NoError(t, h.Node.NS.Do(plugin.Run))
		return said.String()
	}

	require.Empty(t, add(8000))
	backend := must.OK(nftables.New(
		&nftables.Config{Table: instance, NetNS: h.Node.NS.NetNS()}))(t)
	defer backend.Close()
	must.OK(dataplane.NewParts(backend, nil).Configure(t.Context(), servicemodel.Node{
		OnlyFamily: servicemodel.IPv4, LocalhostNodePorts: true, MasqueradeNeighbours: true}))(t)
	require.Equal(t, "warning: service net,c8001,eth0/portMappings[0]-IPv6: clusterIPs: the "+
		"service has no address and no node port that this node serves\n", add(8001))
}

// The result of the previous plugin is passed on unchanged.
func TestResultIsHandedOn(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	const result = `{"cniVersion": "1.1.0", "theirs": {"b": 1.50, "a": 9007199254740993},
		"ips": [{"address": "10.88.0.2/16", "interface": 0}, {"address": "10.88.0.1/16",
		"interface": 1}], "interfaces": [{"name": "eth0", "sandbox": "/x"}, {"name": "cni0"}]}`
	for _, ports := range [][]mapping{nil, {tcp(8000, 80)}} {
		out := must.OK(h.try(h.plugin("ADD", h.newContainer("c"), request(ports,
			object{"prevResult": json.RawMessage(result)}))))(t)
		var want bytes.Buffer
		require.NoError(t, json.Compact(&want, []byte(result)))
		require.Equal(t, want.String()+"\n", out)
	}
}

// STATUS fails if the process lacks the privileges to publish ports.
func TestStatus(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	status := h.plugin("STATUS", h.newContainer("c"), request(nil, nil))
	must.OK(h.try(status))(t)
	status = h.plugin("STATUS", h.newContainer("c"), request(nil, nil))
	status.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER}
	_, err := h.try(status)
	require.ErrorContains(t, err, `"code": 50`)
	require.ErrorContains(t, err, "CAP_NET_ADMIN")
}

// CHECK fails if the kernel does not hold the published ports.
func TestCheck(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	c := h.newContainer("c")
	run := func(command string) error {
		_, err := h.try(h.plugin(command, c, request([]mapping{tcp(8000, 80)}, nil)))
		return err
	}

	require.ErrorContains(t, run("CHECK"), "8000")
	require.NoError(t, run("ADD"))
	require.NoError(t, run("CHECK"))
	must.OK(h.try(exec.Command("nft", "flush", "set", "ip", instance, "nodeports")))(t)
	err := run("CHECK")
	require.ErrorContains(t, err, "the kernel does not hold what is published")
	require.ErrorContains(t, err, "+ frontend *4:8000/tcp")
	require.ErrorContains(t, err, "objects that are incomplete, or do not belong there: ")
	require.NoError(t, run("ADD"), "what was damaged is mended")
	require.NoError(t, run("CHECK"))
	must.OK(h.try(exec.Command("nft", "flush", "ruleset")))(t)
	require.Error(t, run("CHECK"))
	require.NoError(t, run("DEL"))
}
