package ipvs

import (
	"net/netip"

	"github.com/kernlb/kernlb/servicemodel"
)

// family is what differs between the two companion tables, "ip" and "ip6".
type family struct {
	name     string // as nft says it
	model    servicemodel.Family
	nfproto  uint8  // NFPROTO_* (include/uapi/linux/netfilter.h)
	addrLen  int    // bytes of an address
	saddr    uint32 // offset of the source address in the network header
	daddr    uint32 // offset of the destination address
	addr     field  // an address as a field of a set
	ctDst    uint32 // NFT_CT_DST_IP, NFT_CT_DST_IP6
	unreach  uint8  // ICMP code for port unreachable
	any      netip.Addr
	loopback netip.Prefix
}

var ipv4 = &family{
	name: "ip", model: servicemodel.IPv4, nfproto: 2, addrLen: 4, saddr: 12, daddr: 16, addr: field{typeIPv4Addr, 4}, ctDst: 20,
	unreach: 3, any: netip.IPv4Unspecified(), loopback: netip.MustParsePrefix("127.0.0.0/8"),
}

var ipv6 = &family{
	name: "ip6", model: servicemodel.IPv6, nfproto: 10, addrLen: 16, saddr: 8, daddr: 24, addr: field{typeIPv6Addr, 16}, ctDst: 22,
	unreach: 4, any: netip.IPv6Unspecified(), loopback: netip.MustParsePrefix("::1/128"),
}

var families = [2]*family{ipv4, ipv6}

func familyIndex(a netip.Addr) int {
	if a.Is4() {
		return 0
	}
	return 1
}

// field is one field of a set's key or data: nft's number for its type, and its length in bytes.
type field struct {
	typ uint32
	len int
}

const (
	typeIPv4Addr = 7
	typeIPv6Addr = 8
	typeMark     = 19
)

var (
	fieldProto = field{12, 1}       // inet_proto
	fieldPort  = field{13, 2}       // inet_service
	fieldMark  = field{typeMark, 4} // a number, in the byte order of the machine
)

// set is a named set or map of a companion table.
type set struct {
	name  string
	key   []field
	data  []field
	flags uint32
}

// Flags of a set (enum nft_set_flags in include/uapi/linux/netfilter/nf_tables.h).
const (
	setInterval = 0x4
	setMap      = 0x8
	setConcat   = 0x80
)

// Sets of a kind ("service", "nodeport"), by the rest of their names; the registry is the kind and an "s".
const (
	setReject     = "-reject"
	setDrop       = "-drop"
	setSplit      = "-split"
	setExtReject  = "-external-reject"
	setExtDrop    = "-external-drop"
	setMarks      = "-marks"
	setMasqAll    = "-masquerade-all"
	setMasqNotPod = "-masquerade-not-pods"
	setMasqHost   = "-masquerade-host"
)

// Sets that are no kind's.
const (
	setSettings   = "settings"
	setClusterIPs = "cluster-ips"
	setHairpins   = "hairpins"
	setNodeAddrs  = "node-addresses"
	setRestricted = "service-restricted"
	setRouted     = "service-routed"
	setSources    = "sources"
)

const (
	kindService  = "service"
	kindNodePort = "nodeport"
)

var kinds = [2]string{kindService, kindNodePort}

func kindOf(k servicemodel.FrontendKey) string {
	if k.NodePort() {
		return kindNodePort
	}
	return kindService
}

// sets lists the sets of a companion table. They are the same whatever the services are.
func (f *family) sets() []*set {
	service := []field{f.addr, fieldProto, fieldPort}
	keys := map[string][]field{kindService: service, kindNodePort: service[1:]}
	var l []*set
	for _, k := range kinds {
		l = append(l, &set{name: k + "s", key: keys[k]})
		for _, rest := range []string{setReject, setDrop, setSplit, setExtReject, setExtDrop, setMasqAll, setMasqNotPod, setMasqHost} {
			l = append(l, &set{name: k + rest, key: keys[k]})
		}
		l = append(l, &set{name: k + setMarks, key: keys[k], data: []field{fieldMark}, flags: setMap})
	}
	return append(l,
		&set{name: setRestricted, key: service},
		&set{name: setRouted, key: service},
		&set{name: setSources, key: append(service[:3:3], f.addr), flags: setInterval | setConcat},
		&set{name: setClusterIPs, key: []field{f.addr}},
		&set{name: setHairpins, key: []field{f.addr, f.addr}},
		&set{name: setNodeAddrs, key: []field{f.addr}},
		&set{name: setSettings, key: []field{fieldMark}})
}

// chain is a chain of a companion table; a base chain has a type.
type chain struct {
	name string
	typ  string
	hook uint32
	prio int32
}

// Hooks (enum nf_inet_hooks in include/uapi/linux/netfilter.h).
const (
	hookPrerouting  = 0
	hookInput       = 1
	hookOutput      = 3
	hookPostrouting = 4
)

// Packet marks. A packet to the address of a service carries steerBit, so that it is delivered to this machine, where IPVS finds it, though the
// address is nobody's. Where pods and the host have other endpoints than clients outside, their packets carry a mark of splitMarks in full:
// that of a virtual server by mark. Both are taken away when IPVS has seen the packet. What IPVS sends on unchanged, by direct routing, still goes to the
// address of the service: sentMark keeps it from being led to IPVS again, until it has left.
const (
	steerBit   uint32 = 1 << 30
	splitMarks uint32 = 3 << 30 // and a number from 1 on below
	sentMark   uint32 = 2 << 30 // in these two bits
)
