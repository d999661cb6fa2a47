package dataplanetest

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/dataplane/flows"
	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/servicemodel"
)

// Ports of the service of these stories. Its endpoints listen on flowTarget.
const (
	flowPort     uint16 = 53
	flowNodePort uint16 = 30053
	flowTarget   uint16 = 5353
	streamPort   uint16 = 4053
)

// serverGrace is the time for which a server continues after the kernel has stopped sending to it:
// the server has to answer the packets in its socket.
const serverGrace = 100 * time.Millisecond

// keepFlows gives the world a new engine with a keeper of the node's flows.
func (w *world) keepFlows(t *testing.T, p servicemodel.ConnectionPolicy) *flows.Keeper {
	t.Helper()
	table, own := w.backend.(flows.Table)
	if !own || !w.under.Proxy {
		kernel, err := conntrack.Open(&conntrack.Config{NetNS: w.Node.NS.NetNS()})
		if errors.Is(err, kernelerr.ErrMissingModule) {
			t.Skipf("no conntrack over netlink: %v", err)
		}
		must(t, err)
		t.Cleanup(func() { kernel.Close() })
		table = kernel
	}

	keeper := ok(flows.New(table, &flows.Config{Connections: p}))(t)
	w.engine = w.newEngine(keeper)
	return keeper
}

// settle does all later work.
func (w *world) settle(t *testing.T) {
	t.Helper()
	for next := time.Duration(1); next > 0; {
		time.Sleep(next)
		next = ok(w.engine.Settle(t.Context()))(t)
	}
}

// settleUntil does due work until done returns true, for at most ten seconds. A backend may wait
// for connections much longer.
func (w *world) settleUntil(t *testing.T, done func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !done() && time.Now().Before(end); time.Sleep(
		20 * time.Millisecond) {
		ok(w.engine.Settle(t.Context()))(t)
	}
}

// flowService is the service of these stories.
func flowService(edit ...func(*servicemodel.Service)) *servicemodel.Service {
	return web(append([]func(*servicemodel.Service){func(s *servicemodel.Service) {
		s.Ports = []servicemodel.ServicePort{
			{Name: "udp", Protocol: servicemodel.UDP, Port: flowPort, NodePort: flowNodePort},
			{Name: "tcp", Protocol: servicemodel.TCP, Port: flowPort, NodePort: flowNodePort},
		}
	}}, edit...)...)
}

// flowEndpoints returns eps at flowTarget.
func flowEndpoints(hosts ...string) []servicemodel.Endpoint {
	return each(eps(hosts...), listening(flowTarget))
}

func flowState(endpoints []servicemodel.Endpoint,
	edit ...func(*servicemodel.Service)) servicemodel.State {
	return state(podCIDRs(thisNode()), flowService(edit...), endpoints)
}

// openStreams opens a stream by each address of the service, in both families. The stream by
// cluster IP keeps its source address; the others are masqueraded.
func (w *world) openStreams(t *testing.T) (all streams) {
	t.Helper()
	for _, f := range families {
		for i, c := range []struct {
			from string
			target
		}{{"pod1", cluster}, {"outside1", external}, {"outside2", loadBalancer},
			{"outside1", nodePorts}} {
			port := flowPort
			if c.target == nodePorts {
				port = flowNodePort
			}
			all = append(all, w.stream(t, c.from, streamPort+uint16(i),
				netip.AddrPortFrom(c.addrs[f], port)))
		}
	}

	return all
}

// flowsBegin serves at some hosts. The first host is the endpoint of the service that the streams
// use. stop ends the server there.
func (w *world) flowsBegin(t *testing.T, hosts ...string) (all streams, stop func()) {
	t.Helper()
	for i, host := range hosts {
		if s := w.serve(t, host, servicemodel.UDP, flowTarget); i == 0 {
			stop = s
		}
	}

	w.apply(t, flowState(flowEndpoints(hosts[0])))
	all = w.openStreams(t)
	all.requireAll(t, serverName(hosts[0], flowTarget))
	return all, stop
}

// through changes the services while the streams send. Each stream may lose at most the datagrams
// that it sent during the change, and the datagrams in flight at the beginning of the change. A
// change begins, for example, with the death of an endpoint.
func (l streams) through(t *testing.T, change func()) (lost, sent int) {
	t.Helper()
	l.start()
	time.Sleep(100 * time.Millisecond)
	l.each(streamSome)
	before := l.tallies()
	change()
	after := l.tallies()
	time.Sleep(100 * time.Millisecond)
	l.stop()
	for i, y := range l.tallies() {
		if allowed := after[i].sent - before[i].sent + before[i].lost; y.lost > allowed {
			t.Errorf("%s: %d lost, at most %d were on their way or sent while things changed: %s",
				l[i].name, y.lost, allowed, y)
		}

		lost += y.lost
		sent += y.sent
	}

	return lost, sent
}

func endpointReplaced(t *testing.T, w *world) {
	keeper := w.keepFlows(t, servicemodel.ConnectionPolicy{})
	all, stop := w.flowsBegin(t, "pod2", "pod3")

	// The old endpoint serves until the change is complete, like an endpoint that shuts down
	// gracefully. A stream that waits long for each answer has only one datagram in flight, however
	// slow the machine is.
	for _, s := range all {
		s.patience = 2 * time.Second
	}
	all.start()
	time.Sleep(50 * time.Millisecond)
	w.apply(t, flowState(flowEndpoints("pod3")))
	time.Sleep(serverGrace)
	stop()
	time.Sleep(50 * time.Millisecond)
	all.stop()
	lost, sent := 0, 0
	for i, y := range all.tallies() {
		if y.lost > 1 {
			t.Errorf("%s: more than one was on its way: %s", all[i].name, y)
		}
		lost, sent = lost+y.lost, sent+y.sent
	}

	t.Logf("%d of %d datagrams lost, %+v", lost, sent, keeper.Totals())
	for _, s := range all {
		s.patience = streamPatience
	}
	all.requireAll(t, serverName("pod3", flowTarget))
}

func endpointDies(t *testing.T, w *world) {
	keeper := w.keepFlows(t, servicemodel.ConnectionPolicy{})
	all, stop := w.flowsBegin(t, "pod2", "remote1")
	lost, sent := all.through(t, func() {
		stop()
		w.apply(t, flowState(flowEndpoints("remote1")))
	})
	t.Logf("%d of %d datagrams lost, %+v", lost, sent, keeper.Totals())
	all.requireAll(t, serverName("remote1", flowTarget))
}

func firstEndpoint(t *testing.T, w *world) {
	w.keepFlows(t, servicemodel.ConnectionPolicy{})
	w.serve(t, "pod2", servicemodel.UDP, flowTarget)
	w.apply(t, flowState(nil))
	all := w.openStreams(t)
	all.requireRefused(t, "without an endpoint")
	all.start()
	w.apply(t, flowState(flowEndpoints("pod2")))
	all.stop()
	all.requireAll(t, serverName("pod2", flowTarget))

	// The last endpoint is removed, and all flows to it are deleted: the clients are refused, and
	// not held in a black hole.
	w.apply(t, flowState(nil))
	all.requireRefused(t, "after the last endpoint went")
}

func serviceComes(t *testing.T, w *world) {
	w.keepFlows(t, servicemodel.ConnectionPolicy{})
	w.serve(t, "pod2", servicemodel.UDP, flowTarget)
	w.apply(t, servicemodel.State{}.WithNode(podCIDRs(thisNode())))
	var virtual streams
	for _, s := range w.openStreams(t) {
		if ap := s.conn.RemoteAddr().(*net.UDPAddr).AddrPort(); !w.IsNodeAddr(ap.Addr()) {
			// the node itself refuses packets to its own addresses
			virtual = append(virtual, s)
		}
	}

	virtual.requireAll(t, netnstest.Net.Internet)
	virtual.through(t, func() { w.apply(t, flowState(flowEndpoints("pod2"))) })
	w.settle(t) // an answer may have been on its way when the flows were deleted
	virtual.requireAll(t, serverName("pod2", flowTarget))
}

func nodePortMoves(t *testing.T, w *world) {
	w.keepFlows(t, servicemodel.ConnectionPolicy{})
	w.serve(t, "pod2", servicemodel.UDP, flowTarget)
	moved := func(s *servicemodel.Service) { s.Ports[0].NodePort = flowNodePort + 1 }
	w.apply(t, flowState(flowEndpoints("pod2")))
	var old, new streams
	for _, f := range families {
		old = append(old, w.stream(t, "outside1", streamPort,
			netip.AddrPortFrom(nodeIP[f], flowNodePort)))
		new = append(new, w.stream(t, "outside1", streamPort+1,
			netip.AddrPortFrom(nodeIP[f], flowNodePort+1)))
	}

	old.requireAll(t, serverName("pod2", flowTarget))
	old.start()
	new.start()
	time.Sleep(100 * time.Millisecond)
	w.apply(t, flowState(flowEndpoints("pod2"), moved))
	time.Sleep(50 * time.Millisecond)
	old.stop()
	new.stop()
	new.requireAll(t, serverName("pod2", flowTarget))
	old.requireRefused(t, "at the old node port")
}

func serviceGoes(t *testing.T, w *world) {
	w.keepFlows(t, servicemodel.ConnectionPolicy{})
	w.serve(t, "pod2", servicemodel.UDP, flowTarget)
	w.apply(t, flowState(flowEndpoints("pod2")))
	by := streams{w.stream(t, "pod1", streamPort, netip.AddrPortFrom(clusterIP[0], flowPort)),
		w.stream(t, "outside1", streamPort, netip.AddrPortFrom(externalIP[1], flowPort))}
	by.requireAll(t, serverName("pod2", flowTarget))
	by.through(t, func() { w.apply(t, servicemodel.State{}.WithNode(podCIDRs(thisNode()))) })
	by.requireAll(t, netnstest.Net.Internet)
}

func endpointTerminates(t *testing.T, w *world) {
	w.keepFlows(t, servicemodel.ConnectionPolicy{})
	all, _ := w.flowsBegin(t, "pod2", "pod3")
	both := []string{serverName("pod2", flowTarget)}
	if w.under.OwnConnections { // IPVS forgets UDP flows with their endpoint
		both = append(both, serverName("pod3", flowTarget))
	}
	w.apply(t, flowState(slices.Concat(each(flowEndpoints("pod2"), terminating),
		flowEndpoints("pod3"))))
	all.requireAll(t, both...)
	fresh := streams{w.stream(t, "pod1", streamPort+100, netip.AddrPortFrom(clusterIP[0],
		flowPort))}
	fresh.requireAll(t, serverName("pod3", flowTarget))
	w.apply(t, flowState(flowEndpoints("pod3")))
	all.requireAll(t, serverName("pod3", flowTarget))
}

// cleansAfterRestart changes the services with an engine that leaves flows alone. Another engine
// must find the stale flows.
func cleansAfterRestart(t *testing.T, w *world) {
	all, _ := w.flowsBegin(t, "pod2", "pod3")

	// like a program that is run once for each change
	w.keepFlows(t, servicemodel.ConnectionPolicy{})
	w.apply(t, flowState(flowEndpoints("pod3")))
	all.requireAll(t, serverName("pod3", flowTarget))

	w.engine = w.newEngine(nil) // like a process that is killed before it cleans up
	w.apply(t, flowState(flowEndpoints("pod2")))
	stale := len(all)

	// IPVS moves a flow itself: the next datagram ends the flow and is lost, and the datagram after
	// it begins a new flow
	if w.under.OwnConnections {
		all.send(2 * streamPatience)
		all.requireAll(t, serverName("pod2", flowTarget))
		stale = 0
	} else {
		all.requireAll(t, serverName("pod3", flowTarget))
	}

	keeper := w.keepFlows(t, servicemodel.ConnectionPolicy{})
	if r := w.apply(t, flowState(flowEndpoints("pod2"))); !r.Changes.Empty() {
		t.Errorf("nothing was to change:\n%s", r.Changes)
	}
	if d := keeper.Totals().Deleted; d != stale {
		t.Errorf("%d flows deleted, there were %d stale ones", d, stale)
	}
	all.requireAll(t, serverName("pod2", flowTarget))
}
