package health_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/health"
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/servicemodel"
)

// status returns the status of the answer to a GET, such as "200 OK".
func status(url string) string {
	resp, err := http.Get(url)
	if err != nil {
		return err.Error()
	}
	_ = resp.Body.Close()
	return resp.Status
}

// A readiness probe asks /healthz. With RequireState the answer is 503 until the kernel holds a
// state.
func ExampleProxy_Handler() {
	engine := dataplane.New(memory.New(nil), nil)
	proxy := health.NewProxy(engine, &health.ProxyConfig{RequireState: true})
	server := httptest.NewServer(proxy.Handler()) // a program calls http.ListenAndServe
	defer server.Close()

	fmt.Println("alive:", status(server.URL+"/livez"))
	fmt.Println("ready:", status(server.URL+"/healthz"), proxy.Healthy())
	if _, err := engine.Apply(context.Background(), servicemodel.State{}); err != nil {
		fmt.Println(err)
	}
	fmt.Println("ready:", status(server.URL+"/healthz"), proxy.Healthy())
	// Output:
	// alive: 200 OK
	// ready: 503 Service Unavailable false
	// ready: 200 OK true
}

// An external load balancer asks the health check node port of a service whether this node has
// endpoints. The ports follow the engine.
func ExampleNodePorts() {
	var listener net.Listener
	ports := health.NewNodePorts(&health.NodePortsConfig{ // the default listens at 0.0.0.0:32000
		Listen: func(ctx context.Context, _, _ string) (_ net.Listener, err error) {
			listener, err = new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
			return listener, err
		}})
	defer ports.Close()
	engine := dataplane.New(memory.New(nil), nil)
	defer ports.Follow(engine, func(err error) { fmt.Println(err) })()

	engine.Set(servicemodel.State{}.
		WithService(&servicemodel.Service{Name: web, HealthCheckNodePort: 32000,
			ClusterIPs:            []netip.Addr{netip.MustParseAddr("10.96.0.10")},
			ExternalTrafficPolicy: servicemodel.PolicyLocal}))
	if _, err := engine.Switch(context.Background(), memory.New(nil)); err != nil {
		fmt.Println(err)
		return
	}

	fmt.Println("no endpoint:", status("http://"+listener.Addr().String()))
	// Output: no endpoint: 503 Service Unavailable
}
