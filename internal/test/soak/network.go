package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
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
}

// newRig starts all of it. The caller must close it.
func newRig(ctx context.Context, o *options) (r *rig, err error) {
	r = &rig{}
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
	ctx, r.stop = context.WithCancel(ctx)
	r.ended = make(chan error, 1)
	go func() { r.ended <- r.engine.Run(ctx, nil) }()
	return r, nil
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
	s := withStill(servicemodel.State{}.WithNode(node()), service(stillName, still),
		ports(stillPort))
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

// withStill adds the service that stays to a state.
func withStill(s servicemodel.State, svc *servicemodel.Service,
	ports []servicemodel.EndpointPort) servicemodel.State {
	var eps []servicemodel.Endpoint
	for _, pod := range []string{"10.244.1.2", "10.244.1.3"} {
		eps = append(eps, servicemodel.Endpoint{Addr: netip.MustParseAddr(pod), Ready: true,
			Serving: true, Ports: ports})
	}
	return s.WithService(svc).WithEndpoints(svc.Name, eps)
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

// stream is a UDP client that sends to the service that stays, from one port.
type stream struct {
	work       sync.WaitGroup
	sent, lost int
}

// newStream sends a datagram each interval until ctx ends.
func (r *rig) newStream(ctx context.Context, interval time.Duration) *stream {
	s := &stream{}
	p := netnstest.Probe{From: r.Outside[0], Proto: servicemodel.UDP, SourcePort: 4053,
		To: netip.AddrPortFrom(still, 80), Timeout: time.Second}
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

// end waits for the last answer, after the context has ended.
func (s *stream) end() (sent, lost int) {
	s.work.Wait()
	return s.sent, s.lost
}
