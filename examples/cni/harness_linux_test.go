package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"
	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/test/must"
	"github.com/kernlb/kernlb/nftables"
	"github.com/kernlb/kernlb/servicemodel"
)

func TestMain(m *testing.M) {
	if os.Getenv(asTracer) != "" {
		trace(os.Args[1:])
	}
	netnstest.Main(tests{m})
}

// tests are the tests of the package, with a folder for the programs that they build.
type tests struct{ *testing.M }

const pluginFolder = "CNI_TEST_PLUGINS"

func (t tests) Run() int {
	dir, err := os.MkdirTemp("", "cni")
	if err == nil {
		err = os.Setenv(pluginFolder, dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}

	defer os.RemoveAll(dir)
	return t.M.Run()
}

// plugins returns a folder with the plugin, cnitool, and plugins of other authors, in the versions
// of go.mod. The foreign programs are linked once and kept in Go's cache.
var plugins = sync.OnceValues(func() (string, error) {
	dir := os.Getenv(pluginFolder)
	run := func(args ...string) (string, error) {
		out, err := exec.Command("go", args...).Output()
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("go %s: %w: %s", strings.Join(args, " "), err, exit.Stderr)
		}
		return strings.TrimSpace(string(out)), err
	}
	_, err := run("build", "-buildvcs=false", "-o", filepath.Join(dir, "kernlb-portmap"), ".")
	for _, tool := range []string{"cnitool", "bridge", "ptp", "host-local", "portmap"} {
		if err == nil {
			var path string
			if path, err = run("tool", "-n", tool); err == nil {
				err = os.Symlink(path, filepath.Join(dir, tool))
			}
		}
	}
	return dir, err
})

// host is a host with a runtime for containers.
type host struct {
	*netnstest.Cluster
	tb      testing.TB
	plugins string // the folder
	dir     string // contains net.d, and the contents of /var/lib
}

// container is a namespace that a runtime made for a container. It gets its addresses later.
type container struct {
	netnstest.Host
	ports []mapping
}

// object is a JSON object.
type object map[string]any

// newHost returns a host with networks, each a list of plugins.
func newHost(tb testing.TB, networks ...object) *host {
	netnstest.Require(tb)
	dir := must.OK(plugins())(tb)
	h := &host{tb: tb, plugins: dir, dir: tb.TempDir(), Cluster: netnstest.Start(tb,
		netnstest.Options{Pods: -1, RemotePods: -1, OutsideClients: 1})}
	withNeighbours(tb, h.Node.NS)
	for _, d := range []string{"net.d", "var"} {
		require.NoError(tb, os.Mkdir(filepath.Join(h.dir, d), 0o755))
	}
	for i, n := range networks {
		text := must.OK(json.Marshal(n))(tb)
		file := fmt.Sprintf("net.d/%d.conflist", i)
		require.NoError(tb, os.WriteFile(filepath.Join(h.dir, file), text, 0o600))
	}

	return h
}

// network returns the network of README.md. publish is the plugin that publishes ports.
func network(tb testing.TB, name, version string, publish object) object {
	text := must.OK(os.ReadFile("10-hostports.conflist"))(tb)
	var n object
	require.NoError(tb, json.Unmarshal(text, &n))
	n["name"], n["cniVersion"] = name, version
	n["plugins"] = []any{n["plugins"].([]any)[0], publish}
	return n
}

// overPTP changes a network to plugin ptp.
func overPTP(n object) object {
	main := n["plugins"].([]any)[0].(map[string]any)
	n["plugins"].([]any)[0] = object{"type": "ptp", "ipam": main["ipam"], "ipMasq": true}
	return n
}

// ours returns our plugin with further fields.
func ours(fields object) object { return publisher("kernlb-portmap", fields) }

func publisher(name string, fields object) object {
	o := object{"type": name, "capabilities": object{"portMappings": true}}
	for k, v := range fields {
		o[k] = v
	}
	return o
}

// newContainer makes the namespace of a container.
func (h *host) newContainer(name string, ports ...mapping) *container {
	ns := must.OK(netnstest.NewNS(name))(h.tb)
	h.tb.Cleanup(func() { _ = ns.Close() })
	withNeighbours(h.tb, ns)
	return &container{Host: netnstest.Host{Name: name, NS: ns}, ports: ports}
}

// withNeighbours gives future interfaces in a namespace link-local addresses. Neighbour discovery
// needs them, and package netnstest switches them off.
func withNeighbours(tb testing.TB, ns *netnstest.NS) {
	require.NoError(tb, ns.SetSysctl("net/ipv6/conf/default/addr_gen_mode", "0"))
}

// path returns the name of the namespace for a runtime.
func (c *container) path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), c.NS.Fd()) }

// env returns the environment of cnitool, and of plugins that are called without it.
func (h *host) env(c *container, more ...string) []string {
	ports := must.OK(json.Marshal(object{"portMappings": c.ports}))(h.tb)
	return append(append(os.Environ(), "CNI_PATH="+h.plugins, "CAP_ARGS="+string(ports),
		"NETCONFPATH="+filepath.Join(h.dir, "net.d")), more...)
}

// cnitool returns cnitool with arguments, to be started on the host. Its /var/lib is the test's
// own.
func (h *host) cnitool(command, network string, c *container) *exec.Cmd {
	cmd := exec.Command("sh", "-c", `mount --bind "$0" /var/lib && exec "$@"`,
		filepath.Join(h.dir, "var"), filepath.Join(h.plugins, "cnitool"), command, network,
		c.path())
	cmd.Env = h.env(c)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	return cmd
}

// try runs a command on the host and waits for its end. The error includes its output.
func (h *host) try(cmd *exec.Cmd) (stdout string, err error) {
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err = h.Node.NS.Do(cmd.Start); err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		err = fmt.Errorf("%s: %w: %s%s", cmd, err, &out, &errs)
	}
	return out.String(), err
}

// add adds a container to a network.
func (h *host) add(network string, c *container) error {
	out, err := h.try(h.cnitool("add", network, c))
	if err != nil {
		return err
	}
	r, err := create.CreateFromBytes([]byte(out))
	if err != nil {
		return err
	}
	result, err := types100.GetResult(r)
	if err != nil {
		return err
	}
	for _, ip := range result.IPs {
		addr, _ := netip.AddrFromSlice(ip.Address.IP)
		if addr = addr.Unmap(); addr.Is4() {
			c.IPv4 = addr
		} else {
			c.IPv6 = addr
		}
	}

	return h.settled(c)
}

// settled waits until packets pass in both directions between a container and the host. Linux
// continues its work on IPv6 addresses and neighbours after the call that asked for them.
func (h *host) settled(c *container) error {
	ctx, cancel := context.WithTimeout(h.tb.Context(), time.Minute)
	defer cancel()
	for _, addr := range []netip.Addr{h.Node.IPv4, h.Node.IPv6} {
		const closed = 7 // an unpublished port
		for {
			o := netnstest.Probe{From: &c.Host, Proto: servicemodel.TCP,
				To: netip.AddrPortFrom(addr, closed)}.Send(ctx)
			if o.Kind == netnstest.Refused {
				break
			}
			if err := ctx.Err(); err != nil {
				return fmt.Errorf("%s does not reach %v: %v: %w", c.Name, addr, o, err)
			}
		}
	}

	return nil
}

func (h *host) mustAdd(network string, c *container) {
	h.tb.Helper()
	require.NoError(h.tb, h.add(network, c))
}

// must runs cnitool, which must succeed.
func (h *host) must(command, network string, c *container) {
	h.tb.Helper()
	must.OK(h.try(h.cnitool(command, network, c)))(h.tb)
}

// serve starts servers of a container.
func (c *container) serve(tb testing.TB, proto servicemodel.Protocol, port uint16) {
	for _, addr := range []netip.Addr{c.IPv4, c.IPv6} {
		must.OK(c.NS.Serve(c.Name, proto, netip.AddrPortFrom(addr, port)))(tb)
	}
}

// owners returns the owners that hold anything on the host.
func (h *host) owners() []string {
	backend := must.OK(nftables.New(
		&nftables.Config{Table: instance, NetNS: h.Node.NS.NetNS()}))(h.tb)
	defer backend.Close()
	return must.OK(dataplane.NewParts(backend, nil).Owners(h.tb.Context()))(h.tb)
}

// reaches requires that a TCP connection to a port reaches a container. It returns the source
// address that the container sees.
func (h *host) reaches(from *netnstest.Host, addr netip.Addr, port uint16, want string) netip.Addr {
	h.tb.Helper()
	o := netnstest.Probe{From: from, Proto: servicemodel.TCP,
		To: netip.AddrPortFrom(addr, port)}.Send(h.tb.Context())
	require.Equal(h.tb, want, o.Server, "%v at port %d: %v", addr, port, o)
	return o.Source.Addr()
}
