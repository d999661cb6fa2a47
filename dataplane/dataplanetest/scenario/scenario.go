// Package scenario has what a test of package dataplanetest declares: the backend under test, the
// states that are applied, and the fate of packets after each.
package scenario

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/netns"
	"github.com/kernlb/kernlb/servicemodel"
)

// Ports on which every host serves every protocol. A server's name is its host's and the port:
// "pod1/8080".
const (
	PortA uint16 = 8080
	PortB uint16 = 8081
)

// Backend is a backend under test.
type Backend struct {
	// Open opens the backend in a network namespace. Many goroutines call it, each with another
	// namespace.
	Open func(ns netns.Namespace) (backends.Backend, error)
	// Require skips the test if the kernel lacks what the backend needs. Nil requires nothing
	// besides network namespaces.
	Require func(*testing.T)
	// OwnConnections says that the mechanism keeps connections of its own beside conntrack's, as
	// IPVS does. This changes the fate of flows: see "Where the mechanisms differ" in behaviour.md.
	OwnConnections bool
	// Loopback says that node ports can answer at loopback addresses
	// ([servicemodel.Node.LocalhostNodePorts]). Other backends skip scenarios that need this.
	Loopback bool
	// Neighbours says that neighbours can be masqueraded
	// ([servicemodel.Node.MasqueradeNeighbours]). Other backends skip scenarios that need this.
	Neighbours bool
	// Answers says that [servicemodel.Node.NoEndpoints] and [servicemodel.Node.Forbidden] can be
	// other than by default. Other backends skip scenarios that need this.
	Answers bool
	// Ranges says that service ports can be ranges ([servicemodel.ServicePort.EndPort]) whose
	// packets keep their ports, without affinity of prefixes and of whole services. Other backends
	// skip scenarios that need this.
	Ranges bool
	// MasqueradeIPs says that services can give the source of masqueraded connections
	// ([servicemodel.Service.MasqueradeIPs]).
	MasqueradeIPs bool
	// Proxy says that the mechanism is a process that accepts connections at addresses of the node
	// and makes its own connections to endpoints. Open must give the node the service addresses of
	// package netnstest. The suite skips scenarios that such a backend cannot pass: see "What a
	// proxy is asked" in behaviour.md. A proxy that is a [flows.Table] is its own connection
	// tracking.
	//
	// [flows.Table]: https://pkg.go.dev/github.com/kernlb/kernlb/dataplane/flows#Table
	Proxy bool
}

// Scenario is one story: states that are applied one after the other, and packets after each.
type Scenario struct {
	// Name says in words what the scenario shows. Line is its row in behaviour.md.
	Name, Line string
	// Options shape the network.
	Options Options
	Steps   []Step
}

// Step is a state, and the fate of packets once it is applied.
type Step struct {
	State  servicemodel.State
	Checks []Check
}

// Check is one question: packets from here to there.
type Check struct {
	// From is the name of a host: "pod1" to "pod3", "remote1", "remote2", "node", "outside1",
	// "outside2".
	From  string
	Proto servicemodel.Protocol
	To    netip.AddrPort
	Want  Want
	// Times is how many packets are sent; 0 means 3.
	Times int
}

// Options shape the network of a scenario. The zero value is the usual network: three pods, two on
// another node, two clients outside.
type Options struct {
	Bridge             string // the pods hang on this bridge
	PodInterfacePrefix string // their interfaces' names begin so
}

// Want is the fate that a packet must have.
type Want struct {
	// Outcome says whether the packet is balanced, rejected, dropped or left alone.
	Outcome servicemodel.Outcome
	// Servers are the servers that may answer, such as "pod1/8080", if the packet is balanced.
	Servers []string
	// Reset says that a rejected client of TCP gets a reset, and not ICMP port unreachable.
	Reset bool
	// Masquerade says whether the server sees an address of the node instead of the client's.
	// AnySource allows both.
	Masquerade Masquerade
	// Source is the one address that the server may see if it is not the client's. The zero address
	// stands for any that Masquerade allows.
	Source netip.Addr
}

// Masquerade says which source a server must see.
type Masquerade uint8

const (
	OwnSource  Masquerade = iota // the client's own address
	NodeSource                   // an address of the node
	AnySource                    // either
)

// String returns the text of the Want, such as "pod1/8080 or pod2/8080 seeing a node address".
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
