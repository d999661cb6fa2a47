package main

import (
	"context"
	"errors"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/netns"
	"github.com/kernlb/kernlb/internal/test/peers/serve"
	"github.com/kernlb/kernlb/iptables"
	"github.com/kernlb/kernlb/ipvs"
	"github.com/kernlb/kernlb/nftables"
	"github.com/kernlb/kernlb/servicemodel"
	"github.com/kernlb/kernlb/servicemodel/kube"
)

// kernlb is an engine on one of kernlb's backends, which follows Kubernetes objects.
type kernlb struct {
	tracker *kube.Tracker
	engine  *dataplane.Engine
}

// backend opens a backend of kernlb by its name.
func backend(name string, ns netns.Namespace) (backends.Backend, error) {
	switch name {
	case nftables.Name:
		return nftables.New(&nftables.Config{NetNS: ns})
	case iptables.Name:
		return iptables.New(&iptables.Config{NetNS: ns})
	}

	return ipvs.New(&ipvs.Config{NetNS: ns})
}

func newKernlb(name string) func(context.Context, *serve.Settings) (serve.Syncer, error) {
	return func(_ context.Context, s *serve.Settings) (serve.Syncer, error) {
		b, err := backend(name, "")
		if err != nil {
			return nil, err
		}
		return &kernlb{
			engine: dataplane.New(b, &dataplane.Config{Strict: true}),
			tracker: kube.NewTracker(&kube.Config{Node: servicemodel.Node{
				Name: serve.NodeName, Addresses: s.NodeAddrs, ServiceCIDRs: s.ServiceCIDRs,
				LocalPods: servicemodel.PodDetector{CIDRs: s.ClusterCIDRs},
			}}),
		}, nil
	}
}

func (k *kernlb) Sync(ctx context.Context, c *serve.Change) error {
	var problems []kube.Problem
	for _, s := range c.Services {
		problems = append(problems, k.tracker.SetService(s)...)
	}
	for _, s := range c.Slices {
		problems = append(problems, k.tracker.SetEndpointSlice(s)...)
	}
	for _, n := range c.GoneServices {
		k.tracker.DeleteService(servicemodel.Name{Namespace: n.Namespace, Name: n.Name})
	}
	for _, n := range c.GoneSlices {
		k.tracker.DeleteEndpointSlice(servicemodel.Name{Namespace: n.Namespace, Name: n.Name})
	}
	_, err := k.engine.Apply(ctx, k.tracker.State())
	for _, p := range problems {
		if !p.Warning { // kube-proxy does not report objects that both skip
			err = errors.Join(err, p)
		}
	}

	return err
}
