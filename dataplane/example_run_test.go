package dataplane_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/servicemodel"
)

// A long-running program sets a state whenever its desired state changes. Run keeps the kernel at
// the newest state. A real program uses nftables.New(nil).
func ExampleEngine_Run() {
	ctx, stop := context.WithCancel(context.Background())
	engine := dataplane.New(memory.New(nil), nil)
	ended := make(chan error)
	go func() { ended <- engine.Run(ctx, nil) }()

	web := servicemodel.Name{Namespace: "default", Name: "web"}
	state := servicemodel.State{}.WithService(&servicemodel.Service{Name: web,
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")},
		Ports:      []servicemodel.ServicePort{{Protocol: servicemodel.TCP, Port: 80}}})
	revision := engine.Set(state) // returns at once
	if err := engine.Wait(ctx, revision); err != nil {
		fmt.Println(err)
	}
	status := engine.Status()
	fmt.Println("pending:", status.Pending(), "frontends:", status.Held.Len())

	stop() // the kernel stays as it is
	fmt.Println(errors.Is(<-ended, context.Canceled))
	// Output:
	// pending: false frontends: 1
	// true
}

// A control plane names each wrong field of a request, whether it cannot be read or is invalid.
func ExampleProblems() {
	for _, body := range []string{
		`{"name": "default/web", "ports": [{"protocol": "icmp", "port": 70000}], "prefers": 1}`,
		`{"name": "default/web", "ports": [{"protocol": "tcp", "port": 0}]}`,
	} {
		var svc servicemodel.Service
		err := json.Unmarshal([]byte(body), &svc)
		if err == nil {
			err = svc.Validate()
		}
		for _, p := range dataplane.Problems(err) {
			fmt.Println(p.Field, "-", p.Err)
		}
	}
	// Output:
	// ports[0].port - service: ports[0].port: number 70000: must be a number from 0 to 65535
	// ports[0].protocol - service: ports[0].protocol: "icmp": must be tcp, udp or sctp
	// prefers - service: prefers: unknown field
	// ports[0].port - service default/web: ports[0].port: 0: must not be zero
}

// A guard refuses commits that remove more than a fifth of all frontends.
func ExampleConfig_approve() {
	guard := func(_ context.Context, p *dataplane.Preview) error {
		if n, all := p.Changes.Counts().Removed, p.Changes.Old.Len(); n > max(1, all/5) {
			return fmt.Errorf("%d of %d frontends would go", n, all)
		}
		return nil
	}

	engine := dataplane.New(memory.New(nil), &dataplane.Config{Approve: guard})
	if _, err := engine.Apply(context.Background(), services(10)); err != nil {
		fmt.Println(err)
	}
	_, err := engine.Apply(context.Background(), servicemodel.State{})
	fmt.Println(err)
	// Output:
	// not approved: 10 of 10 frontends would go
}

// A service keeps an address that it holds, although a newcomer with a smaller name claims it.
func ExamplePreview() {
	holderWins := func(_ context.Context, p *dataplane.Preview) error {
		for _, c := range p.Conflicts {
			if held := p.Changes.Old.Frontend(c.Key); held != nil && held.Service == c.Loser {
				return fmt.Errorf("%s is in use by %s", c.Key, c.Loser)
			}
		}
		return nil
	}

	ctx, state := context.Background(), servicemodel.State{}
	engine := dataplane.New(memory.New(nil), &dataplane.Config{Approve: holderWins})
	for _, name := range []string{"holder", "a-newcomer"} {
		next := state.WithService(&servicemodel.Service{
			Name:        servicemodel.Name{Namespace: "default", Name: name},
			ExternalIPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")},
			Ports:       []servicemodel.ServicePort{{Protocol: servicemodel.TCP, Port: 80}}})
		if _, err := engine.Apply(ctx, next); err != nil {
			fmt.Println(err) // and the program keeps the older state
			continue
		}
		state = next
	}
	result, err := engine.Apply(ctx, state)
	fmt.Println(result.Counts, err)
	// Output:
	// not approved: 192.0.2.1:80/tcp is in use by default/holder
	// 0 added, 0 changed, 0 removed <nil>
}

// A program shows the changes of an apply, and asks before it writes.
func ExampleEngine_Plan() {
	kernel := &memory.Kernel{}
	engine := dataplane.New(memory.New(kernel), nil)
	preview, err := engine.Plan(context.Background(), services(1).WithService(invalid(2)).
		WithNode(servicemodel.Node{NoEndpoints: "reject"})) // answer as kube-proxy does
	if err != nil {
		fmt.Println(err)
		return
	}

	fmt.Println(preview.Changes.Counts())
	fmt.Print(preview.Plan) // nftables prints a script for nft -f
	for _, r := range preview.Refused {
		fmt.Println("refused:", r)
	}
	fmt.Println("frontends in the kernel:", kernel.Table().Len())
	// Output:
	// 1 added, 0 changed, 0 removed
	// ~ rules: masquerade mark none -> default; node ports none -> 0.0.0.0/0, ::/0
	// + frontend 10.96.0.1:80/tcp default/svc-1:http cluster-ip -> cluster
	// + pool default/svc-1:http/tcp IPv4 cluster: 10.244.0.2:8080, 10.244.0.3:8080
	// + cluster-ip 10.96.0.1
	// + hairpin 10.244.0.2
	// + hairpin 10.244.0.3
	// refused: default/svc-2: service default/svc-2: ports[0].port: 0: must not be zero
	// frontends in the kernel: 0
}

// One program plans a change set and stores it as JSON for a review. Another program applies
// exactly this change set, or nothing.
func ExampleEngine_ApplyChanges() {
	ctx, kernel := context.Background(), &memory.Kernel{}
	preview, err := dataplane.New(memory.New(kernel), nil).Plan(ctx, services(1))
	if err != nil {
		fmt.Println(err)
		return
	}

	stored, err := json.Marshal(preview.Changes)
	if err != nil {
		fmt.Println(err)
	}

	var changes servicemodel.ChangeSet
	if err := json.Unmarshal(stored, &changes); err != nil {
		fmt.Println(err)
	}
	engine := dataplane.New(memory.New(kernel), nil)
	r, err := engine.ApplyChanges(ctx, &changes)
	fmt.Println(r.Counts, err)
	_, err = engine.ApplyChanges(ctx, &changes)
	fmt.Println(errors.Is(err, servicemodel.ErrOtherTable))
	// Output:
	// 1 added, 0 changed, 0 removed <nil>
	// true
}

// An engine changes its backend. A real program changes from iptables.New(nil) to
// nftables.New(nil).
func ExampleEngine_Switch() {
	ctx, next := context.Background(), memory.New(nil)
	next.Refuse(refusePort81) // it cannot express services at port 81
	engine := dataplane.New(memory.New(nil), nil)
	if _, err := engine.Apply(ctx, services(2).WithService(at81(3))); err != nil {
		fmt.Println(err)
	}
	_, err := engine.Switch(ctx, next)
	for _, p := range dataplane.Problems(err) {
		fmt.Println("would be lost:", p.Service)
	}
	r, err := engine.ForceSwitch(ctx, next)
	fmt.Println(len(r.Refused), "refused", err)
	// Output:
	// would be lost: default/svc-3
	// 1 refused <nil>
}
