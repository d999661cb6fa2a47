package dataplane_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/servicemodel"
)

// A program hands its services to an engine. Here the kernel is in memory; a real program uses
// nftables.New(nil).
func Example() {
	backend := memory.New(nil)
	defer backend.Close()
	engine := dataplane.New(backend, nil)

	name := servicemodel.Name{Namespace: "default", Name: "web"}
	http := []servicemodel.EndpointPort{{Name: "http", Protocol: servicemodel.TCP, Port: 8080}}
	state := servicemodel.State{}.
		WithService(&servicemodel.Service{
			Name: name,
			Ports: []servicemodel.ServicePort{{Name: "http", Protocol: servicemodel.TCP,
				Port: 80}},
			ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")},
		}).
		WithEndpoints(name, []servicemodel.Endpoint{{Addr: netip.MustParseAddr("10.244.1.7"),
			Ports: http}})
	ctx := context.Background()
	if _, err := engine.Apply(ctx, state); err != nil { // the kernel holds exactly this
		fmt.Println(err)
		return
	}

	for f := range backend.Kernel().Table().Frontends() {
		fmt.Println(f)
	}

	// The next state is derived from the previous state. The engine writes only the difference.
	state = state.WithEndpoints(name, append(state.Endpoints(name)[:1:1],
		servicemodel.Endpoint{Addr: netip.MustParseAddr("10.244.2.8"), Ports: http,
			Node: "n2"}))
	result, err := engine.Apply(ctx, state)
	if err != nil {
		fmt.Println(err)
		return
	}

	fmt.Printf("messages: %d\n%s", result.Stats.Messages, result.Changes)
	// Output:
	// 10.96.0.10:80/tcp default/web:http cluster-ip -> cluster
	// messages: 1
	// ~ pool default/web:http/tcp IPv4 cluster: slot 1: none -> 10.244.2.8:8080
}

// Many programs share one instance, each with services of its own owners. A CNI plugin publishes
// the ports of one pod and knows nothing about other pods.
func ExampleParts() {
	backend := memory.New(nil) // nftables.New(nil) in a program
	defer backend.Close()
	parts := dataplane.NewParts(backend, nil)

	publish := func(owner, pod string) error {
		name := servicemodel.Name{Namespace: owner, Name: "ports"}
		state := servicemodel.State{}.
			WithService(&servicemodel.Service{
				Name:        name,
				Ports:       []servicemodel.ServicePort{{Protocol: servicemodel.TCP, Port: 8080}},
				ExternalIPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")},
			}).
			WithEndpoints(name, []servicemodel.Endpoint{{Addr: netip.MustParseAddr(pod),
				Ports: []servicemodel.EndpointPort{{Protocol: servicemodel.TCP, Port: 80}}}})
		_, err := parts.Apply(context.Background(), owner, state)
		return err
	}

	fmt.Println(publish("net,one,eth0", "10.244.1.7"))
	var taken *servicemodel.TakenError
	if errors.As(publish("net,two,eth0", "10.244.1.8"), &taken) {
		fmt.Println(taken.Key, "is held by", taken.Holder.Name.Namespace)
	}

	// One call removes the parts of all pods that no longer exist.
	result, err := parts.Keep(context.Background(), func(owner string) bool {
		return !strings.HasPrefix(owner, "net,") || owner == "net,two,eth0"
	})
	fmt.Println(result.Counts, err)
	fmt.Println(publish("net,two,eth0", "10.244.1.8"))
	// Output:
	// <nil>
	// 192.0.2.1:8080/tcp is held by net,one,eth0
	// 0 added, 0 changed, 1 removed <nil>
	// <nil>
}

// A container engine updates the published ports of a running container: the same owner applies
// another state, and ports that stay are not touched.
func ExampleParts_Apply() {
	parts := dataplane.NewParts(memory.New(nil), nil)
	update := func(ports ...uint16) {
		name := servicemodel.Name{Namespace: "engine,web", Name: "ports"}
		svc := &servicemodel.Service{Name: name}
		e := servicemodel.Endpoint{Addr: netip.MustParseAddr("172.17.0.2")}
		for _, p := range ports {
			svc.Ports = append(svc.Ports, servicemodel.ServicePort{Name: fmt.Sprint(p),
				Protocol: servicemodel.TCP, Port: p, NodePort: p})
			e.Ports = append(e.Ports, servicemodel.EndpointPort{Name: fmt.Sprint(p),
				Protocol: servicemodel.TCP, Port: p})
		}

		state := servicemodel.State{}.WithService(svc).
			WithEndpoints(name, []servicemodel.Endpoint{e})
		result, err := parts.Apply(context.Background(), "engine,web", state)
		fmt.Println(result.Counts, err)
	}

	update(80, 443)
	update(443, 8080) // 443 stays
	update()          // the container publishes nothing now
	// Output:
	// 2 added, 0 changed, 0 removed <nil>
	// 1 added, 0 changed, 1 removed <nil>
	// 0 added, 0 changed, 2 removed <nil>
}

// A program moves a port from one owner to another in one commit, and a refused owner holds back no
// other.
func ExampleParts_ApplyAll() {
	ctx, parts := context.Background(), dataplane.NewParts(memory.New(nil), nil)
	publish := func(owner string, port uint16) servicemodel.State {
		name := servicemodel.Name{Namespace: owner, Name: "ports"}
		return servicemodel.State{}.WithService(&servicemodel.Service{Name: name,
			ExternalIPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")},
			Ports:       []servicemodel.ServicePort{{Protocol: servicemodel.TCP, Port: port}}})
	}
	for _, states := range []map[string]servicemodel.State{
		{"blue": publish("blue", 80), "green": publish("green", 8080)},
		{"blue": publish("blue", 8080), "green": publish("green", 80), "red": publish("red", 80)},
	} {
		result, err := parts.ApplyAll(ctx, states)
		fmt.Println(result.Owners, result.Counts, err)
		for _, refused := range result.Refused {
			fmt.Println(refused)
		}
	}
	// Output:
	// [blue green] 2 added, 0 changed, 0 removed <nil>
	// [blue green] 0 added, 2 changed, 0 removed <nil>
	// red: 192.0.2.1:80/tcp is held by green/ports, and claimed by red/ports
}

// A process that runs for one change, such as a CNI plugin for CHECK and DEL, reads and removes the
// part that an earlier process applied.
func ExampleParts_Get() {
	ctx, kernel := context.Background(), &memory.Kernel{}
	add := dataplane.NewParts(memory.New(kernel), nil)
	if _, err := add.Apply(ctx, "default", services(1)); err != nil {
		fmt.Println(err)
	}

	later := dataplane.NewParts(memory.New(kernel), nil)
	held, err := later.Get(ctx, "default")
	if err != nil {
		fmt.Println(err)
	}
	for f := range held.Frontends() {
		fmt.Println(f)
	}
	result, err := later.Remove(ctx, "default", "unknown") // an unknown owner is not an error
	fmt.Println(result.Counts, err)
	fmt.Println("frontends in the kernel:", kernel.Table().Len())
	// Output:
	// 10.96.0.1:80/tcp default/svc-1:http cluster-ip -> cluster
	// 0 added, 0 changed, 1 removed <nil>
	// frontends in the kernel: 0
}

// An observer gets the events of parts.
func ExampleParts_Subscribe() {
	parts := dataplane.NewParts(memory.New(nil), nil)
	defer parts.Subscribe(func(_ context.Context, ev dataplane.Event) {
		switch ev := ev.(type) {
		case dataplane.Applied:
			fmt.Println("applied the parts of", ev.Owners, ev.Counts)
		case dataplane.PartRefused:
			fmt.Println("refused the part of", ev.Owner) // ev.Err says why
		case dataplane.Failed:
			fmt.Println(ev.Doing, "failed in phase", ev.Phase, "with", ev.Err)
		}
	})()

	name := servicemodel.Name{Namespace: "net,one,eth0", Name: "ports"}
	service := &servicemodel.Service{Name: name,
		Ports:       []servicemodel.ServicePort{{Protocol: servicemodel.TCP, Port: 8080}},
		ExternalIPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}
	_, _ = parts.Apply(context.Background(), name.Namespace,
		servicemodel.State{}.WithService(service))
	_, _ = parts.Apply(context.Background(), "net,two,eth0",
		servicemodel.State{}.WithService(service))
	// Output:
	// applied the parts of [net,one,eth0] 1 added, 0 changed, 0 removed
	// refused the part of net,two,eth0
}

// An observer may write down each event as one line of JSON.
func ExampleMarshalEvent() {
	observe := func(_ context.Context, ev dataplane.Event) {
		line, err := dataplane.MarshalEvent(ev)
		fmt.Println(string(line), err)
	}

	defer dataplane.New(memory.New(nil), nil).Subscribe(observe)()
	observe(context.Background(), dataplane.Settled{Next: time.Second, Duration: time.Millisecond})
	// Output: {"event":"Settled","next":"1s","duration":"1ms"} <nil>
}
