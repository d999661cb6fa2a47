package node

import (
	"net/netip"
	"time"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/dataplane/hooks"
	"github.com/kernlb/kernlb/servicemodel"
)

// facts are the kernel's facts about a node. The zero value of each fact causes no finding, so a
// fact that could not be read only hides its findings.
type facts struct {
	addrs   servicemodel.Locality
	undone  string // repairs that another program keeps undoing
	unknown []string

	// forwards says, for each family, whether packets are forwarded at all. still contains the
	// links from which IPv4 packets are not forwarded.
	forwards map[servicemodel.Family]bool
	still    []string
	strict   []string // links where rp_filter demands that the route back is the same
	lenient  string   // the command that ends this for the first of them
	loose    bool     // other links have rp_filter on
	bridges  []bridge
	failed   []neighbour
	gateways map[netip.Addr]bool // next hops of routes
	sysctls  map[string]string   // by path below /proc/sys
	guarded  bool                // another program relies on route_localnet, or guards it
	chains   []hooks.Chain       // of other programs
	usage    conntrack.Usage
	grown    counted
	over     time.Duration           // the period of grown
	calm     [counters]time.Duration // the time since the last growth
	proxy    string                  // the mode of a kube-proxy that runs
	leftover []string                // objects that a kube-proxy left
}

// bridge is a bridge with at least two ports.
type bridge struct {
	name  string
	nets  []netip.Prefix // of its addresses
	calls map[servicemodel.Family]bool
}

// neighbour is a neighbour whose link-layer address the kernel could not resolve.
type neighbour struct {
	addr netip.Addr
	link string
}

// counted are the kernel's counters since the creation of the namespace.
type counted [counters]uint64

// The counters, of packets or of connections.
const (
	drops       = iota // packets, because the table was full or because of a clash
	evictions          // connections, to make room in the table
	clashes            // packets, because another connection had the same addresses and ports
	longChains         // packets, because a bucket of the table was full
	reversePath        // packets that rp_filter dropped
	unforwarded        // packets of IPv4 that came in by a link from which none is forwarded
	counters
)

// since returns the growth since an earlier time.
func (c counted) since(e counted) counted {
	for i := range c {
		c[i] -= min(c[i], e[i])
	}
	return c
}
