package node

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/servicemodel"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

// tableOf returns the table of a service with endpoints at port 8080.
func tableOf(t *testing.T, node servicemodel.Node, endpoints ...string) *servicemodel.Table {
	t.Helper()
	name := servicemodel.Name{Namespace: "default", Name: "web"}
	s := servicemodel.State{}.WithNode(node).WithService(&servicemodel.Service{Name: name,
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10"),
			netip.MustParseAddr("fd00:10:96::10")},
		Ports: []servicemodel.ServicePort{{Name: "http", Protocol: servicemodel.TCP, Port: 80}}})
	var all []servicemodel.Endpoint
	for _, e := range endpoints {
		all = append(all, servicemodel.Endpoint{Addr: netip.MustParseAddr(e),
			Ports: []servicemodel.EndpointPort{{Name: "http", Protocol: servicemodel.TCP,
				Port: 8080}}})
	}

	table, err := servicemodel.Resolve(nil, s.WithEndpoints(name, all))
	require.NoError(t, err)
	return table
}
