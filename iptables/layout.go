package iptables

import (
	"crypto/sha256"
	"encoding/base32"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/servicemodel"
)

// layoutNumber is the number of the layout, and part of the settings: see package settings. A
// change that gives the same chains and rules a new meaning increments it.
const layoutNumber = 1

// tableKind is one of the two tables with our rules, as iptables names them.
type tableKind uint8

const (
	nat tableKind = iota
	filter
)

var kinds = [2]tableKind{nat, filter}

// String returns the table's name.
func (k tableKind) String() string {
	if k == filter {
		return "filter"
	}
	return "nat"
}

// of returns the table of that kind in a family.
func (k tableKind) of(f *nft.Family) table {
	if f == nft.IPv6 {
		return nat6 + table(k)
	}
	return table(k)
}

// table is a table of one family. Tables index arrays.
type table uint8

const (
	nat4 table = iota
	filter4
	nat6
	filter6
	tableCount
)

// family returns the family of a table, and kind the table's kind in iptables.
func (t table) family() *nft.Family { return nft.Families[t/2] }
func (t table) kind() tableKind     { return tableKind(t % 2) }

// String names the table in errors: "ip nat".
func (t table) String() string { return t.family().Name + " " + t.kind().String() }

// chain returns the identity of a chain of the table.
func (t table) chain(name string) chainID { return chainID{t, name} }

func tablesOf(f *nft.Family) [2]table { return [2]table{nat.of(f), filter.of(f)} }

const (
	prioDNAT   = -100 // NF_IP_PRI_NAT_DST
	prioFilter = 0    // NF_IP_PRI_FILTER
	prioSNAT   = 100  // NF_IP_PRI_NAT_SRC
)

// baseChains are the base chains of a table that we use. Their type, hook and priority are those of
// iptables-nft (xtables_ipv4 in iptables/nft.c), because any other value would make the table
// incompatible with iptables-nft. The types have the names of the tables.
func baseChains(t tableKind) []nft.Chain {
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

// chainOf returns the chain to create. The result is a base chain if id names one of our base
// chains.
func chainOf(id chainID) *nft.Chain {
	for _, c := range baseChains(id.table.kind()) {
		if c.Name == id.name {
			return &c
		}
	}

	return &nft.Chain{Name: id.name}
}

// isBase reports whether a chain is one of our base chains.
func isBase(id chainID) bool { return chainOf(id).Type != "" }

// maxChainName is the maximum length of a chain's name in iptables (XT_EXTENSION_MAXNAMELEN - 1).
const maxChainName = 28

// names builds the names of an instance's chains. All names begin with the prefix and "-".
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
func (n names) healthChecks() string { return n.prefix + "-HEALTH-CHECKS" }
func (n names) ranges() string       { return n.prefix + "-RANGES" }
func (n names) localnet() string     { return n.prefix + guardSuffix }

// guardSuffix is the end of the names of chains that may have a guard of route_localnet: chains of
// any instance, of kube-proxy or of the kubelet.
const guardSuffix = "-FIREWALL"

// Kinds of chains that belong to one service port each.
const (
	kindCluster  = "SVC" // balances over endpoints anywhere
	kindLocal    = "SVL" // balances over endpoints on this node
	kindEntry    = "EXT" // decides by the packet's origin
	kindSources  = "FW"  // lets allowed sources pass
	kindEndpoint = "SEP" // kube-proxy's; here only in the name of an endpoint's affinity list
)

// service returns the name of a chain of a service port in kube-proxy's form
// (servicePortPolicyClusterChain and similar functions in pkg/proxy/iptables/proxier.go of
// Kubernetes). more is empty except for a chain that kube-proxy does not have.
func (n names) service(kind string, p servicemodel.PortName, more string) string {
	return n.prefix + "-" + kind + "-" + hash(p.String()+p.Protocol.String()+more)
}

// affinityList returns the name of the list in which xt_recent remembers the clients of an
// endpoint. It is kube-proxy's name, so that a takeover from kube-proxy keeps the clients. A list
// keeps the mask with which it was created, so each mask has its own lists. The ports of a whole
// service share the lists of endpoint addresses.
func (n names) affinityList(p servicemodel.PortName, ep netip.AddrPort, a affinity) string {
	of := ep.String()
	if a.whole {
		p, of = servicemodel.PortName{Name: p.Name}, ep.Addr().String()
	}
	if a.bits > 0 {
		of += "/" + strconv.Itoa(int(a.bits))
	}
	return n.service(kindEndpoint, p, of)
}

// hash returns the first 16 characters of the base32 encoding of a SHA-256.
func hash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return base32.StdEncoding.EncodeToString(sum[:10])
}

// step returns the name of a chain for packets to a range of addresses or ports:
// "KUBE-IP-10.96.0.0/20". IPv6 addresses are written with dots, because nft does not accept colons
// in a name. A name that would be too long is hashed.
func (n names) step(kind, of string) string {
	name := n.prefix + "-" + kind + "-" + strings.ReplaceAll(of, ":", ".")
	if len(name) > maxChainName {
		return n.prefix + "-" + kind + "-" + hash(of)
	}
	return name
}

// former is a chain that kube-proxy has and this backend removes.
func (n names) former() string { return n.prefix + "-EXTERNAL-SERVICES" }

// owned reports whether a chain belongs to the instance, or was made by kube-proxy under one of the
// instance's names. Other chains with the prefix, for example the kubelet's or kube-router's, are
// not ours.
func (n names) owned(chain string) bool {
	switch chain {
	case n.services(), n.nodePorts(), n.markMasq(), n.masqOffPod(), n.postrouting(), n.hairpin(),
		n.settings(), n.forward(), n.sourceRanges(), n.clusterIPs(), n.healthChecks(), n.ranges(),
		n.former():
		return true
	}

	return n.isStep(chain) || n.ofService(chain)
}

// foreign returns a chain that has one of the instance's names although no instance of kernlb has
// made it, or "". Every instance of kernlb has a chain that only kernlb creates. The chains of
// kube-proxy are always taken over.
func (l *layout) foreign(r *raw) string {
	if l.names.prefix == defaultPrefix || len(l.versionsOf(r)) > 0 {
		return ""
	}
	first := ""
	for _, id := range r.sorted() {
		switch id.name {
		case l.names.settings(), l.names.masqOffPod(), l.names.clusterIPs():
			return ""
		}

		if first == "" && l.names.owned(id.name) {
			first = id.String()
		}
	}

	return first
}

// isStep reports whether a chain is for packets to a range of addresses or ports.
func (n names) isStep(chain string) bool {
	kind, of := n.cut(chain)
	return of != "" && slices.Contains([]string{stepService, stepNodePort, stepHairpin,
		stepSources, stepClusterIP, stepHealthCheck, stepRange}, kind)
}

// cut returns the kind of a chain and the rest of its name.
func (n names) cut(chain string) (kind, of string) {
	if rest, ok := strings.CutPrefix(chain, n.prefix+"-"); ok {
		kind, of, _ = strings.Cut(rest, "-")
	}
	return kind, of
}

// ofService reports whether a chain belongs to a service or an endpoint.
func (n names) ofService(chain string) bool {
	kind, of := n.cut(chain)
	return len(of) == 16 && strings.Trim(of, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567") == "" &&
		slices.Contains([]string{kindCluster, kindLocal, kindEntry, kindSources, kindEndpoint,
			"XLB"}, kind)
}

// entries returns the chains of a table from which all our other chains are reached, and the chains
// that exist even if no rule of ours jumps to them.
func (n names) entries(t tableKind) []string {
	var l []string
	for _, c := range baseChains(t) {
		l = append(l, c.Name)
	}
	if t == nat {
		l = append(l, n.settings(), n.markMasq(), n.masqOffPod())
	}
	return l
}

// entry reports whether a jump from a base chain to the chain is ours.
func (n names) entry(chain string) bool {
	switch chain {
	case n.services(), n.nodePorts(), n.postrouting(), n.forward(), n.sourceRanges(),
		n.clusterIPs(), n.healthChecks(), n.former():
		return true
	}

	return false
}
