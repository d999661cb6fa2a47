package proxy_test

import (
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/examples/userspace/proxy"
	"github.com/kernlb/kernlb/internal/test/must"
	"github.com/kernlb/kernlb/iptables"
	"github.com/kernlb/kernlb/ipvs"
	"github.com/kernlb/kernlb/nftables"
	"github.com/kernlb/kernlb/servicemodel"
)

// backends.md says which backend refuses which scheduler.
func TestBackendsHaveTheSchedulersThatTheDocumentationNames(t *testing.T) {
	t.Parallel()
	user := must.OK(proxy.New(nil))(t)
	defer user.Close()
	checks := []func(*servicemodel.ChangeSet) error{nftables.Check, iptables.Check, ipvs.Check,
		user.Check}
	rows := 0
	for _, line := range tableOf(t, "| scheduler | chooses |") {
		cells := strings.Split(line, " | ")
		for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cells[0], -1) {
			rows++
			c := changesOf(t, func(s *servicemodel.Service, _ *servicemodel.EndpointPort) {
				s.Scheduler = servicemodel.Scheduler(m[1])
			})
			for i, check := range checks {
				refused := slices.ContainsFunc(dataplane.Problems(check(c)),
					func(p dataplane.Problem) bool { return p.Field == backends.FieldScheduler })
				require.Equal(t, strings.HasPrefix(cells[2+i], "refused"), refused,
					"%s: %d", m[1], i)
			}
		}
	}

	require.Equal(t, 14, rows, "servicemodel has as many schedulers")
}

// backends.md says which backend refuses which ranges of ports.
func TestBackendsHaveTheRangesThatTheDocumentationNames(t *testing.T) {
	t.Parallel()
	user := must.OK(proxy.New(nil))(t)
	defer user.Close()
	checks := []func(*servicemodel.ChangeSet) error{nftables.Check, iptables.Check, ipvs.Check,
		user.Check}
	ranges := []struct{ port, target, nodePort uint16 }{{}, {8080, 0, 0}, {0, 8080, 0},
		{0, 0, 30080}}
	rows := tableOf(t, "| endpoints |")
	require.Len(t, rows, len(ranges))
	for n, line := range rows {
		cells := strings.Split(strings.Trim(line, "| \n"), " | ")
		c := changesOf(t, func(s *servicemodel.Service, p *servicemodel.EndpointPort) {
			r, own := ranges[n], &s.Ports[0]
			own.EndPort, own.TargetPort, own.NodePort, p.Port = 90, r.target, r.nodePort, r.port
		})
		for i, check := range checks {
			refused := slices.ContainsFunc(dataplane.Problems(check(c)),
				func(p dataplane.Problem) bool {
					return p.Field == backends.FieldEndPort || p.Field == backends.FieldTargetPort
				})
			require.Equal(t, cells[1+i] == "refused", refused, "%s: %d", line, i)
		}
	}
}

// tableOf returns the rows of the table in backends.md with this beginning of its head.
func tableOf(t *testing.T, head string) []string {
	t.Helper()
	text := must.OK(os.ReadFile("../../../docs/backends.md"))(t)
	head += " nftables | iptables | ipvs | userspace |\n"
	_, table, found := strings.Cut(string(text), head)
	require.True(t, found)
	table, _, _ = strings.Cut(table, "\n\n")
	return strings.Split(strings.TrimSpace(table), "\n")[1:]
}

// changesOf returns changes that add a service with an endpoint, as edited.
func changesOf(t *testing.T,
	edit func(*servicemodel.Service, *servicemodel.EndpointPort)) *servicemodel.ChangeSet {
	t.Helper()
	svc := servicemodel.Service{Name: servicemodel.Name{Namespace: "default", Name: "web"},
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")},
		Ports:      []servicemodel.ServicePort{{Protocol: servicemodel.TCP, Port: 80}}}
	port := servicemodel.EndpointPort{Protocol: servicemodel.TCP, Port: 8080}
	edit(&svc, &port)
	table := must.OK(servicemodel.Resolve(nil, servicemodel.State{}.WithService(&svc).
		WithEndpoints(svc.Name, []servicemodel.Endpoint{{Addr: netip.MustParseAddr("10.244.0.1"),
			Ports: []servicemodel.EndpointPort{port}}})))(t)
	return servicemodel.Diff(nil, table)
}
