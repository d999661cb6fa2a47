package nftables

import (
	"slices"
	"strings"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/servicemodel"
)

// layoutNumber is the number of the layout, and part of the settings: see package settings. A
// change increments it if the same sets and chains then mean something else.
const layoutNumber = 4

// kind is one of the two ways by which packets reach frontends. The names of the sets and chains of
// a kind begin alike.
type kind struct {
	prefix   string // "service"
	outside  string // the prefix for clients outside that have endpoints of their own
	registry string // the set of all frontends of the kind
	chain    string // the chain for their packets
	// noEndpoints is the chain for new packets without an endpoint.
	noEndpoints string
	// slotMaps are the names of the maps with the slots of pools, by way. outsideSlotMaps are those
	// for clients outside.
	slotMaps, outsideSlotMaps [len(wayNames)]string
}

var (
	kindService  = newKind("service", "no-endpoints")
	kindNodePort = newKind("nodeport", "nodeport-no-endpoints")
	kinds        = [2]*kind{kindService, kindNodePort}
)

func newKind(prefix, noEndpoints string) *kind {
	k := &kind{prefix: prefix, outside: prefix + external, registry: prefix + "s",
		chain: prefix + "s", noEndpoints: noEndpoints}
	for w, name := range wayNames {
		k.slotMaps[w] = k.prefix + name + setEndpoints
		k.outsideSlotMaps[w] = k.outside + name + setEndpoints
	}
	return k
}

// slotMap is the name of the map with the slots of pools of a way.
func (k *kind) slotMap(outside bool, way feature) string {
	if outside {
		return k.outsideSlotMaps[way]
	}
	return k.slotMaps[way]
}

func kindOf(k servicemodel.FrontendKey) *kind {
	if k.NodePort() {
		return kindNodePort
	}
	return kindService
}

// Sets of a kind. The constants are the ends of their names.
const (
	setReject       = "-reject"
	setDrop         = "-drop"
	setSplit        = "-split"
	setMasqAll      = "-masquerade-all"
	setMasqNotPods  = "-masquerade-not-pods"
	setMasqHost     = "-masquerade-host"
	setAffinity     = "-affinity" // followed by the name of an affinity
	setOver         = "-over-"    // followed by a number of slots
	setExternalOver = "-external-over-"
	setEndpoints    = "-endpoints"
)

// Sets that belong to no kind.
const (
	setSettings   = "settings"
	setClusterIPs = "cluster-ips"
	setHairpins   = "hairpins"
	setRestricted = "restricted"
	setSources    = "sources"
)

// addressSets are the sets of addresses.
var addressSets = [2]string{setClusterIPs, setHairpins}

// Clients are remembered in groups of maps, each with affinityMaps maps. A hash of the client's
// address selects the map. When an endpoint leaves, all maps are read, and other commits wait for
// one map at most. The kernel walks a map from its beginning for each 32 KiB that it returns
// (nft_rhash_walk), so many small maps are also read several times faster than one large map.
const (
	affinityMaps = 64
	// seed of the hash: the rules that look up and the rules that learn must use the same
	affinitySeed = 0x6b6c62
	// affinitySize is how many clients one map remembers at once, all services together. If a map
	// is full, further clients are not remembered. Without a size, the kernel would stop at 65,535
	// (nft_dynset.c).
	affinitySize = 1 << 12
)

// isAffinityMap reports whether a set is a map of remembered clients.
func isAffinityMap(name string) bool { return strings.HasPrefix(name, "affinity-") }

// isAnonymous reports whether a set or chain belongs to a rule. The kernel names these.
func isAnonymous(name string) bool { return strings.HasPrefix(name, "__") }

// feature is a feature that some services use, or a set of features.
type feature uint8

// The features. The first ones are the ways in which schedulers other than random choose endpoints.
const (
	inTurn          feature = 1 << iota // by a counter
	byHash                              // by a hash, among the slots
	byMaglev                            // by a hash, in a table of Maglev
	stickyNodePorts                     // some node port has session affinity
	sourceRanges                        // some service restricts sources
	splitPools                          // outside clients or the host are separate for some service
	notFromPods                         // some frontend is masqueraded unless from a pod
	largePools                          // some pool is beyond smallClasses

	atRandom feature = 0
	ways             = inTurn | byHash | byMaglev
)

// wayNames begin the names of the maps and chains for a way.
var wayNames = [...]string{inTurn: "-rr", byHash: "-sh", byMaglev: "-mh"}

// shape is the part of a table's program that depends on the services: which features they use. The
// objects of a feature exist only if some service uses it.
type shape struct {
	affinity []affinity // the kinds of session affinity in use, sorted
	uses     feature
	leaves   []string // the chains that the maps of verdicts may lead to, sorted
}

// has reports whether any of the features is in use.
func (s *shape) has(f feature) bool { return s.uses&f != 0 }

// classes is how many classes the sets of the shape can tell.
func (s *shape) classes() int {
	if s.has(largePools) {
		return allClasses
	}
	return smallClasses
}

// add adds the features of o to s.
func (s *shape) add(o *shape) {
	for _, a := range o.affinity {
		s.affinity = insert(s.affinity, a, affinity.compare)
	}
	s.uses |= o.uses
}

// addFrontend adds the features that a frontend of t and its pools need to s.
func (s *shape) addFrontend(t *servicemodel.Table, fe *servicemodel.Frontend) {
	if fe.Affinity > 0 {
		s.affinity = insert(s.affinity, affinityOf(fe), affinity.compare)
		if fe.Key.NodePort() {
			s.uses |= stickyNodePorts
		}
	}
	if fe.Sources != nil {
		s.uses |= sourceRanges
	}
	switch fe.Masquerade {
	case servicemodel.FromHost | servicemodel.FromOutside:
		s.uses |= notFromPods
	case servicemodel.FromHost:
		s.uses |= splitPools
	}
	if fe.External != fe.Internal {
		s.uses |= splitPools
	}
	internal, external := t.PoolsOf(fe)
	s.addPool(internal)
	s.addPool(external)
}

// addPool adds the features that a pool needs to s. A nil pool needs none.
func (s *shape) addPool(p *servicemodel.Pool) {
	if p == nil {
		return
	}
	w := wayOf(p)
	if s.uses |= w; w == atRandom && classOf(slotCount(p)) >= smallClasses {
		s.uses |= largePools
	}
}

func (s *shape) equal(o *shape) bool {
	return s.uses == o.uses && slices.Equal(s.affinity, o.affinity) &&
		slices.Equal(s.leaves, o.leaves)
}

// insert adds v to a sorted list unless it is there.
func insert[T any](sorted []T, v T, compare func(a, b T) int) []T {
	i, ok := slices.BinarySearchFunc(sorted, v, compare)
	if ok {
		return sorted
	}
	return slices.Insert(sorted, i, v)
}

// setsOf lists the sets of a table. The sets that are used most come first, because the kernel
// finds a set by walking the list (nft_set_lookup in nf_tables_api.c). The set of the version is
// not in the list, because its name changes.
func setsOf(f *nft.Family, s *shape) []*nft.Set {
	var l []*nft.Set
	for _, k := range kinds {
		l = append(l, k.endpointMaps(f, s)...)
	}
	for _, k := range kinds {
		l = append(l, &nft.Set{Name: k.registry, Key: k.key(f), Comment: "every frontend"})
	}
	l = append(l,
		&nft.Set{Name: setClusterIPs, Key: []nft.Field{f.Addr},
			Comment: "other ports of these are rejected"},
		&nft.Set{Name: setHairpins, Key: []nft.Field{f.Addr, f.Addr},
			Comment: "endpoints that may reach themselves"})
	for _, k := range kinds {
		l = append(l, k.memberships(f, s)...)
	}
	l = append(l, ownerSets(f)...)
	l = append(l, affinityMapsOf(f, s)...)
	if s.has(sourceRanges) {
		l = append(l,
			&nft.Set{Name: setRestricted, Key: kindService.key(f),
				Comment: "only sources may connect"},
			&nft.Set{Name: setSources, Key: append(kindService.key(f), f.Addr),
				Flags:   nft.SetInterval | nft.SetConcat,
				Comment: "who may connect to the restricted"})
	}
	return append(l, &nft.Set{Name: setSettings, Key: []nft.Field{nft.FieldMark},
		Comment: "what the rules were made for"})
}

func endpointFields(f *nft.Family) []nft.Field { return []nft.Field{f.Addr, nft.FieldPort} }

// key lists the fields in the key of a frontend of the kind.
func (k *kind) key(f *nft.Family) []nft.Field { return f.FrontendFields(k == kindNodePort) }

// endpointMaps lists the maps from slots to endpoints.
func (k *kind) endpointMaps(f *nft.Family, s *shape) (l []*nft.Set) {
	for _, outside := range []bool{false, true} {
		if outside && !s.has(splitPools) {
			continue
		}
		for w, name := range wayNames {
			if w > 0 && (name == "" || !s.has(feature(w))) {
				continue
			}
			comment := "endpoints, by slot"
			if outside {
				comment = "endpoints for outside clients only, by slot"
			}
			l = append(l, &nft.Set{Name: k.slotMap(outside, feature(w)),
				Key: append(k.key(f), nft.FieldSlot), Data: endpointFields(f), Flags: nft.SetMap,
				Typeof: true, Comment: comment})
		}
	}
	return l
}

// memberships lists the sets that say what happens to the packets of their frontends.
func (k *kind) memberships(f *nft.Family, s *shape) []*nft.Set {
	var l []*nft.Set
	add := func(name, comment string) {
		l = append(l, &nft.Set{Name: name, Key: k.key(f), Comment: comment})
	}
	add(k.prefix+setMasqAll, "masqueraded always")
	if s.has(notFromPods) {
		add(k.prefix+setMasqNotPods, "masqueraded unless from a pod")
	}
	add(k.prefix+setReject, "no endpoint anywhere")
	add(k.prefix+setDrop, "no endpoint for this traffic here")
	for class := range s.classes() - 1 {
		add(k.prefix+overName(setOver, class), "")
	}
	if s.has(splitPools) {
		add(k.prefix+setMasqHost, "masqueraded from this host")
		add(k.prefix+setSplit, "outside clients have endpoints of their own, or none")
		for class := range s.classes() - 1 {
			add(k.prefix+overName(setExternalOver, class), "")
		}
	}
	whole := false
	for _, a := range s.affinityOf(k) {
		add(affinityName(k, a), "")
		if a.whole {
			whole = true
			last := l[len(l)-1]
			last.Data, last.Flags, last.Comment = []nft.Field{f.Addr}, nft.SetMap, "their services"
		}
	}
	for _, outside := range []bool{false, true} {
		if whole && (s.has(splitPools) || !outside) {
			l = append(l, &nft.Set{Name: prefixOf(k, outside) + setByAddress,
				Key: append(k.key(f), f.Addr), Data: endpointFields(f), Flags: nft.SetMap,
				Comment: "endpoints of whole services, by address"})
		}
	}
	for _, outside := range []bool{false, true} {
		if s.has(ways) && (s.has(splitPools) || !outside) {
			add(prefixOf(k, outside)+setScheduled, "how to choose, unless at random")
			last := l[len(l)-1]
			last.Data, last.Flags = []nft.Field{nft.FieldVerdict}, nft.SetMap
		}
	}
	return l
}

// affinityOf lists the kinds of session affinity that frontends of a kind may have.
func (s *shape) affinityOf(k *kind) []affinity {
	if k == kindNodePort && !s.has(stickyNodePorts) {
		return nil
	}
	return s.affinity
}

func affinityName(k *kind, a affinity) string { return k.prefix + setAffinity + a.name() }

// Priorities (enum nf_ip_hook_priorities in include/uapi/linux/netfilter_ipv4.h). Source ranges are
// checked just before DNAT, while the destination is still the service's. Clients are learnt just
// after DNAT.
const (
	prioSources = prioDNAT - 10
	prioDNAT    = -100
	prioLearn   = prioDNAT + 1
	prioFilter  = 0
	prioSNAT    = 100
)
