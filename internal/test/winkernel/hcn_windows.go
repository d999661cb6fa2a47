package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/Microsoft/hnslib/hcn"

	"github.com/kernlb/kernlb/examples/kernelspace"
)

// as converts a value to another type that has the same JSON.
func as[T any](v any, err error) (*T, error) {
	if err != nil {
		return nil, err
	}
	var out T
	text, err := json.Marshal(v)
	if err == nil {
		err = json.Unmarshal(text, &out)
	}
	return &out, err
}

// list is as for a list.
func list[T any](v any, err error) ([]T, error) {
	l, err := as[[]T](v, err)
	if err != nil {
		return nil, err
	}
	return *l, nil
}

func (s service) GetNetworkByName(name string) (*hcn.HostComputeNetwork, error) {
	n, err := s.Network(name)
	if errors.Is(err, kernelspace.ErrNotFound) {
		return nil, hcn.NetworkNotFoundError{NetworkName: name}
	}
	return as[hcn.HostComputeNetwork](n, err)
}

func (s service) GetNetworkByID(id string) (*hcn.HostComputeNetwork, error) {
	return nil, hcn.NetworkNotFoundError{NetworkID: id} // winkernel does not call it
}

func (s service) ListEndpoints() ([]hcn.HostComputeEndpoint, error) {
	return nil, errors.New("winkernel does not call it")
}

func (s service) ListEndpointsOfNetwork(id string) ([]hcn.HostComputeEndpoint, error) {
	l, err := s.Endpoints(id)
	return list[hcn.HostComputeEndpoint](l, err)
}

// find searches the endpoints of the only network.
func (s service) find(match func(*kernelspace.Endpoint) bool) (*hcn.HostComputeEndpoint, error) {
	l, err := s.Endpoints(networkID)
	if err != nil {
		return nil, err
	}
	for i := range l {
		if match(&l[i]) {
			return as[hcn.HostComputeEndpoint](l[i], nil)
		}
	}

	return nil, fmt.Errorf("endpoint: %w", hcn.EndpointNotFoundError{})
}

func (s service) GetEndpointByID(id string) (*hcn.HostComputeEndpoint, error) {
	return s.find(func(e *kernelspace.Endpoint) bool { return strings.EqualFold(e.ID, id) })
}

func (s service) GetEndpointByName(name string) (*hcn.HostComputeEndpoint, error) {
	return s.find(func(e *kernelspace.Endpoint) bool { return e.Name == name })
}

func (s service) CreateEndpoint(n *hcn.HostComputeNetwork, e *hcn.HostComputeEndpoint) (
	*hcn.HostComputeEndpoint, error) {
	e.HostComputeNetwork = n.Id
	ours, err := as[kernelspace.Endpoint](e, nil)
	if err != nil {
		return nil, err
	}
	ours, err = s.Service.CreateEndpoint(ours)
	return as[hcn.HostComputeEndpoint](ours, err)
}

func (s service) CreateRemoteEndpoint(n *hcn.HostComputeNetwork, e *hcn.HostComputeEndpoint) (
	*hcn.HostComputeEndpoint, error) {
	e.Flags |= hcn.EndpointFlagsRemoteEndpoint
	return s.CreateEndpoint(n, e)
}

func (s service) DeleteEndpoint(e *hcn.HostComputeEndpoint) error {
	return s.Service.DeleteEndpoint(e.Id)
}

func (s service) ListLoadBalancers() ([]hcn.HostComputeLoadBalancer, error) {
	l, err := s.LoadBalancers()
	return list[hcn.HostComputeLoadBalancer](l, err)
}

func (s service) GetLoadBalancerByID(id string) (*hcn.HostComputeLoadBalancer, error) {
	l, err := s.LoadBalancers()
	if err != nil {
		return nil, err
	}
	for i := range l {
		if strings.EqualFold(l[i].ID, id) {
			return as[hcn.HostComputeLoadBalancer](l[i], nil)
		}
	}

	return nil, hcn.LoadBalancerNotFoundError{LoadBalancerId: id}
}

func (s service) CreateLoadBalancer(lb *hcn.HostComputeLoadBalancer) (
	*hcn.HostComputeLoadBalancer, error) {
	ours, err := as[kernelspace.LoadBalancer](lb, nil)
	if err != nil {
		return nil, err
	}
	ours, err = s.Service.CreateLoadBalancer(ours)
	return as[hcn.HostComputeLoadBalancer](ours, err)
}

func (s service) UpdateLoadBalancer(lb *hcn.HostComputeLoadBalancer, id string) (
	*hcn.HostComputeLoadBalancer, error) {
	ours, err := as[kernelspace.LoadBalancer](lb, nil)
	if err != nil {
		return nil, err
	}
	ours, err = s.ModifyLoadBalancer(id, ours)
	return as[hcn.HostComputeLoadBalancer](ours, err)
}

func (s service) DeleteLoadBalancer(lb *hcn.HostComputeLoadBalancer) error {
	return s.Service.DeleteLoadBalancer(lb.Id)
}

func (s service) GetSupportedFeatures() hcn.SupportedFeatures {
	f, err := s.Features()
	if err != nil {
		return hcn.SupportedFeatures{}
	}
	return hcn.SupportedFeatures{Api: hcn.ApiSupport{V2: f.V2}, RemoteSubnet: f.RemoteSubnet,
		DSR: f.DSR, SessionAffinity: f.SessionAffinity, IPv6DualStack: f.IPv6DualStack,
		ModifyLoadbalancer: f.ModifyLoadBalancer}
}

func supported(yes bool) error {
	if !yes {
		return errors.New("not supported")
	}
	return nil
}

func (s service) Ipv6DualStackSupported() error {
	return supported(s.GetSupportedFeatures().IPv6DualStack)
}
func (s service) DsrSupported() error { return supported(s.GetSupportedFeatures().DSR) }
func (s service) RemoteSubnetSupported() error {
	return supported(s.GetSupportedFeatures().RemoteSubnet)
}

// DeleteAllHnsLoadBalancerPolicy deletes everything, as each start of kube-proxy does.
func (s service) DeleteAllHnsLoadBalancerPolicy() {
	l, err := s.LoadBalancers()
	for i := range l {
		err = errors.Join(err, s.Service.DeleteLoadBalancer(l[i].ID))
	}
	if err != nil {
		panic(err)
	}
}
