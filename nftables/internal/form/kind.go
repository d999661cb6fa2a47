package form

import (
	"strings"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/servicemodel"
)

// Feature is a feature that some services use, or a set of features.
type Feature uint8

// The features. The first ones are the ways in which schedulers other than random choose endpoints.
const (
	InTurn          Feature = 1 << iota // by a counter
	ByHash                              // by a hash, among the slots
	ByMaglev                            // by a hash, in a table of Maglev
	StickyNodePorts                     // some node port has session affinity
	SourceRanges                        // some service restricts sources
	SplitPools                          // outside clients or the host are separate for some service
	NotFromPods                         // some frontend is masqueraded unless from a pod
	LargePools                          // some pool is beyond smallClasses

	AtRandom Feature = 0
	Ways             = InTurn | ByHash | ByMaglev
)

// WayNames begin the names of the maps and chains for a way.
var WayNames = [...]string{InTurn: "-rr", ByHash: "-sh", ByMaglev: "-mh"}

// external is in the names of sets and chains for clients outside.
const external = "-external"

// Kind is one of the two ways by which packets reach frontends. The names of the sets and chains of
// a kind begin alike.
type Kind struct {
	Prefix   string // "service"
	outside  string // the prefix for clients outside that have endpoints of their own
	Registry string // the set of all frontends of the kind
	chain    string // the chain for their packets
	// noEndpoints is the chain for new packets without an endpoint.
	noEndpoints string
	// slotMaps are the names of the maps with the slots of pools, by way. outsideSlotMaps are those
	// for clients outside.
	slotMaps, outsideSlotMaps [len(WayNames)]string
}

// The kinds: by the addresses of services, and by node ports.
var (
	KindService  = newKind("service", "no-endpoints")
	KindNodePort = newKind("nodeport", "nodeport-no-endpoints")
	Kinds        = [2]*Kind{KindService, KindNodePort}
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
	if k.NodePort() {
		return KindNodePort
	}
	return KindService
}

// Key lists the fields in the key of a frontend of the kind.
func (k *Kind) Key(f *nft.Family) []nft.Field { return f.FrontendFields(k == KindNodePort) }

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
	SetRestricted = "restricted"
	SetSources    = "sources"
)

// AddressSets are the sets of addresses.
var AddressSets = [2]string{SetClusterIPs, SetHairpins}

// IsAnonymous reports whether a set or chain belongs to a rule. The kernel names these.
func IsAnonymous(name string) bool { return strings.HasPrefix(name, "__") }

func endpointFields(f *nft.Family) []nft.Field { return []nft.Field{f.Addr, nft.FieldPort} }
