// Winkernel runs kube-proxy's winkernel proxier on the fake Host Networking Service of package
// hnsfake. It needs Windows, or Wine. TestSameLoadBalancers gives it scenarios, and compares the
// objects that it leaves in HNS with the objects that package kernelspace leaves.
//
// winkernel exports no constructor that takes another HNS. The test builds this program with an
// overlay (go build -overlay), which adds overlay.go.txt to the package.
package main

import (
	corev1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"

	"github.com/kernlb/kernlb/examples/kernelspace"
)

// scenario is the input of a proxy.
type scenario struct {
	Name     string               `json:"name"`
	Case     string               `json:"case"` // of winkernel's tests
	Features kernelspace.Features `json:"features"`
	Network  kernelspace.Network  `json:"network"`
	// Endpoints are the endpoints of the container runtime.
	Endpoints []kernelspace.Endpoint `json:"endpoints,omitempty"`
	Config    config                 `json:"config"`
	Steps     []objects              `json:"steps"`
}

// config has the fields that both proxies have.
type config struct {
	SourceVIP    string `json:"sourceVIP,omitempty"`
	EnableDSR    bool   `json:"enableDSR,omitempty"`
	RootEndpoint string `json:"rootEndpoint,omitempty"`
	ForwardVIP   bool   `json:"forwardHealthCheckVIP,omitempty"`
}

// The node of all scenarios.
const (
	nodeName  = "testhost"
	networkID = "00000000-0000-4000-8000-00000000B41D"
	nodeIP    = "192.168.1.2"
	nodeIPv6  = "2001:db8::2"
	hostMAC   = "00-11-22-33-44-55"
	healthz   = 10256
)

// objects are all objects of a step.
type objects struct {
	// Fails is the beginning of the names of the calls to HNS that fail in this step.
	Fails    string                    `json:"fails,omitempty"`
	Services []corev1.Service          `json:"services,omitempty"`
	Slices   []discovery.EndpointSlice `json:"slices,omitempty"`
}

// outcome has the contents of HNS after a step, and the calls of the step. Identities are replaced
// by addresses.
type outcome struct {
	LoadBalancers map[string]string `json:"loadBalancers"`
	Endpoints     map[string]string `json:"endpoints"`
	Calls         []string          `json:"calls"`
}
