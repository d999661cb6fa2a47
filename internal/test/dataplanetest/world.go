package dataplanetest

import (
	"fmt"
	"net/netip"
	"sync"
	"testing"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/dataplanetest/scenario"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/servicemodel"
)

// world is a network with servers everywhere and an engine on the backend under test.
type world struct {
	*netnstest.Cluster
	under   Backend
	backend backends.Backend
	engine  *dataplane.Engine
	hosts   map[string]*netnstest.Host
}

// newWorld builds a network. The caller must close it.
func newWorld(t *testing.T, under Backend, o scenario.Options) *world {
	t.Helper()
	c := ok(netnstest.New(t.Context(), netnstest.Options{Bridge: o.Bridge,
		PodInterfacePrefix: o.PodInterfacePrefix}))(t)
	w := &world{Cluster: c, under: under, hosts: map[string]*netnstest.Host{}}
	for _, h := range c.Hosts() {
		w.hosts[h.Name] = h
		for _, proto := range netnstest.Protocols() {
			w.serve(t, h.Name, proto, scenario.PortA)
			w.serve(t, h.Name, proto, scenario.PortB)
		}
	}

	w.backend = ok(under.Open(c.Node.NS.NetNS()))(t)
	w.engine = w.newEngine(nil)
	return w
}

// newEngine returns an engine without memory. It is strict, because otherwise a service might be
// left out and not tested.
func (w *world) newEngine(f dataplane.Flows) *dataplane.Engine {
	return dataplane.New(w.backend, &dataplane.Config{Strict: true, Flows: f})
}

// serve starts a server on a host, in both families, named after the host and the port.
func (w *world) serve(t *testing.T, host string, proto servicemodel.Protocol, port uint16) (
	stop func()) {
	t.Helper()
	h := w.hosts[host]
	var all []*netnstest.Server
	for _, a := range []netip.Addr{h.IPv4, h.IPv6} {
		s := ok(h.NS.Serve(serverName(host, port), proto, netip.AddrPortFrom(a, port)))(t)
		all = append(all, s)
	}

	return func() {
		for _, s := range all {
			s.Close() //nolint:errcheck // it is to be gone
		}
	}
}

func serverName(host string, port uint16) string { return fmt.Sprintf("%s/%d", host, port) }

func (w *world) close() {
	w.backend.Close()
	w.Cluster.Close()
}

// serverOf returns the name of the server at an endpoint.
func (w *world) serverOf(ep netip.AddrPort) string {
	for _, h := range w.Hosts() {
		if ep.Addr() == h.IPv4 || ep.Addr() == h.IPv6 {
			return serverName(h.Name, ep.Port())
		}
	}

	return ep.String()
}

// packet is the packet that the oracle judges for a probe from the given source.
func (w *world) packet(p netnstest.Probe, src netip.AddrPort) servicemodel.Packet {
	pk := servicemodel.Packet{Src: src, Dst: p.To, Protocol: servicemodel.Protocol(p.Proto)}
	if p.From.NS == w.Node.NS {
		pk.FromThisNode = true
	} else {
		pk.InInterface, pk.Link = p.From.NodeInterface, w.link(p.From)
	}

	return pk
}

// link returns the prefixes that the node reaches directly by the interface to a host.
func (w *world) link(to *netnstest.Host) (l []netip.Prefix) {
	for _, h := range w.Hosts() {
		if h.NodeInterface == to.NodeInterface && h.NS != w.Node.NS {
			l = append(l, netip.PrefixFrom(h.IPv4, 32), netip.PrefixFrom(h.IPv6, 128))
		}
	}

	return l
}

// worlds keeps networks for scenarios, which take turns: building one takes longer than most
// scenarios.
type worlds struct {
	under Backend
	mu    sync.Mutex
	free  map[scenario.Options][]*world
}

func newWorlds(t *testing.T, under Backend) *worlds {
	ws := &worlds{under: under, free: map[scenario.Options][]*world{}}
	t.Cleanup(func() {
		for _, free := range ws.free {
			for _, w := range free {
				w.close()
			}
		}
	})

	return ws
}

// take returns a network that is not in use. The caller has it until give.
func (ws *worlds) take(t *testing.T, o scenario.Options) *world {
	t.Helper()
	ws.mu.Lock()
	if l := ws.free[o]; len(l) > 0 {
		w := l[len(l)-1]
		ws.free[o] = l[:len(l)-1]
		ws.mu.Unlock()
		return w
	}

	ws.mu.Unlock()
	return newWorld(t, ws.under, o)
}

func (ws *worlds) give(o scenario.Options, w *world) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.free[o] = append(ws.free[o], w)
}
