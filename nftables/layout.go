package nftables

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/kernlb/kernlb/servicemodel"
)

// family is what differs between the two tables, "ip" and "ip6".
type family struct {
	name     string // as nft says it
	model    servicemodel.Family
	nfproto  uint8  // NFPROTO_* (include/uapi/linux/netfilter.h)
	addrLen  int    // bytes of an address
	saddr    uint32 // offset of the source address in the network header
	daddr    uint32 // offset of the destination address
	addr     field  // an address as a field of a set
	ctDst    uint32 // NFT_CT_DST_IP, NFT_CT_DST_IP6
	ctSrc    uint32 // NFT_CT_SRC_IP, NFT_CT_SRC_IP6
	unreach  uint8  // ICMP code for port unreachable
	loopback netip.Prefix
	any      netip.Addr // the unspecified address
	udProto  byte       // nft's number for the protocol header, in typeof user data
	udDaddr  byte       // nft's number for the header's destination address
}

var ipv4 = &family{
	name: "ip", model: servicemodel.IPv4, nfproto: 2, addrLen: 4, saddr: 12, daddr: 16,
	addr: field{typeIPv4Addr, 4}, ctDst: 20, ctSrc: 19, unreach: 3,
	loopback: netip.MustParsePrefix("127.0.0.0/8"), any: netip.IPv4Unspecified(), udProto: 12, udDaddr: 12,
}

var ipv6 = &family{
	name: "ip6", model: servicemodel.IPv6, nfproto: 10, addrLen: 16, saddr: 8, daddr: 24,
	addr: field{typeIPv6Addr, 16}, ctDst: 22, ctSrc: 21, unreach: 4,
	loopback: netip.MustParsePrefix("::1/128"), any: netip.IPv6Unspecified(), udProto: 13, udDaddr: 9,
}

// families are both tables, in the order in which they are written.
var families = [2]*family{ipv4, ipv6}

func familyIndex(a netip.Addr) int {
	if servicemodel.FamilyOf(a) == servicemodel.IPv4 {
		return 0
	}
	return 1
}

// field is one field of a set's key or data: nft's number for its type, and its length in bytes.
// In a concatenation each field takes a multiple of four bytes.
type field struct {
	typ uint32 // enum datatypes of nft (include/datatype.h of nftables)
	len int
}

const (
	typeInteger  = 4
	typeIPv4Addr = 7
	typeIPv6Addr = 8
	typeMark     = 19
)

var (
	fieldProto = field{12, 1}          // inet_proto
	fieldPort  = field{13, 2}          // inet_service
	fieldSlot  = field{typeInteger, 4} // a number drawn by numgen, in the byte order of the machine
	fieldMark  = field{typeMark, 4}    // a number, in the byte order of the machine
)

func padded(fs []field) int {
	n := 0
	for _, f := range fs {
		n += (f.len + 3) &^ 3
	}
	return n
}

// set is a named set or map of a table.
type set struct {
	name    string
	comment string
	key     []field
	data    []field // of a map
	flags   uint32  // NFT_SET_*
	size    uint32
	typeof  bool // the key ends with a numgen, which only a typeof can say
}

// Flags of a set (enum nft_set_flags in include/uapi/linux/netfilter/nf_tables.h).
const (
	setInterval = 0x4
	setMap      = 0x8
	setTimeout  = 0x10
	setEval     = 0x20
	setConcat   = 0x80
)

// kind is one way by which packets reach frontends. Sets and chains of a kind share the beginning of their names.
type kind struct {
	prefix   string // "service"
	registry string // the set of all frontends of the kind
	chain    string // where their packets go
}

var (
	kindService  = &kind{"service", "services", "services"}
	kindNodePort = &kind{"nodeport", "nodeports", "nodeports"}
	kinds        = [2]*kind{kindService, kindNodePort}
)

func kindOf(k servicemodel.FrontendKey) *kind { return kinds[kindIndex(k)] }

func kindIndex(k servicemodel.FrontendKey) int {
	if k.NodePort() {
		return 1
	}
	return 0
}

// Sets of a kind, by the rest of their names.
const (
	setReject       = "-reject"
	setDrop         = "-drop"
	setSplit        = "-split"
	setMasqAll      = "-masquerade-all"
	setMasqNotPods  = "-masquerade-not-pods"
	setMasqHost     = "-masquerade-host"
	setAffinity     = "-affinity-" // and the timeout in seconds
	setSize         = "-size-"     // and the number of slots
	setExternalSize = "-external-size-"
	setEndpoints    = "-endpoints"
	setExternalEps  = "-external-endpoints"
)

// Sets that are no kind's.
const (
	setSettings   = "settings"
	setClusterIPs = "cluster-ips"
	setHairpins   = "hairpins"
	setRestricted = "restricted"
	setSources    = "sources"
)

// Clients are remembered in affinityMaps maps, told apart by a hash of the client's address. When an endpoint leaves, all of them are read, and the
// kernel walks a map from its beginning for each 32 KiB that it hands out (nft_rhash_walk): many small maps are read several times
// faster than one large map.
const (
	affinityMaps = 16
	affinitySeed = 0x6b6c62 // of the hash: rules that look up and rules that learn must agree
	// affinitySize is how many clients one map remembers at once, all services together. A full map only means that further
	// clients are not remembered. Without a size, the kernel would stop at 65,535 (nft_dynset.c).
	affinitySize = 1 << 14
)

// affinityMap is the name of the i-th map of remembered clients.
func affinityMap(i int) string { return "affinity-" + strconv.Itoa(i) }

// isAffinityMap reports whether a set is one of these.
func isAffinityMap(name string) bool { return strings.HasPrefix(name, "affinity-") }

// shape is what a table's program depends on, besides the rules: which features its services use. The objects that serve a feature
// exist only if some service uses it.
type shape struct {
	sizes    [2][2][]int // by kind, and internal or external: the numbers of slots in use, sorted
	affinity []uint32    // the affinity timeouts in use, in seconds, sorted
	sources  bool        // somebody restricts sources
}

func (s *shape) equal(o *shape) bool {
	for k := range s.sizes {
		for e := range s.sizes[k] {
			if !slices.Equal(s.sizes[k][e], o.sizes[k][e]) {
				return false
			}
		}
	}
	return slices.Equal(s.affinity, o.affinity) && s.sources == o.sources
}

// covers reports whether everything that o needs is in s.
func (s *shape) covers(o *shape) bool {
	for k := range s.sizes {
		for e := range s.sizes[k] {
			if !containsAll(s.sizes[k][e], o.sizes[k][e]) {
				return false
			}
		}
	}
	return containsAll(s.affinity, o.affinity) && (s.sources || !o.sources)
}

func containsAll[T int | uint32](sorted, some []T) bool {
	for _, v := range some {
		if _, ok := slices.BinarySearch(sorted, v); !ok {
			return false
		}
	}
	return true
}

// insert adds v to a sorted list unless it is there.
func insert[T int | uint32](sorted []T, v T) []T {
	i, ok := slices.BinarySearch(sorted, v)
	if ok {
		return sorted
	}
	return slices.Insert(sorted, i, v)
}

// sets lists the sets of a table, those used most first: the kernel finds a set by walking the list (nft_set_lookup in nf_tables_api.c).
func (f *family) sets(s *shape) []*set {
	service := []field{f.addr, fieldProto, fieldPort}
	nodeport := []field{fieldProto, fieldPort}
	endpoint := []field{f.addr, fieldPort}
	keys := [2][]field{service, nodeport}
	var l []*set
	for i, k := range kinds {
		slot := append(slices.Clone(keys[i]), fieldSlot)
		l = append(l,
			&set{name: k.prefix + setEndpoints, key: slot, data: endpoint, flags: setMap, typeof: true, comment: "endpoints, by slot"},
			&set{name: k.prefix + setExternalEps, key: slot, data: endpoint, flags: setMap, typeof: true, comment: "endpoints for outside clients only, by slot"})
	}
	for i, k := range kinds {
		l = append(l, &set{name: k.registry, key: keys[i], comment: "every frontend"})
	}
	l = append(l,
		&set{name: setClusterIPs, key: []field{f.addr}, comment: "other ports of these are rejected"},
		&set{name: setHairpins, key: []field{f.addr, f.addr}, comment: "endpoints that may reach themselves"})
	for i, k := range kinds {
		for _, sub := range []struct{ name, comment string }{
			{setMasqAll, "masqueraded always"},
			{setMasqNotPods, "masqueraded unless from a pod"},
			{setMasqHost, "masqueraded from this host"},
			{setSplit, "outside clients have endpoints of their own, or none"},
			{setReject, "no endpoint anywhere"},
			{setDrop, "no endpoint for this traffic here"},
		} {
			l = append(l, &set{name: k.prefix + sub.name, key: keys[i], comment: sub.comment})
		}
		for e, name := range []string{setSize, setExternalSize} {
			for _, n := range s.sizes[i][e] {
				l = append(l, &set{name: k.prefix + name + strconv.Itoa(n), key: keys[i]})
			}
		}
		for _, t := range s.affinity {
			l = append(l, &set{name: affinityName(k, t), key: keys[i]})
		}
	}
	client := append(slices.Clone(service), f.addr)
	if len(s.affinity) > 0 {
		for i := range affinityMaps {
			l = append(l, &set{name: affinityMap(i), key: client, data: endpoint, flags: setMap | setTimeout | setEval, size: affinitySize,
				comment: "the endpoint a client was given"})
		}
	}
	if s.sources {
		l = append(l, &set{name: setRestricted, key: service, comment: "only sources may connect"},
			&set{name: setSources, key: client, flags: setInterval | setConcat, comment: "who may connect to the restricted"})
	}
	return append(l, &set{name: setSettings, key: []field{fieldMark}, comment: "what the rules were made for"})
}

func affinityName(k *kind, seconds uint32) string {
	return k.prefix + setAffinity + strconv.FormatUint(uint64(seconds), 10)
}

// chain is a chain of a table; a base chain has a hook.
type chain struct {
	name string
	typ  string // "nat", "filter"; empty for a chain that is jumped to
	hook uint32 // NF_INET_*
	prio int32
}

// Hooks (enum nf_inet_hooks in include/uapi/linux/netfilter.h).
const (
	hookPrerouting  = 0
	hookInput       = 1
	hookForward     = 2
	hookOutput      = 3
	hookPostrouting = 4
)

var hookNames = [...]string{"prerouting", "input", "forward", "output", "postrouting"}

// Priorities (enum nf_ip_hook_priorities in include/uapi/linux/netfilter_ipv4.h). Source ranges are checked
// just before DNAT, while the destination is still the service's; clients are learnt just after it.
const (
	prioSources = prioDNAT - 10
	prioDNAT    = -100
	prioLearn   = prioDNAT + 1
	prioFilter  = 0
	prioSNAT    = 100
)
