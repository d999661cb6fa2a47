package netnstest

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"github.com/kernlb/kernlb/servicemodel"
)

// Cluster is a network of namespaces around one node; the package documentation draws it. [New]
// sets its fields, which do not change afterwards. Its methods and the methods of its hosts are
// safe for concurrent use.
type Cluster struct {
	// Node is the node under test. Its IPv4 and IPv6 are the primary addresses; NodeAddrs returns
	// all addresses.
	Node *Host
	// Pods are the pods on the node: pod1, pod2, …
	Pods []*Host
	// OtherNode is another node of the cluster, and RemotePods are the pods on it: remote1,
	// remote2, …
	OtherNode  *Host
	RemotePods []*Host
	// Outside are clients outside the cluster: outside1, outside2, …
	Outside []*Host

	nodeAddrs  []netip.Addr
	namespaces []*NS
}

// Host is a pod, a node or a client: it can run servers and send probes. Several hosts may share a
// namespace; their addresses differ.
type Host struct {
	// Name is the name that servers of this host send in answers.
	Name string
	// NS is the namespace of the host.
	NS *NS
	// IPv4 and IPv6 are its addresses.
	IPv4, IPv6 netip.Addr
	// NodeInterface is the node's interface towards this host.
	NodeInterface string

	// anySource leaves the source address of probes to the kernel, as programs on a node do.
	anySource bool
}

// New builds a cluster, which takes some tens of milliseconds. Any number of clusters may exist at
// the same time.
//
// New fails with an error that wraps [os.ErrPermission] if the process may not create namespaces;
// see [ReExecInUserNS].
func New(ctx context.Context, opts Options) (*Cluster, error) {
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	c := &Cluster{}
	if err := c.build(ctx, opts); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// Close stops all servers and connections of the cluster's namespaces, and releases the namespaces.
// The kernel removes them, and every link and rule in them, soon after. Calling Close twice is
// allowed.
func (c *Cluster) Close() error {
	var errs []error
	for _, ns := range slices.Backward(c.namespaces) {
		errs = append(errs, ns.Close())
	}
	c.namespaces = nil
	return errors.Join(errs...)
}

// NodeAddrs returns the node's addresses other than loopback: IPv4 before IPv6, the primary address
// of each family first; with [Options.Bridge], the bridge's addresses come last.
func (c *Cluster) NodeAddrs() []netip.Addr { return slices.Clone(c.nodeAddrs) }

// IsNodeAddr reports whether the address is one of NodeAddrs, for example the source of a
// masqueraded packet.
func (c *Cluster) IsNodeAddr(addr netip.Addr) bool { return slices.Contains(c.nodeAddrs, addr) }

// Hosts returns every host: the node, its pods, the other node, its pods, the outside clients.
func (c *Cluster) Hosts() []*Host {
	hosts := append([]*Host{c.Node}, c.Pods...)
	hosts = append(append(hosts, c.OtherNode), c.RemotePods...)
	return append(hosts, c.Outside...)
}

// Addr returns the host's address in the family of like, such as a destination.
func (h *Host) Addr(like netip.Addr) netip.Addr {
	if like.Is4() {
		return h.IPv4
	}
	return h.IPv6
}

// Serve starts servers for the protocol and port on both addresses of the host, under the host's
// name. They run until the cluster is closed. To stop a single server, use [NS.Serve].
func (h *Host) Serve(proto servicemodel.Protocol, port uint16) error {
	for _, addr := range []netip.Addr{h.IPv4, h.IPv6} {
		if _, err := h.NS.Serve(h.Name, proto, netip.AddrPortFrom(addr, port)); err != nil {
			return err
		}
	}

	return nil
}
