package servicemodel

import (
	"iter"
	"net/netip"
	"strconv"
)

// State is what a program wants: services, their endpoints, and the node they are seen from. It is an immutable value;
// the With methods return a new one that shares all the rest, at a cost that does not grow with the number of services. The zero value is
// an empty state on the zero [Node].
type State struct {
	// unexported: node *Node; persistent ordered maps of services and endpoints by Name
}

// WithNode returns s seen from node n.
func (s State) WithNode(n Node) State { panic("skeleton") }

// WithService returns s with the service set; a service of that name is replaced.
func (s State) WithService(svc *Service) State { panic("skeleton") }

// WithoutService returns s without the service. Its endpoints stay until removed.
func (s State) WithoutService(n Name) State { panic("skeleton") }

// WithEndpoints returns s with the endpoints of a service set, all of them. The service need not exist yet.
// An empty list removes them.
func (s State) WithEndpoints(n Name, eps []Endpoint) State { panic("skeleton") }

// Node returns the node the state is seen from.
func (s State) Node() Node { panic("skeleton") }

// Service returns the service of that name, nil if there is none.
func (s State) Service(n Name) *Service { panic("skeleton") }

// Endpoints returns the endpoints of a service.
func (s State) Endpoints(n Name) []Endpoint { panic("skeleton") }

// Services returns all services in the order of their names.
func (s State) Services() iter.Seq[*Service] { panic("skeleton") }

// Validate checks the whole state and returns every problem joined in one error, each a *[FieldError]; nil if there is none.
func (s State) Validate() error { panic("skeleton") }

// Resolve decides what the state means on its node. prev, which may be nil, is a table resolved before: what did not change since is shared with it,
// and the cost is that of what did. The result is the same for the same state, apart from the order of slots, which prev influences.
// It returns an error, and no table, if what changed is invalid.
func Resolve(prev *Table, s State) (*Table, error) { panic("skeleton") }

// FamilyOf returns the family of a.
func FamilyOf(a netip.Addr) Family {
	if a.Is4() || a.Is4In6() {
		return IPv4
	}
	return IPv6
}

func uitoa(n uint16) string { return strconv.Itoa(int(n)) }
