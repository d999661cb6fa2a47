package kubeproxy

import (
	"maps"
	"regexp"
	"slices"
	"strings"
)

// The names of kube-proxy's objects, in the versions 1.28 to 1.36 of Kubernetes. The sources are
// pkg/proxy/iptables/proxier.go and cleanup.go, pkg/proxy/ipvs/proxier.go and ipset.go, and
// pkg/proxy/nftables/proxier.go. Differences between versions are noted below.

// Tables of iptables.
const (
	tableNAT    = "nat"
	tableFilter = "filter"
	tableMangle = "mangle"
)

// Chains that are named below more than once.
const (
	chainMarkMasq    = "KUBE-MARK-MASQ"
	chainPostrouting = "KUBE-POSTROUTING"
	chainMarkDrop    = "KUBE-MARK-DROP"
	chainCanary      = "KUBE-PROXY-CANARY"
	chainFirewall    = "KUBE-FIREWALL"
)

// sharedChains are the names that both kube-proxy and kernlb's iptables backend with the default
// prefix use, by table, without the chains of services.
var sharedChains = map[string][]string{
	tableNAT: {"KUBE-SERVICES", "KUBE-NODEPORTS", chainPostrouting, chainMarkMasq},
	tableFilter: {"KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES", "KUBE-FORWARD", "KUBE-NODEPORTS",
		"KUBE-PROXY-FIREWALL"},
}

// ownChains are the other chains of kube-proxy. All except the canaries belong to the ipvs mode;
// KUBE-IPVS-OUT-FILTER came with 1.29. kube-proxy watches the canaries: a missing canary means that
// the rules were flushed.
var ownChains = map[string][]string{
	tableMangle: {chainCanary},
	tableNAT:    {chainCanary, "KUBE-NODE-PORT", "KUBE-LOAD-BALANCER"},
	tableFilter: {chainCanary, "KUBE-NODE-PORT", "KUBE-SOURCE-RANGES-FIREWALL", "KUBE-IPVS-FILTER",
		"KUBE-IPVS-OUT-FILTER"},
}

// serviceChain matches the names of chains of services and endpoints, all in the table nat. They
// end with the hash of portProtoHash: 16 characters of base 32.
var serviceChain = regexp.MustCompile(`^KUBE-(SVC|SVL|EXT|FW|SEP)-[A-Z2-7]{16}$`)

// jumpComments are the comments of the rules that jump from base chains to chains of kube-proxy
// (iptablesJumpChains, iptablesJumpChain). A rule that jumps to such a chain with a different
// comment, or without a comment, belongs to another program.
var jumpComments = []string{
	"kubernetes service portals",
	"kubernetes externally-visible service portals",
	"kubernetes postrouting rules",
	"kubernetes forwarding rules",
	"kubernetes health check service ports", // iptables mode
	"kubernetes health check rules",         // ipvs mode
	"kubernetes load balancer firewall",     // iptables mode
	"kube-proxy firewall rules",             // ipvs mode
	"kubernetes ipvs access filter",         // ipvs mode
}

// kernlbVersion is the prefix of the version chains of kernlb's iptables backend with the default
// prefix (iptables/version.go). We recognise an instance by them. They are in the table nat of IPv4
// or, if the node serves only IPv6, of IPv6.
const kernlbVersion = "KUBE-VERSION-"

// Objects of the nftables mode, which came with 1.29: a table in each of the families ip and ip6.
// In all versions, each table contains a chain of this name.
const (
	nftTable = "kube-proxy"
	nftChain = "services"
)

// device is the dummy device of the ipvs mode, which holds the addresses of services.
const device = "kube-ipvs0"

// maxSetName is the greatest length of an IP set's name (IPSET_MAXNAMELEN - 1).
const maxSetName = 31

// IP sets of the ipvs mode, with their IPv4 names (ipsetInfo). Their entries tell which virtual
// servers are kube-proxy's.
var (
	// addressSets hold protocol, address and port of virtual servers.
	addressSets = []string{"KUBE-CLUSTER-IP", "KUBE-EXTERNAL-IP", "KUBE-EXTERNAL-IP-LOCAL",
		"KUBE-LOAD-BALANCER", sctpSet}
	// portSets hold node ports, by protocol. Each node port has a virtual server at every address
	// of the node that accepts node ports.
	portSets = map[string]string{"TCP": "KUBE-NODE-PORT-TCP", "UDP": "KUBE-NODE-PORT-UDP"}
	// otherSets have no further information.
	otherSets = []string{"KUBE-LOOP-BACK", "KUBE-LOAD-BALANCER-LOCAL", "KUBE-LOAD-BALANCER-FW",
		"KUBE-LOAD-BALANCER-SOURCE-IP", "KUBE-LOAD-BALANCER-SOURCE-CIDR",
		"KUBE-NODE-PORT-LOCAL-TCP", "KUBE-NODE-PORT-LOCAL-UDP", "KUBE-NODE-PORT-LOCAL-SCTP-HASH",
		"KUBE-HEALTH-CHECK-NODE-PORT", "KUBE-IPVS-IPS"}
)

// sctpSet holds the virtual servers of node ports for SCTP.
const sctpSet = "KUBE-NODE-PORT-SCTP-HASH"

// setName6 is the name of the set for IPv6 (NewIPSet in pkg/proxy/ipvs/ipset.go).
func setName6(name string) string {
	name = strings.Replace(name, "KUBE-", "KUBE-6-", 1)
	return name[:min(len(name), maxSetName)]
}

// setNames lists all IP sets of kube-proxy.
func setNames() []string {
	l := slices.Concat(addressSets, slices.Collect(maps.Values(portSets)), otherSets)
	for _, name := range l {
		l = append(l, setName6(name))
	}
	slices.Sort(l)
	return l
}

// counters are the objects with which kube-proxy counts packets in the iptables mode, from 1.32 on
// (pkg/proxy/metrics/metrics.go).
var counters = []string{"ct_state_invalid_dropped_pkts", "localhost_nps_accepted_pkts"}
