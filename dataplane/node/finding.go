package node

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Severity says how a finding affects clients.
type Severity string

// The severities.
const (
	Error   Severity = "error"   // some clients cannot use services now
	Warning Severity = "warning" // some clients may lose connections
	Note    Severity = "note"    // worth knowing when something fails
)

// Check is the name of a check.
type Check string

// The checks.
const (
	// Repairs: no other program keeps undoing kernlb's repairs.
	Repairs Check = "repairs"
	// Forwarding: the kernel forwards packets to endpoints.
	Forwarding Check = "forwarding"
	// ReversePath: rp_filter drops no packets, according to the kernel's counters.
	ReversePath Check = "rp-filter"
	// Bridge: answers between pods on one bridge come back through the node
	// (bridge-nf-call-iptables).
	Bridge Check = "bridge-nf-call"
	// Conntrack: the conntrack table has room, and no packet was lost because of it.
	Conntrack Check = "conntrack"
	// MasqueradePorts: each masqueraded connection gets its own port.
	MasqueradePorts Check = "masquerade-ports"
	// ForeignChains: the chains of other programs do not drop packets to endpoints.
	ForeignChains Check = "foreign-chains"
	// KubeProxy: no kube-proxy runs on this node, and no objects of kube-proxy are left.
	KubeProxy Check = "kube-proxy"
	// RouteLocalnet: the sysctl route_localnet is on if node ports answer at loopback addresses,
	// and otherwise off or protected by a guard.
	RouteLocalnet Check = "route-localnet"
	// Neighbours: the link-layer addresses of endpoints and gateways are known.
	Neighbours Check = "neighbours"
)

// Checks returns all checks, in the order in which reports list them.
func Checks() []Check {
	return []Check{Repairs, Forwarding, ForeignChains, Conntrack, MasqueradePorts, Neighbours,
		ReversePath, Bridge, RouteLocalnet, KubeProxy}
}

// Finding is a fault that a check found.
type Finding struct {
	Check    Check    `json:"check"`
	Severity Severity `json:"severity"`
	// Means is a sentence that describes the fault and its effect on clients.
	Means string `json:"means"`
	// Do says what to do about it.
	Do string `json:"do"`
}

// String returns "error: forwarding: …".
func (f Finding) String() string { return fmt.Sprintf("%s: %s: %s", f.Severity, f.Check, f.Means) }

// Report is the result of all checks.
type Report struct {
	At time.Time `json:"at"`
	// Since is the time of the earlier counter values with which the report compares. Zero means
	// that there are no earlier values, so the report lacks faults that only counters show.
	Since time.Time `json:"since,omitzero"`
	// Findings are ordered by severity, and then in the order of [Checks].
	Findings []Finding `json:"findings"`
	// Unknown lists the facts that could not be read, and so were not checked.
	Unknown []string `json:"unknown,omitempty"`
}

// Count returns the number of findings with the given check and severity. An empty check or
// severity means any.
func (r *Report) Count(c Check, s Severity) (n int) {
	for _, f := range r.Findings {
		if (c == "" || f.Check == c) && (s == "" || f.Severity == s) {
			n++
		}
	}

	return n
}

func (f Finding) compare(o Finding) int {
	severities := []Severity{Error, Warning, Note}
	return cmp.Or(
		slices.Index(severities, f.Severity)-slices.Index(severities, o.Severity),
		slices.Index(Checks(), f.Check)-slices.Index(Checks(), o.Check))
}
