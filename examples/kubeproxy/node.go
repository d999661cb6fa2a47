package main

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kernlb/kernlb/dataplane/hooks"
	"github.com/kernlb/kernlb/dataplane/kubeproxy"
)

// nodeFacts decide which clients notice that kube-proxy leaves a node.
type nodeFacts struct {
	node      *corev1.Node // nil if it is not known
	plan      *kubeproxy.Plan
	addresses []netip.Addr // of the node's devices, without those of services
	chains    []hooks.Chain
}

// note describes a change on a node.
type note struct {
	// about is the action of the note's event. client-go merges events that differ only in the
	// text.
	about, text string
}

// notes returns the changes on this node when kube-proxy leaves it.
func (s *settings) notes(ctx context.Context, client kubernetes.Interface) ([]note, error) {
	var facts nodeFacts
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{
		FieldSelector: "metadata.name=" + s.tracker.Node.Name})
	if err != nil {
		return nil, fmt.Errorf("ask for the Node: %w", err)
	}
	for i := range nodes.Items {
		facts.node = &nodes.Items[i]
	}
	if facts.plan, err = kubeproxy.Find(ctx, nil); err != nil {
		return nil, err
	}
	facts.chains, err = hooks.Read(ctx, nil, func(table string) bool { return table != "filter" })
	if err != nil {
		return nil, err
	}
	devices, err := net.Interfaces()
	for i := range devices {
		if slices.Contains(serviceDevices, devices[i].Name) {
			continue
		}
		l, errAddrs := devices[i].Addrs()
		err = cmp.Or(err, errAddrs)
		for _, a := range l {
			if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().IsGlobalUnicast() {
				facts.addresses = append(facts.addresses, p.Addr())
			}
		}
	}

	if err != nil {
		return nil, fmt.Errorf("list the node's addresses: %w", err)
	}
	slices.SortFunc(facts.addresses, netip.Addr.Compare)
	return facts.notes(s), nil
}

// serviceDevices are the devices with the addresses of services in ipvs mode. kube-proxy serves no
// node ports at these addresses.
var serviceDevices = []string{"kube-ipvs0", ipvsDevice}

// notes returns a sentence for each change.
func (f *nodeFacts) notes(s *settings) (notes []note) {
	add := func(about, text string) { notes = append(notes, note{about, text}) }
	if f.node == nil {
		add("DetectLocal", fmt.Sprintf("there is no Node %q: --hostname-override must be the "+
			"name that kubectl get nodes prints", s.tracker.Node.Name))
	} else if s.tracker.NodeCIDRs && len(f.node.Spec.PodCIDRs) == 0 {
		add("DetectLocal", "the Node has no spec.podCIDRs, which detectLocalMode NodeCIDR "+
			"needs: use ClusterCIDR with the range of all pods, or InterfaceNamePrefix")
	}

	if text := f.nodePorts(s); text != "" {
		add("NodePorts", text)
	}
	for i := range f.chains {
		if c := &f.chains[i]; s.mode != modeIPTables && f.forwards(c) {
			add("Forwarding", fmt.Sprintf("chain %v drops forwarded packets, and kube-proxy's "+
				"chain KUBE-FORWARD accepts those of services: without it, masqueraded "+
				"connections, such as those of node ports, fail unless another rule accepts "+
				"them. See docs/from-kube-proxy.md for rules that do", c))
		}
	}

	for _, l := range f.plan.Left {
		if strings.HasSuffix(l.Object, " KUBE-MARK-MASQ") && strings.HasPrefix(l.Object, "chain ") {
			add("Masquerade", l.Object+": "+l.Reason+". Nothing masquerades its packets when "+
				"kube-proxy's rules are deleted: take externalSetMarkChain out of portmap's "+
				"configuration, or let the policy controller mark packets itself")
		}
	}

	if f.node != nil && f.node.Annotations[kubeadmMark] != "" {
		add("Upgrade", "kubeadm made this node: kubeadm upgrade apply brings kube-proxy "+
			"back, except with --skip-phases=addon/kube-proxy")
	}

	return notes
}

// kubeadmMark is an annotation that kubeadm gives to nodes.
const kubeadmMark = "kubeadm.alpha.kubernetes.io/cri-socket"

// nodePorts names the addresses at which node ports stop answering. In iptables mode and ipvs mode,
// kube-proxy serves them at all addresses of the node, and in iptables mode also at 127.0.0.1.
func (f *nodeFacts) nodePorts(s *settings) string {
	n := &s.tracker.Node
	var gone []string
	for _, c := range f.plan.Chains {
		if c.Family == "ip" && c.Name == "nat" && c.Chain == "KUBE-NODEPORTS" &&
			!n.LocalhostNodePorts {
			gone = append(gone, "127.0.0.1")
		}
	}

	if n.NodePortAddresses.Primary && len(f.plan.Chains) > 0 && f.node != nil {
		for _, a := range f.addresses {
			if !slices.ContainsFunc(f.node.Status.Addresses, func(own corev1.NodeAddress) bool {
				return own.Address == a.String()
			}) && !f.isPod(a) {
				gone = append(gone, a.String())
			}
		}
	}

	if len(gone) == 0 {
		return ""
	}
	return "node ports stop answering at " + strings.Join(gone, ", ") + ": see " +
		"nodePortAddresses, and iptables.localhostNodePorts in the mode iptables"
}

// forwards reports whether a chain forwards packets only because kube-proxy accepts them there: its
// policy or one of its rules drops all other packets.
func (f *nodeFacts) forwards(c *hooks.Chain) bool {
	theirs := false
	for _, own := range f.plan.Chains {
		theirs = theirs || own.String() == c.Family+" "+c.Table+" KUBE-FORWARD"
	}
	return theirs && c.Hook == hooks.Forward && (c.DropsByDefault ||
		slices.ContainsFunc(c.Drops, func(r hooks.Rule) bool {
			return r.Chain == c.Name && slices.Contains([]string{"drop", "reject", "-j REJECT"},
				strings.TrimPrefix(r.Text, "counter "))
		}))
}

// isPod reports whether an address is in the range of the node's pods, which includes the address
// of their bridge.
func (f *nodeFacts) isPod(a netip.Addr) bool {
	return slices.ContainsFunc(f.node.Spec.PodCIDRs, func(text string) bool {
		p, err := netip.ParsePrefix(text)
		return err == nil && p.Contains(a)
	})
}

// tellNotes writes the notes to the log, and creates events.
func (p *proxy) tellNotes(ctx context.Context) {
	notes, err := p.notes(ctx, p.client)
	if err != nil {
		p.log.Warn("not known what changes without kube-proxy", "err", err)
	}
	for _, n := range notes {
		p.log.Warn("what changes without kube-proxy: " + n.text)
		p.events.node("Warning", "NotAsKubeProxy", n.about, n.text)
	}
}
