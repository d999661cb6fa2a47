package dataplanetest

import (
	"cmp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/dataplanetest/scenario"
	"github.com/kernlb/kernlb/servicemodel"
)

// portRange makes all ports of a service one range, and keptPorts lets packets keep their ports.
func portRange(s *servicemodel.Service) {
	for i := range s.Ports {
		s.Ports[i].Port, s.Ports[i].EndPort, s.Ports[i].NodePort = 8001, 9000, 0
	}
}

func keptPorts(e *servicemodel.Endpoint) {
	for i := range e.Ports {
		e.Ports[i].Port = 0
	}
}

// onePort lets all packets reach one port of an endpoint.
func onePort(*servicemodel.Endpoint) {}

// rangeStays sends from clients to different ports of a range. Each client has the same endpoint at
// all of them, also after its endpoint was removed, and a node port of the same number is a
// separate frontend. at sets the port of the endpoints.
func rangeStays(at func(*servicemodel.Endpoint)) func(*testing.T, *world) {
	return func(t *testing.T, w *world) {
		with := func(hosts ...string) servicemodel.State {
			return state(podCIDRs(thisNode()), web(portRange, sticky(time.Hour)),
				each(eps(hosts...), at))
		}

		all := with("pod2", "pod3", "remote1", "remote2")
		if !w.accepted(t, all, backends.FieldEndPort, "") {
			return
		}
		port := all.Endpoints(web().Name)[0].Ports[0].Port
		before := w.oneEndpoint(t, port)
		w.apply(t, with("pod3", "remote1"))
		w.settle(t)
		for y, host := range w.oneEndpoint(t, port) {
			if left := before[y]; host != left && (left == "pod3" || left == "remote1") {
				t.Errorf("%s: moved from %s to %s", y, left, host)
			}
		}
	}
}

// oneEndpoint requires that each client has one endpoint at two ports of a range, and returns it.
// at is the port of the endpoints, 0 if packets keep theirs.
func (w *world) oneEndpoint(t *testing.T, at uint16) map[way]string {
	t.Helper()
	had := map[way]string{}
	for _, y := range w.ways([]string{"pod1", "outside1", "node"}, cluster.on(scenario.PortA)) {
		other, there := y, w.ways([]string{y.from}, cluster.on(scenario.PortB))
		other.to = there[0].to
		if y.to.Addr().Is6() {
			other.to = there[len(w.under.protocols())].to
		}

		w.shares(t, y, 1) // first packets of several connections may race with one another
		hosts := map[string]bool{}
		for _, on := range []way{y, other, y, other, y} {
			for server := range w.shares(t, on, 2) {
				host, port, _ := strings.Cut(server, "/")
				hosts[host], had[y] = true, host
				if port != strconv.Itoa(int(cmp.Or(at, on.to.Port()))) {
					t.Errorf("%s: answered by %s", on, server)
				}
			}
		}

		if len(hosts) != 1 {
			t.Errorf("%s: more than one endpoint: %v", y, hosts)
		}
	}

	return had
}
