package kernelspace

import (
	"encoding/json"
	"errors"
	"fmt"
	"unsafe"

	"github.com/Microsoft/hnslib/hcn"
	"golang.org/x/sys/windows"
)

// Host returns the Host Networking Service of this host.
func Host() (HNS, error) { return host2{}, nil }

// host2 makes the calls of API 2 with package hcn. It holds nothing.
type host2 struct{}

// failed converts an error of package hcn to an error of this package.
func failed(err error) error {
	switch {
	case err == nil:
		return nil
	case hcn.IsPortAlreadyExistsError(err):
		return fmt.Errorf("%w: %w", ErrExists, err)
	case hcn.IsNotImplemented(err):
		return fmt.Errorf("%w: %w", ErrNotImplemented, err)
	case hcn.IsNotFoundError(err), hcn.IsElementNotFoundError(err),
		hcn.IsNetworkNotFoundError(err), hcn.IsEndpointNotFoundError(err),
		hcn.IsPortNotFoundError(err):
		return fmt.Errorf("%w: %w", ErrNotFound, err)
	}

	return err
}

// as converts a value to another type that has the same JSON.
func as[T any](v any) (out T, err error) {
	text, err := json.Marshal(v)
	if err == nil {
		err = json.Unmarshal(text, &out)
	}
	return out, err
}

// answer converts an answer of package hcn to a value of this package.
func answer[T any](v any, err error) (*T, error) {
	if err != nil {
		return nil, failed(err)
	}
	out, err := as[T](v)
	return &out, err
}

func (host2) Features() (Features, error) {
	f, err := hcn.GetCachedSupportedFeatures()
	return Features{V2: f.Api.V2, RemoteSubnet: f.RemoteSubnet, DSR: f.DSR,
		SessionAffinity: f.SessionAffinity, IPv6DualStack: f.IPv6DualStack,
		ModifyLoadBalancer: f.ModifyLoadbalancer}, err
}

func (host2) Network(name string) (*Network, error) {
	n, err := hcn.GetNetworkByName(name)
	return answer[Network](n, err)
}

func (host2) Endpoints(network string) ([]Endpoint, error) {
	l, err := hcn.ListEndpointsOfNetwork(network)
	if err != nil {
		return nil, failed(err)
	}
	return as[[]Endpoint](l)
}

func (host2) CreateEndpoint(e *Endpoint) (*Endpoint, error) {
	theirs, err := as[hcn.HostComputeEndpoint](e)
	if err != nil {
		return nil, err
	}
	n := &hcn.HostComputeNetwork{Id: e.HostComputeNetwork}
	created, err := n.CreateEndpoint(&theirs)
	return answer[Endpoint](created, err)
}

func (host2) DeleteEndpoint(id string) error {
	return failed((&hcn.HostComputeEndpoint{Id: id}).Delete())
}

func (host2) LoadBalancers() ([]LoadBalancer, error) {
	l, err := hcn.ListLoadBalancers()
	if err != nil {
		return nil, failed(err)
	}
	return as[[]LoadBalancer](l)
}

func (host2) CreateLoadBalancer(lb *LoadBalancer) (*LoadBalancer, error) {
	theirs, err := as[hcn.HostComputeLoadBalancer](lb)
	if err != nil {
		return nil, err
	}
	created, err := theirs.Create()
	return answer[LoadBalancer](created, err)
}

func (host2) ModifyLoadBalancer(id string, lb *LoadBalancer) (*LoadBalancer, error) {
	theirs, err := as[hcn.HostComputeLoadBalancer](lb)
	if err != nil {
		return nil, err
	}
	modified, err := theirs.Update(id)
	return answer[LoadBalancer](modified, err)
}

func (host2) DeleteLoadBalancer(id string) error {
	return failed((&hcn.HostComputeLoadBalancer{Id: id}).Delete())
}

// Package hcn has no call that lists only identities: its lists open and query each object, with
// three calls for each. HcnEnumerateEndpoints and HcnEnumerateLoadBalancers return the identities.
var (
	computeNetwork         = windows.NewLazySystemDLL("computenetwork.dll")
	enumerateEndpoints     = computeNetwork.NewProc("HcnEnumerateEndpoints")
	enumerateLoadBalancers = computeNetwork.NewProc("HcnEnumerateLoadBalancers")
)

func (host2) IDs() (endpoints, loadBalancers []string, err error) {
	if endpoints, err = enumerate(enumerateEndpoints); err == nil {
		loadBalancers, err = enumerate(enumerateLoadBalancers)
	}
	return endpoints, loadBalancers, err
}

// enumerate calls a function with a query, and reads its list.
func enumerate(f *windows.LazyProc) (ids []string, err error) {
	if err := f.Find(); err != nil {
		return nil, err
	}
	query, err := windows.UTF16PtrFromString(`{"SchemaVersion":{"Major":2,"Minor":0}}`)
	if err != nil {
		return nil, err
	}
	var list, problem *uint16
	result, _, _ := f.Call(uintptr(unsafe.Pointer(query)), uintptr(unsafe.Pointer(&list)),
		uintptr(unsafe.Pointer(&problem)))
	defer windows.CoTaskMemFree(unsafe.Pointer(list))
	defer windows.CoTaskMemFree(unsafe.Pointer(problem))
	if int32(result) < 0 {
		return nil, fmt.Errorf("%s: %w: %s", f.Name, windows.Errno(result),
			windows.UTF16PtrToString(problem))
	}

	if list == nil {
		return nil, errors.New(f.Name + ": no answer")
	}
	if err := json.Unmarshal([]byte(windows.UTF16PtrToString(list)), &ids); err != nil {
		return nil, fmt.Errorf("%s: %w", f.Name, err)
	}
	return ids, nil
}
