package dataplanetest

import (
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

// rangeStays sends from clients to different ports of a range. Each client has one endpoint at all
// of them, also when its endpoint leaves, and a node port of the same number is another frontend.
func rangeStays(t *testing.T, w *world) {
	with := func(hosts ...string) servicemodel.State {
		return state(podCIDRs(thisNode()), web(portRange, sticky(time.Hour)),
			each(eps(hosts...), keptPorts))
	}

	all := []string{"pod2", "pod3", "remote1", "remote2"}
	if !w.accepted(t, with(all...), backends.FieldEndPort, "") {
		return
	}
	had := map[way]string{}
	stays := func() {
		for _, y := range w.ways([]string{"pod1", "outside1", "node"}, cluster.on(scenario.PortA)) {
			other, at := y, w.ways([]string{y.from}, cluster.on(scenario.PortB))
			other.to = at[0].to
			if y.to.Addr().Is6() {
				other.to = at[len(w.under.protocols())].to
			}
			w.shares(t, y, 1) // first packets of several connections may race with one another
			hosts := map[string]bool{}
			for _, on := range []way{y, other, y, other, y} {
				for server := range w.shares(t, on, 2) {
					host, port, _ := strings.Cut(server, "/")
					hosts[host] = true
					if port != on.to.String()[strings.LastIndexByte(on.to.String(), ':')+1:] {
						t.Errorf("%s: answered by %s", on, server)
					}
					had[y] = host
				}
			}

			if len(hosts) != 1 {
				t.Errorf("%s: more than one endpoint: %v", y, hosts)
			}
		}
	}

	stays()
	before := map[way]string{}
	for y, host := range had {
		before[y] = host
	}
	w.apply(t, with("pod3", "remote1"))
	if _, err := w.engine.Settle(t.Context()); err != nil {
		t.Fatal(err)
	}
	stays()
	for y, host := range had {
		if left := before[y]; host != left && (left == "pod3" || left == "remote1") {
			t.Errorf("%s: moved from %s to %s", y, left, host)
		}
	}
}
