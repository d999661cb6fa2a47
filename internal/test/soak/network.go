package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/flows"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/test/busywriter"
	"github.com/kernlb/kernlb/servicemodel"
)

const stillPort = 8080

// still is the service that never changes.
var (
	still     = netip.MustParseAddr("10.97.255.1")
	stillName = servicemodel.Name{Namespace: "default", Name: "still"}
)

// rig is a network, an engine that runs in its node, and a neighbour.
type rig struct {
	*netnstest.Cluster
	backend   dataplane.Backend
	engine    *dataplane.Engine
	table     *conntrack.Table
	neighbour *busywriter.Writer
	stop      context.CancelFunc
	ended     chan error

	base  servicemodel.State // the state in the beginning
	conns []*netnstest.Conns // to the service that stays
}

// newRig starts all of it, and opens connections. The caller must close it.
func newRig(ctx context.Context, o *options, conns int) (r *rig, err error) {
	r = &rig{base: serviceState(o.services, o.affinity)}
	defer func() {
		if err != nil {
			r.close() //nolint:errcheck // err is more useful
		}
	}()
	if r.Cluster, err = netnstest.New(ctx, netnstest.Options{}); err != nil {
		return r, err
	}
	for _, pod := range r.Pods[1:] {
		for _, p := range []servicemodel.Protocol{servicemodel.TCP, servicemodel.UDP} {
			if err := pod.Serve(p, stillPort); err != nil {
				return r, err
			}
		}
	}
	netns := r.Node.NS.Fd()
	if r.backend, err = o.open(netns); err != nil {
		return r, err
	}
	if r.table, err = conntrack.Open(&conntrack.Config{NetNS: netns}); err != nil {
		return r, err
	}
	keeper, err := flows.New(r.table, nil)
	if err != nil {
		return r, err
	}
	r.engine = dataplane.New(r.backend, &dataplane.Config{Flows: keeper})
	if r.neighbour, err = busywriter.Start(ctx, netns); err != nil {
		return r, err
	}
	running, stop := context.WithCancel(ctx)
	r.stop, r.ended = stop, make(chan error, 1)
	go func() { r.ended <- r.engine.Run(running, nil) }()
	if _, err := r.engine.Apply(ctx, r.base); err != nil {
		return r, err
	}
	from := append(slices.Clone(r.Outside), r.Pods[0])
	for i, h := range from {
		share := conns*(i+1)/len(from) - conns*i/len(from)
		c, err := netnstest.OpenConns(ctx, h, netip.AddrPortFrom(still, 80), share)
		if err != nil {
			return r, err
		}
		r.conns = append(r.conns, c)
	}
	return r, nil
}

// watch uses the connections until ctx ends. sum waits for that, and adds up what happened.
func (r *rig) watch(ctx context.Context, interval time.Duration) (
	sum func() netnstest.ConnsReport) {
	reports := make(chan netnstest.ConnsReport, len(r.conns))
	for _, c := range r.conns {
		go func() { reports <- c.Watch(ctx, interval, 20*time.Second) }()
	}
	return func() (all netnstest.ConnsReport) {
		for range r.conns {
			one := <-reports
			all.Answered += one.Answered
			all.Reset, all.Closed = all.Reset+one.Reset, all.Closed+one.Closed
			all.Silent += one.Silent
		}
		return all
	}
}

// close ends all of it.
func (r *rig) close() error {
	var errs []error
	if r.stop != nil {
		r.stop()
		if err := <-r.ended; !errors.Is(err, context.Canceled) {
			errs = append(errs, err)
		}
	}
	if r.neighbour != nil {
		_, err := r.neighbour.Close()
		errs = append(errs, err)
	}
	if r.table != nil {
		errs = append(errs, r.table.Close())
	}
	if r.backend != nil {
		errs = append(errs, r.backend.Close())
	}
	if r.Cluster != nil {
		errs = append(errs, r.Cluster.Close())
	}
	return errors.Join(errs...)
}

// serviceState returns a state with the service that stays, and n services with ten endpoints each
// where nothing listens. One in affinity of these services has session affinity; 0 means none.
func serviceState(n, affinity int) servicemodel.State {
	ports := func(port uint16) (l []servicemodel.EndpointPort) {
		for _, p := range []servicemodel.Protocol{servicemodel.TCP, servicemodel.UDP} {
			l = append(l, servicemodel.EndpointPort{Name: p.String(), Protocol: p, Port: port})
		}
		return l
	}
	service := func(name servicemodel.Name, ip netip.Addr) *servicemodel.Service {
		svc := &servicemodel.Service{Name: name, ClusterIPs: []netip.Addr{ip}}
		for _, p := range ports(80) {
			svc.Ports = append(svc.Ports, servicemodel.ServicePort{Name: p.Name,
				Protocol: p.Protocol, Port: p.Port})
		}
		return svc
	}
	var eps []servicemodel.Endpoint
	for _, pod := range []string{"10.244.1.2", "10.244.1.3"} {
		eps = append(eps, servicemodel.Endpoint{Addr: netip.MustParseAddr(pod), Ready: true,
			Serving: true, Ports: ports(stillPort)})
	}
	s := servicemodel.State{}.WithNode(node()).WithService(service(stillName, still)).
		WithEndpoints(stillName, eps)
	for i := range n {
		svc := service(rollingName(i), netip.AddrFrom4([4]byte{10, 98, byte(i >> 8), byte(i)}))
		svc.Ports = svc.Ports[:1]
		svc.SessionAffinity.ClientIP = affinity > 0 && i%affinity == 0
		var eps []servicemodel.Endpoint
		for j := range 10 {
			eps = append(eps, rollingEndpoint(i*10+j))
		}
		s = s.WithService(svc).WithEndpoints(svc.Name, eps)
	}
	return s
}

func node() servicemodel.Node { return servicemodel.Node{Name: "node-0"} }

func rollingName(i int) servicemodel.Name {
	return servicemodel.Name{Namespace: "default", Name: fmt.Sprint("rolling-", i)}
}

func rollingEndpoint(i int) servicemodel.Endpoint {
	return servicemodel.Endpoint{Ready: true, Serving: true,
		Addr: netip.AddrFrom4([4]byte{11, byte(i >> 16), byte(i >> 8), byte(i)}),
		Ports: []servicemodel.EndpointPort{{Name: servicemodel.TCP.String(),
			Protocol: servicemodel.TCP, Port: 8080}}}
}

// asking is a client that sends to the service that stays.
type asking struct {
	work       sync.WaitGroup
	sent, lost int
}

// ask sends a packet each interval until ctx ends, and then waits for the last answer.
func (r *rig) ask(ctx context.Context, p netnstest.Probe, interval time.Duration) *asking {
	s := &asking{}
	p.To = netip.AddrPortFrom(still, 80)
	s.work.Go(func() {
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for ctx.Err() == nil {
			<-tick.C
			s.sent++
			o := p.Send(context.WithoutCancel(ctx))
			if o.Kind != netnstest.Answered || o.Server == netnstest.Net.Internet {
				s.lost++
			}
		}
	})
	return s
}

// stream sends datagrams from one port.
func (r *rig) stream(ctx context.Context, interval time.Duration) *asking {
	return r.ask(ctx, netnstest.Probe{From: r.Outside[0], Proto: servicemodel.UDP,
		SourcePort: 4053, Timeout: time.Second}, interval)
}
