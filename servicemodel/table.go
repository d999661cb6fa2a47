package servicemodel

import (
	"iter"
	"net/netip"
)

// Table is what services mean on one node: frontends, pools, and what goes with them.
// Tables are immutable and share what they have in common. [Resolve] makes them from a state, [NewTable]
// from what a backend found in the kernel. The nil *Table is an empty table.
type Table struct {
	// unexported: persistent ordered maps (see package doc of internal/persist)
}

// Contents are the parts of a table, as a backend reads them back.
type Contents struct {
	Rules      Rules
	Frontends  []*Frontend
	Pools      []*Pool
	ClusterIPs []netip.Addr
	Hairpins   []netip.Addr
}

// NewTable returns the table with the given contents, in any order. It is an error if a key or an identity occurs twice.
func NewTable(c Contents) (*Table, error) { panic("skeleton") }

// Rules returns the table's node-wide rules.
func (t *Table) Rules() Rules { panic("skeleton") }

// Len returns the number of frontends.
func (t *Table) Len() int { panic("skeleton") }

// Frontends returns all frontends in the order of their keys.
func (t *Table) Frontends() iter.Seq[*Frontend] { panic("skeleton") }

// Frontend returns the frontend with the given key, nil if there is none.
func (t *Table) Frontend(k FrontendKey) *Frontend { panic("skeleton") }

// Pools returns all pools in the order of their identities. Each is used by at least one frontend.
func (t *Table) Pools() iter.Seq[*Pool] { panic("skeleton") }

// Pool returns the pool with the given identity, nil if there is none.
func (t *Table) Pool(id PoolID) *Pool { panic("skeleton") }

// FrontendsOf returns the frontends of a service port in the order of their keys, both families.
func (t *Table) FrontendsOf(n PortName) []*Frontend { panic("skeleton") }

// ClusterIPs returns the cluster IPs of all services, sorted: the addresses whose other ports are rejected.
func (t *Table) ClusterIPs() iter.Seq[netip.Addr] { panic("skeleton") }

// Hairpins returns, sorted, the addresses of endpoints that may send to a service and be given themselves: those on this
// node and those of which the node is not known. Such a connection must be masqueraded, or its reply never comes back through the node.
func (t *Table) Hairpins() iter.Seq[netip.Addr] { panic("skeleton") }

// HealthChecks returns, by service name, what external load balancers ask for. They are answered by the
// program, not by the kernel.
func (t *Table) HealthChecks() iter.Seq[HealthCheck] { panic("skeleton") }

// Conflicts returns the claims that lost to another service, in the order of their keys.
func (t *Table) Conflicts() iter.Seq[Conflict] { panic("skeleton") }

// HealthCheck is the state of one health check node port.
type HealthCheck struct {
	Service Name
	Port    uint16
	// LocalEndpoints counts the addresses, of both families, of ready endpoints on this node.
	LocalEndpoints int
}

// Conflict says that two services claim one key. The winner has the lower kind, then the lower name.
type Conflict struct {
	Key    FrontendKey
	Winner PortName
	Loser  PortName
}

// Equal reports whether t and o have the same rules, frontends, pools (slots in the same order), cluster IPs, hairpins and health checks.
func (t *Table) Equal(o *Table) bool { panic("skeleton") }

// Arrange returns t with the slots of its pools rearranged so that endpoints which like also has in the pool of the same
// identity stand where like has them. It is how a table resolved from scratch is brought near to one read back from the kernel.
func (t *Table) Arrange(like *Table) *Table { panic("skeleton") }

// Apply returns the table that results from making the changes to t. Applying Diff(a, b) to a gives a table equal to b.
func (t *Table) Apply(c *ChangeSet) *Table { panic("skeleton") }
