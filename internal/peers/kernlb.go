package main

import (
	"context"
	"errors"

	"github.com/kernlb/kernlb/dataplane"
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

func newKernlb(s *settings, b dataplane.Backend) *kernlb {
	return &kernlb{
		engine: dataplane.New(b, &dataplane.Config{Strict: true}),
		tracker: kube.NewTracker(kube.Config{Node: servicemodel.Node{
			Name: nodeName, Addresses: s.NodeAddrs, ServiceCIDRs: s.ServiceCIDRs,
			LocalPods: servicemodel.PodDetector{CIDRs: s.ClusterCIDRs},
		}}),
	}
}

func newKernlbNFTables(_ context.Context, s *settings) (syncer, error) {
	b, err := nftables.New(nil)
	if err != nil {
		return nil, err
	}
	return newKernlb(s, b), nil
}

func newKernlbIPTables(_ context.Context, s *settings) (syncer, error) {
	b, err := iptables.New(nil)
	if err != nil {
		return nil, err
	}
	return newKernlb(s, b), nil
}

func newKernlbIPVS(_ context.Context, s *settings) (syncer, error) {
	b, err := ipvs.New(nil)
	if err != nil {
		return nil, err
	}
	return newKernlb(s, b), nil
}

func (k *kernlb) sync(ctx context.Context, c *change) error {
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
		if p.Severity == kube.Error { // kube-proxy does not tell of what both skip
			err = errors.Join(err, p)
		}
	}
	return err
}
