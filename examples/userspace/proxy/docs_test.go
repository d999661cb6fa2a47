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
	text := must.OK(os.ReadFile("../../../docs/backends.md"))(t)
	_, table, found := strings.Cut(string(text),
		"| scheduler | chooses | nftables | iptables | "+
			"ipvs | userspace |\n|---|---|---|---|---|---|\n")
	require.True(t, found)
	table, _, _ = strings.Cut(table, "\n\n")
	rows := 0
	for line := range strings.Lines(table) {
		cells := strings.Split(line, " | ")
		for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cells[0], -1) {
			rows++
			c := changesOf(t, servicemodel.Scheduler(m[1]))
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

// changesOf add a service with an endpoint and a scheduler.
func changesOf(t *testing.T, s servicemodel.Scheduler) *servicemodel.ChangeSet {
	t.Helper()
	svc := servicemodel.Service{Name: servicemodel.Name{Namespace: "default", Name: "web"},
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")}, Scheduler: s,
		Ports: []servicemodel.ServicePort{{Protocol: servicemodel.TCP, Port: 80}}}
	table := must.OK(servicemodel.Resolve(nil, servicemodel.State{}.WithService(&svc).
		WithEndpoints(svc.Name, []servicemodel.Endpoint{{
			Addr:  netip.MustParseAddr("10.244.0.1"),
			Ports: []servicemodel.EndpointPort{{Protocol: servicemodel.TCP, Port: 8080}}}})))(t)
	return servicemodel.Diff(nil, table)
}
