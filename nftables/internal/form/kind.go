package form

import (
	"net/netip"
	"strings"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/servicemodel"
)

// Feature is a feature that some services use, or a set of features.
type Feature uint64

// The features. The first three are the ways in which schedulers other than random choose
// endpoints.
const (
	InTurn          Feature = 1 << iota // by a counter
	ByHash                              // by a hash, among the slots
	ByMaglev                            // by a hash, in a table of Maglev
	StickyNodePorts                     // some node port has session affinity
	SourceRanges                        // some service restricts sources
	SplitPools                          // some service treats outside clients or the host specially
	NotFromPods                         // some frontend is masqueraded, but not for pods
	LargePools                          // some pool needs more than SmallClasses
	MasqueradeIPs                       // some service sets the source of masqueraded connections
	RangesToPort                        // the endpoints of some range have one port
	RangesShifted                       // some range is mapped to a range of its endpoints
	nodeToPort                          // see [ToPortOf]
	nodeShifted                         // see [ShiftedOf]
	blocks0                             // some range has a block of 0 leading bits: see [BlocksOf]

	AtRandom   Feature = 0
	Ranges             = (1<<(BlockBits+1) - 1) * blocks0
	NodeRanges         = Ranges << (BlockBits + 1) // some range of node ports has such a block
	Ways               = InTurn | ByHash | ByMaglev
)

// BlockBits is the maximum number of leading bits of a block of ports.
const BlockBits = 16

// BlocksOf is the feature of blocks with this number of leading bits, of ranges of a kind.
func BlocksOf(k *Kind, bits uint8) Feature {
	if k == KindNodeRange {
		bits += BlockBits + 1
	}
	return blocks0 << bits
}

// ToPortOf is the feature of ranges of a kind whose endpoints have one port, and ShiftedOf the
// feature of ranges of a kind that are mapped to ranges of their endpoints.
func ToPortOf(k *Kind) Feature  { return ofKind(k, RangesToPort, nodeToPort) }
func ShiftedOf(k *Kind) Feature { return ofKind(k, RangesShifted, nodeShifted) }

func ofKind(k *Kind, atAddress, atNode Feature) Feature {
	if k == KindNodeRange {
		return atNode
	}
	return atAddress
}

// changePort is both features: the endpoints of some range of a kind do not get the packet's port.
func changePort(k *Kind) Feature { return ToPortOf(k) | ShiftedOf(k) }

// WayNames are parts of the names of the maps and chains for a way.
var WayNames = [...]string{InTurn: "-rr", ByHash: "-sh", ByMaglev: "-mh"}

// external is part of the names of sets and chains for clients outside.
const external = "-external"

// Kind is a kind of frontend, by the key that packets use to find it. The names of the sets and
// chains of a kind have the same prefix.
type Kind struct {
	Prefix   string // "service"
	outside  string // the prefix for outside clients with different endpoints
	Registry string // the set of all frontends of the kind
	chain    string // the chain for their packets
	// noEndpoints is the chain for new packets without an endpoint.
	noEndpoints string
	// slotMaps are the names of the maps with the slots of pools, by way. outsideSlotMaps are the
	// maps for clients outside.
	slotMaps, outsideSlotMaps [len(WayNames)]string
}

// The kinds: by the addresses of services, by node ports, by ranges of ports at the addresses of
// services, and by ranges of node ports. The objects of the last two exist only if some service has
// such a range.
var (
	KindService   = newKind("service", "no-endpoints")
	KindNodePort  = newKind("nodeport", "nodeport-no-endpoints")
	KindRange     = newKind("range", "range-no-endpoints")
	KindNodeRange = newKind("noderange", "noderange-no-endpoints")
	Kinds         = [4]*Kind{KindService, KindNodePort, KindRange, KindNodeRange}
)

func newKind(prefix, noEndpoints string) *Kind {
	k := &Kind{Prefix: prefix, outside: prefix + external, Registry: prefix + "s",
		chain: prefix + "s", noEndpoints: noEndpoints}
	for w, name := range WayNames {
		k.slotMaps[w] = k.Prefix + name + SetEndpoints
		k.outsideSlotMaps[w] = k.outside + name + SetEndpoints
	}

	return k
}

// SlotMap is the name of the map with the slots of pools of a way.
func (k *Kind) SlotMap(outside bool, way Feature) string {
	if outside {
		return k.outsideSlotMaps[way]
	}
	return k.slotMaps[way]
}

// KindOf returns the kind of a frontend.
func KindOf(k servicemodel.FrontendKey) *Kind {
	switch {
	case k.NodePort() && k.EndPort != 0:
		return KindNodeRange
	case k.NodePort():
		return KindNodePort
	case k.EndPort != 0:
		return KindRange
	}

	return KindService
}

// isRange reports whether frontends of the kind are ranges of ports.
func (k *Kind) isRange() bool { return k == KindRange || k == KindNodeRange }

// HasAddress reports whether frontends of the kind have an address. Other frontends have no source
// ranges.
func (k *Kind) HasAddress() bool { return k == KindService || k == KindRange }

// Key lists the fields in the key of a frontend of the kind.
func (k *Kind) Key(f *nft.Family) []nft.Field {
	switch k {
	case KindRange:
		return []nft.Field{f.Addr, nft.FieldProto, f.Addr}
	case KindNodeRange:
		return []nft.Field{nft.FieldProto, f.Addr}
	}

	return f.FrontendFields(k == KindNodePort)
}

// ReadKey reads the key of a frontend of the kind.
func (k *Kind) ReadKey(r *nft.Reader, f *nft.Family) servicemodel.FrontendKey {
	switch k {
	case KindRange:
		return r.RangeFrontend(f.AddrLen)
	case KindNodeRange:
		key := servicemodel.FrontendKey{Addr: f.Any, Protocol: r.Proto()}
		r.Range(&key, f.AddrLen)
		return key
	}

	return r.Frontend(f.Any, k == KindNodePort)
}

// ReadEndpoint reads an endpoint in a map of the kind.
func (k *Kind) ReadEndpoint(r *nft.Reader, f *nft.Family) netip.AddrPort {
	if k.isRange() {
		return netip.AddrPortFrom(r.Addr(f.AddrLen), 0)
	}
	return r.Endpoint(f.AddrLen)
}

// appendEndpoint appends an endpoint in the form of the maps of the kind. The endpoints of a range
// have one common port or no port: see [SetPorts] and [SetShifts].
func (k *Kind) appendEndpoint(b []byte, ep netip.AddrPort) []byte {
	if k.isRange() {
		return nft.AppendAddr(b, ep.Addr())
	}
	return nft.AppendEndpoint(b, ep)
}

// endpointFields lists the fields of an endpoint in the maps of the kind.
func (k *Kind) endpointFields(f *nft.Family) []nft.Field {
	if k.isRange() {
		return []nft.Field{f.Addr}
	}
	return []nft.Field{f.Addr, nft.FieldPort}
}

// PrefixOf returns the beginning of the names of the chains and maps for packets to a frontend of a
// kind.
func PrefixOf(k *Kind, outside bool) string {
	if outside {
		return k.outside
	}
	return k.Prefix
}

// Sets of a kind. The constants are the ends of their names.
const (
	setReject       = "-reject"
	setDrop         = "-drop"
	SetSplit        = "-split"
	setMasqAll      = "-masquerade-all"
	SetMasqNotPods  = "-masquerade-not-pods"
	setMasqHost     = "-masquerade-host"
	SetMasqIPs      = "-masquerade-ips"
	SetAffinity     = "-affinity" // followed by the name of an affinity
	SetOver         = "-over-"    // followed by a number of slots
	SetExternalOver = "-external-over-"
	SetEndpoints    = "-endpoints"
)

// Sets that belong to no kind.
const (
	SetSettings   = "settings"
	SetClusterIPs = "cluster-ips"
	SetHairpins   = "hairpins"
	// SetRangeAddresses contains the addresses with ranges.
	SetRangeAddresses = "range-addresses"
	setRestricted     = "restricted"
	setSources        = "sources"
)

// Sets of the kinds of ranges. The constants are the ends of their names.
const (
	SetToPort = "-to-port" // ranges whose packets do not keep their ports
	SetPorts  = "-ports"   // the port of all endpoints of a range
	SetShifts = "-shifts"  // the port of the endpoints for each port of a range
)

// SetRestricted is the name of the set of frontends of the kind that have source ranges, and
// SetSources the name of the set of these ranges.
func (k *Kind) SetRestricted() string { return k.rangePrefix() + setRestricted }
func (k *Kind) SetSources() string    { return k.rangePrefix() + setSources }

func (k *Kind) rangePrefix() string {
	if k == KindRange {
		return "range-"
	}
	return ""
}

// AddressSets are the sets of addresses.
var AddressSets = [2]string{SetClusterIPs, SetHairpins}

// IsAnonymous reports whether a set or chain belongs to a rule. The kernel chooses the names of
// such objects.
func IsAnonymous(name string) bool { return strings.HasPrefix(name, "__") }
