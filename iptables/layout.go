package iptables

import (
	"crypto/sha256"
	"encoding/base32"
	"net/netip"
	"strings"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/servicemodel"
)

// layoutNumber is the number of the layout, which the settings have: see package settings. It is
// counted up by a change after which what is in the kernel means something else, though chains and
// rules are the same.
const layoutNumber = 1

// tableID is one of the two tables that rules are in, as iptables names them.
type tableID uint8

const (
	nat tableID = iota
	filter
)

var tables = [2]tableID{nat, filter}

// String returns the table's name.
func (t tableID) String() string {
	if t == filter {
		return "filter"
	}
	return "nat"
}

const (
	prioDNAT   = -100 // NF_IP_PRI_NAT_DST
	prioFilter = 0    // NF_IP_PRI_FILTER
	prioSNAT   = 100  // NF_IP_PRI_NAT_SRC
)

// baseChains are the base chains of a table that we use, with the type, hook and priority that
// iptables-nft gives them (xtables_ipv4 in iptables/nft.c); anything else would make the table
// incompatible with it. The types are called as the tables are.
func baseChains(t tableID) []nft.Chain {
	if t == nat {
		return []nft.Chain{
			{Name: "PREROUTING", Type: "nat", Hook: nft.HookPrerouting, Prio: prioDNAT},
			{Name: "OUTPUT", Type: "nat", Hook: nft.HookOutput, Prio: prioDNAT},
			{Name: "POSTROUTING", Type: "nat", Hook: nft.HookPostrouting, Prio: prioSNAT},
		}
	}
	return []nft.Chain{
		{Name: "INPUT", Type: "filter", Hook: nft.HookInput, Prio: prioFilter},
		{Name: "FORWARD", Type: "filter", Hook: nft.HookForward, Prio: prioFilter},
		{Name: "OUTPUT", Type: "filter", Hook: nft.HookOutput, Prio: prioFilter},
	}
}

// chainOf returns the chain to make: a base chain, if it is one of ours.
func chainOf(id chainID) *nft.Chain {
	for _, c := range baseChains(id.table) {
		if c.Name == id.name {
			return &c
		}
	}
	return &nft.Chain{Name: id.name}
}

// isBase reports whether a chain is one of our base chains.
func isBase(t tableID, chain string) bool {
	return chainOf(chainID{table: t, name: chain}).Type != ""
}

// familyIndex is the place of an address family in [nft.Families].
func familyIndex(f servicemodel.Family) int {
	if f == servicemodel.IPv6 {
		return 1
	}
	return 0
}

// maxChainName is how long the name of a chain can be in iptables (XT_EXTENSION_MAXNAMELEN - 1).
const maxChainName = 28

// names makes the names of an instance's chains. They all begin with the prefix and "-".
type names struct{ prefix string }

func (n names) services() string     { return n.prefix + "-SERVICES" }
func (n names) nodePorts() string    { return n.prefix + "-NODEPORTS" }
func (n names) markMasq() string     { return n.prefix + "-MARK-MASQ" }
func (n names) masqOffPod() string   { return n.prefix + "-MASQ-OFF-POD" }
func (n names) postrouting() string  { return n.prefix + "-POSTROUTING" }
func (n names) hairpin() string      { return n.prefix + "-HAIRPIN" }
func (n names) settings() string     { return n.prefix + "-SETTINGS" }
func (n names) forward() string      { return n.prefix + "-FORWARD" }
func (n names) sourceRanges() string { return n.prefix + "-PROXY-FIREWALL" }
func (n names) clusterIPs() string   { return n.prefix + "-CLUSTER-IPS" }
func (n names) localnet() string     { return n.prefix + guardSuffix }

// guardSuffix is how the names of chains end that have a guard of route_localnet: those of all
// instances, of kube-proxy and of kubelet.
const guardSuffix = "-FIREWALL"

// Kinds of chains of one service port each.
const (
	kindCluster  = "SVC" // balances over the pool of ScopeCluster
	kindLocal    = "SVL" // balances over the pool of ScopeLocal
	kindEntry    = "EXT" // decides by the packet's origin
	kindSources  = "FW"  // lets allowed sources pass
	kindEndpoint = "SEP" // of kube-proxy; with us, the name of an endpoint's affinity list
)

// service returns the name of a chain of a service port, as kube-proxy forms it
// (servicePortPolicyClusterChain and its like in pkg/proxy/iptables/proxier.go of Kubernetes). more
// is empty but for a chain that kube-proxy does not have.
func (n names) service(kind string, p servicemodel.PortName, more string) string {
	return n.prefix + "-" + kind + "-" + hash(p.String()+p.Protocol.String()+more)
}

// affinityList returns the name of the list in which xt_recent remembers the clients of an
// endpoint: that of kube-proxy, so that taking over from it keeps them.
func (n names) affinityList(p servicemodel.PortName, ep netip.AddrPort) string {
	return n.service(kindEndpoint, p, ep.String())
}

// hash returns the first 16 characters of the base 32 of a SHA-256.
func hash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return base32.StdEncoding.EncodeToString(sum[:10])
}

// step returns the name of a chain that packets are sent to by an address or a port:
// "KUBE-IP-10.96.0.0/20". IPv6 addresses are written with dots, as nft does not take colons in a
// name. What would be too long is hashed.
func (n names) step(kind, of string) string {
	name := n.prefix + "-" + kind + "-" + strings.ReplaceAll(of, ":", ".")
	if len(name) > maxChainName {
		return n.prefix + "-" + kind + "-" + hash(of)
	}
	return name
}

// Names of chains that kube-proxy has and we have not. They are ours to remove.
var formerChains = []string{"EXTERNAL-SERVICES"}

// owned reports whether a chain belongs to the instance, or is one that kube-proxy made under the
// same names. Other chains that begin with the prefix, those of kubelet or kube-router for example,
// are not ours.
func (n names) owned(chain string) bool {
	rest, ok := strings.CutPrefix(chain, n.prefix+"-")
	if !ok {
		return false
	}
	switch chain {
	case n.services(), n.nodePorts(), n.markMasq(), n.masqOffPod(), n.postrouting(), n.hairpin(),
		n.settings(), n.forward(), n.sourceRanges(),
		n.clusterIPs():
		return true
	}
	for _, c := range formerChains {
		if rest == c {
			return true
		}
	}
	return n.isStep(chain) || n.ofService(chain)
}

// isStep reports whether a chain is one that packets are sent to by an address or a port.
func (n names) isStep(chain string) bool {
	rest, ok := strings.CutPrefix(chain, n.prefix+"-")
	kind, of, _ := strings.Cut(rest, "-")
	switch kind {
	case stepService, stepNodePort, stepHairpin, stepSources, stepClusterIP:
		return ok && of != ""
	}
	return false
}

// ofService reports whether a chain is one of a service or an endpoint.
func (n names) ofService(chain string) bool {
	rest, ok := strings.CutPrefix(chain, n.prefix+"-")
	kind, of, _ := strings.Cut(rest, "-")
	switch kind {
	case kindCluster, kindLocal, kindEntry, kindSources, kindEndpoint, "XLB":
		return ok && isHash(of)
	}
	return false
}

// entries returns the chains of a table from which all others of ours are reached, and those that
// are there even if no rule of ours leads to them.
func (n names) entries(t tableID) []string {
	var l []string
	for _, c := range baseChains(t) {
		l = append(l, c.Name)
	}
	if t == nat {
		l = append(l, n.settings(), n.markMasq(), n.masqOffPod())
	}
	return l
}

// leadable reports whether rules may lead to a chain that is ours to delete.
func (n names) leadable(chain string) bool { return n.owned(chain) || chain == n.localnet() }

// entry reports whether a jump from a base chain to the chain is ours.
func (n names) entry(chain string) bool {
	switch chain {
	case n.services(), n.nodePorts(), n.postrouting(), n.forward(), n.sourceRanges(),
		n.clusterIPs():
		return true
	}
	rest, ok := strings.CutPrefix(chain, n.prefix+"-")
	return ok && rest == formerChains[0]
}

func isHash(s string) bool {
	if len(s) != 16 {
		return false
	}
	for _, c := range s {
		if (c < 'A' || c > 'Z') && (c < '2' || c > '7') {
			return false
		}
	}
	return true
}
