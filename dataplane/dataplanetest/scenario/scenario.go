// Package scenario contains the declarations of tests of package dataplanetest: the backend under
// test, the states to apply, and the expected fate of packets after each state.
package scenario

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/netns"
	"github.com/kernlb/kernlb/servicemodel"
)

// Ports on which every host serves every protocol. A server is named after its host and port:
// "pod1/8080".
const (
	PortA uint16 = 8080
	PortB uint16 = 8081
)

// Backend is a backend under test.
type Backend struct {
	// Open opens the backend in a network namespace. Many goroutines call it, each with a different
	// namespace.
	Open func(ns netns.Namespace) (backends.Backend, error)
	// Require skips the test if the kernel lacks what the backend needs. Nil requires only network
	// namespaces.
	Require func(*testing.T)
	// OwnConnections says that the mechanism has its own connection table in addition to conntrack,
	// like IPVS. This affects what happens to flows: see "Where the mechanisms differ" in
	// behaviour.md.
	OwnConnections bool
	// Loopback says that node ports can answer at loopback addresses
	// ([servicemodel.Node.LocalhostNodePorts]). Other backends skip scenarios that need this.
	Loopback bool
	// Neighbours says that neighbours can be masqueraded
	// ([servicemodel.Node.MasqueradeNeighbours]). Other backends skip scenarios that need this.
	Neighbours bool
	// Answers says that [servicemodel.Node.NoEndpoints] and [servicemodel.Node.Forbidden] can
	// differ from the default. Other backends skip scenarios that need this.
	Answers bool
	// Ranges says that service ports can be ranges ([servicemodel.ServicePort.EndPort]) whose
	// packets keep their ports. Scenarios do not combine ranges with affinity of prefixes or of
	// whole services. Other backends skip scenarios that need this.
	Ranges bool
	// NodeRanges says that such ranges can have node ports, as long as they have neither affinity
	// nor source ranges.
	NodeRanges bool
	// Shifted says that ranges can be mapped to other ranges
	// ([servicemodel.ServicePort.TargetPort]).
	Shifted bool
	// MasqueradeIPs says that services can set the source of masqueraded connections
	// ([servicemodel.Service.MasqueradeIPs]).
	MasqueradeIPs bool
	// Proxy says that the mechanism is a process that accepts connections at addresses of the node
	// and opens its own connections to endpoints. Open must assign the service addresses of package
	// netnstest to the node. The suite skips scenarios that such a backend cannot pass: see "What a
	// proxy is asked" in behaviour.md. A proxy that implements [flows.Table] does its own
	// connection tracking.
	//
	// [flows.Table]: https://pkg.go.dev/github.com/kernlb/kernlb/dataplane/flows#Table
	Proxy bool
}

// Scenario is a sequence of states to apply, with packets to send after each state.
type Scenario struct {
	// Name describes the tested behaviour. Line is its row in behaviour.md.
	Name, Line string
	// Options describe the network.
	Options Options
	Steps   []Step
}

// Step is a state, and the expected fate of packets after it is applied.
type Step struct {
	State  servicemodel.State
	Checks []Check
}

// Check sends packets from a host to a destination, and gives their expected fate.
type Check struct {
	// From is the name of a host: "pod1" to "pod3", "remote1", "remote2", "node", "outside1",
	// "outside2".
	From  string
	Proto servicemodel.Protocol
	To    netip.AddrPort
	Want  Want
	// Times is the number of packets to send; 0 means 3.
	Times int
}

// Options describe the network of a scenario. The zero value is the standard network: three pods,
// two pods on another node, and two clients outside.
type Options struct {
	Bridge             string // the pods are ports of this bridge
	PodInterfacePrefix string // prefix of the names of their interfaces
}

// Want is the expected fate of a packet.
type Want struct {
	// Outcome says whether the packet is balanced, rejected, dropped or unaffected.
	Outcome servicemodel.Outcome
	// Servers are the servers that may answer, such as "pod1/8080", if the packet is balanced.
	Servers []string
	// Reset says that a rejected TCP client gets a reset instead of ICMP port unreachable.
	Reset bool
	// Masquerade says whether the server sees an address of the node instead of the client's.
	// AnySource allows both.
	Masquerade Masquerade
	// Source is the only address, other than the client's, that the server may see. Zero means any
	// address that Masquerade allows.
	Source netip.Addr
}

// Masquerade says which source a server must see.
type Masquerade uint8

const (
	OwnSource  Masquerade = iota // the client's own address
	NodeSource                   // an address of the node
	AnySource                    // either
)

// String returns text such as "pod1/8080 or pod2/8080 seeing a node address".
func (w Want) String() string {
	if w.Outcome != servicemodel.Balanced {
		return string(w.Outcome)
	}
	s := strings.Join(w.Servers, " or ")
	switch w.Masquerade {
	case OwnSource:
		s += " seeing the client's address"
	case NodeSource:
		s += " seeing a node address"
	}

	if w.Source.IsValid() {
		s += " (" + w.Source.String() + ")"
	}
	return s
}
