// Package docs_test compiles the Go of the documents; internal/test/architecture compares the two.
package docs_test

import (
	"context"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/flows"
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/dataplane/page"
	"github.com/kernlb/kernlb/nftables"
	"github.com/kernlb/kernlb/servicemodel"
)

// The functions are only compiled, because they would write to the kernel of the machine.
var _ = []any{readme, withFlows, withPage, cni}

// readme is the code in README.md.
func readme(ctx context.Context) error {
	backend, err := nftables.New(nil) // the tables "kernlb" in this network namespace
	if err != nil {
		return err
	}
	defer backend.Close()
	engine := dataplane.New(backend, nil)

	name := servicemodel.Name{Namespace: "default", Name: "web"}
	state := servicemodel.State{}.
		WithService(&servicemodel.Service{
			Name:       name,
			Ports:      []servicemodel.ServicePort{{Protocol: servicemodel.TCP, Port: 80}},
			ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")},
		}).
		WithEndpoints(name, []servicemodel.Endpoint{{
			Addr:  netip.MustParseAddr("10.244.1.7"),
			Ports: []servicemodel.EndpointPort{{Protocol: servicemodel.TCP, Port: 8080}},
		}})
	result, err := engine.Apply(ctx, state) // the kernel holds exactly this
	use(result)
	return err
}

// use stands for what a program does with a result.
func use(*dataplane.Result) {}

// withFlows is the code in what-clients-see.md.
func withFlows(backend backends.Backend) (*dataplane.Engine, error) {
	table, err := conntrack.Open(nil)
	if err != nil {
		return nil, err
	}
	keeper, err := flows.New(table, nil) // works with every backend
	if err != nil {
		return nil, err
	}
	engine := dataplane.New(backend, &dataplane.Config{Flows: keeper})
	return engine, nil
}

// withPage is the code in page.md.
func withPage(engine *dataplane.Engine, table *conntrack.Table, mux *http.ServeMux) {
	shown := page.New(engine, &page.Config{Conntrack: table}) // and Hooks, Dial, Addresses
	defer shown.Close()
	mux.Handle("/kernlb/", http.StripPrefix("/kernlb", shown))
}

// cni is the code in programs.md.
func cni(ctx context.Context, backend backends.Backend, owner string, state servicemodel.State,
	attached map[string]bool) error {
	parts := dataplane.NewParts(backend, nil)
	result, err := parts.Apply(ctx, owner, state) // ADD
	if err != nil {
		return err
	}
	use(result)
	result, err = parts.Remove(ctx, owner) // DEL; an owner who holds nothing is no error
	if err != nil {
		return err
	}
	use(result)
	result, err = parts.Keep(ctx, func(owner string) bool { // GC
		return !strings.HasPrefix(owner, "mynet,") || attached[owner]
	})
	use(result)
	return err
}

// TestTesting runs the code in testing.md.
func TestTesting(t *testing.T) {
	t.Parallel()
	ctx, state := t.Context(), servicemodel.State{}
	packet := servicemodel.Packet{Src: netip.MustParseAddrPort("10.244.1.1:40000"),
		Dst: netip.MustParseAddrPort("10.96.0.10:80"), Protocol: servicemodel.TCP}
	kernel := &memory.Kernel{}
	engine := dataplane.New(memory.New(kernel), nil)
	_, err := engine.Apply(ctx, state)
	require.NoError(t, err)
	decision := kernel.Table().Decide(packet, nil)
	require.Equal(t, servicemodel.Untouched, decision.Outcome)
}

func TestMain(m *testing.M) { netnstest.Main(m) }

// TestTestingWithPackets runs the code with packets in testing.md.
func TestTestingWithPackets(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	cluster := netnstest.Start(t, netnstest.Options{})
	pod := cluster.Pods[0]
	require.NoError(t, pod.Serve(servicemodel.TCP, 8080))
	backend, err := nftables.New(&nftables.Config{NetNS: cluster.Node.NS.NetNS()})
	require.NoError(t, err)
	defer backend.Close()
	name := servicemodel.Name{Namespace: "default", Name: "web"}
	_, err = dataplane.New(backend, nil).Apply(ctx, servicemodel.State{}.
		WithService(&servicemodel.Service{
			Name:       name,
			Ports:      []servicemodel.ServicePort{{Protocol: servicemodel.TCP, Port: 80}},
			ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")},
		}).
		WithEndpoints(name, []servicemodel.Endpoint{{
			Addr:  pod.IPv4,
			Ports: []servicemodel.EndpointPort{{Protocol: servicemodel.TCP, Port: 8080}},
		}}))
	require.NoError(t, err)
	probe := netnstest.Probe{From: cluster.Outside[0], Proto: servicemodel.TCP,
		To: netip.MustParseAddrPort("10.96.0.10:80")}
	outcome := probe.Send(ctx)
	require.Equal(t, "pod1", outcome.Server, outcome)
}
