package nftables

import (
	"slices"
	"strconv"
	"strings"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/servicemodel"
)

// layoutNumber is the number of the layout, which the settings have: see package settings. It is
// counted up by a change after which what is in the kernel means something else, though sets and
// chains are the same.
const layoutNumber = 2

// kind is one way by which packets reach frontends. Sets and chains of a kind share the beginning
// of their names.
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

// Clients are remembered in affinityMaps maps, told apart by a hash of the client's address. When
// an endpoint leaves, all of them are read, and the kernel walks a map from its beginning for each
// 32 KiB that it hands out (nft_rhash_walk): many small maps are read several times faster than one
// large map.
const (
	affinityMaps = 16
	affinitySeed = 0x6b6c62 // of the hash: rules that look up and rules that learn must agree
	// affinitySize is how many clients one map remembers at once, all services together. A full map
	// only means that further clients are not remembered. Without a size, the kernel would stop at
	// 65,535 (nft_dynset.c).
	affinitySize = 1 << 14
)

// affinityMap is the name of the i-th map of remembered clients.
func affinityMap(i int) string { return "affinity-" + strconv.Itoa(i) }

// isAffinityMap reports whether a set is one of these.
func isAffinityMap(name string) bool { return strings.HasPrefix(name, "affinity-") }

// isAnonymous reports whether a set belongs to a rule: the kernel names it.
func isAnonymous(name string) bool { return strings.HasPrefix(name, "__") }

// shape is what a table's program depends on, besides the rules: which features its services use.
// The objects that serve a feature exist only if some service uses it.
type shape struct {
	sizes    [2][2][]int // by kind, and internal or external: the numbers of slots in use, sorted
	affinity []uint32    // the affinity timeouts in use, in seconds, sorted
	sources  bool        // somebody restricts sources
}

// add adds to s what o has.
func (s *shape) add(o *shape) {
	for k := range s.sizes {
		for e := range s.sizes[k] {
			for _, n := range o.sizes[k][e] {
				s.sizes[k][e] = insert(s.sizes[k][e], n)
			}
		}
	}
	for _, t := range o.affinity {
		s.affinity = insert(s.affinity, t)
	}
	s.sources = s.sources || o.sources
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

// setsOf lists the sets of a table, those used most first: the kernel finds a set by walking the
// list (nft_set_lookup in nf_tables_api.c). The set of the version, which changes, is not among
// them.
func setsOf(f *nft.Family, s *shape) []*nft.Set {
	var l []*nft.Set
	for _, k := range kinds {
		l = append(l, k.endpointMaps(f)...)
	}
	for _, k := range kinds {
		l = append(l, &nft.Set{Name: k.registry, Key: k.key(f), Comment: "every frontend"})
	}
	l = append(l,
		&nft.Set{Name: setClusterIPs, Key: []nft.Field{f.Addr},
			Comment: "other ports of these are rejected"},
		&nft.Set{Name: setHairpins, Key: []nft.Field{f.Addr, f.Addr},
			Comment: "endpoints that may reach themselves"})
	for i, k := range kinds {
		l = append(l, k.memberships(f, s.sizes[i], s.affinity)...)
	}
	l = append(l, ownerSets(f)...)
	client := append(kindService.key(f), f.Addr)
	if len(s.affinity) > 0 {
		for i := range affinityMaps {
			l = append(l, &nft.Set{Name: affinityMap(i), Key: client, Data: endpointFields(f),
				Flags: nft.SetMap | nft.SetTimeout | nft.SetEval, Size: affinitySize,
				Comment: "the endpoint a client was given"})
		}
	}
	if s.sources {
		l = append(l,
			&nft.Set{Name: setRestricted, Key: kindService.key(f),
				Comment: "only sources may connect"},
			&nft.Set{Name: setSources, Key: client, Flags: nft.SetInterval | nft.SetConcat,
				Comment: "who may connect to the restricted"})
	}
	return append(l, &nft.Set{Name: setSettings, Key: []nft.Field{nft.FieldMark},
		Comment: "what the rules were made for"})
}

func endpointFields(f *nft.Family) []nft.Field { return []nft.Field{f.Addr, nft.FieldPort} }

// key has the fields of the key of a frontend of the kind.
func (k *kind) key(f *nft.Family) []nft.Field { return f.FrontendFields(k == kindNodePort) }

// endpointMaps lists the maps from slots to endpoints.
func (k *kind) endpointMaps(f *nft.Family) []*nft.Set {
	slots := func(name, comment string) *nft.Set {
		return &nft.Set{Name: k.prefix + name, Key: append(k.key(f), nft.FieldSlot),
			Data: endpointFields(f), Flags: nft.SetMap, Typeof: true, Comment: comment}
	}
	return []*nft.Set{
		slots(setEndpoints, "endpoints, by slot"),
		slots(setExternalEps, "endpoints for outside clients only, by slot"),
	}
}

// memberships lists the sets that say of frontends what becomes of their packets. sizes are the
// numbers of slots in use, internal and external.
func (k *kind) memberships(f *nft.Family, sizes [2][]int, affinity []uint32) []*nft.Set {
	var l []*nft.Set
	add := func(name, comment string) {
		l = append(l, &nft.Set{Name: name, Key: k.key(f), Comment: comment})
	}
	add(k.prefix+setMasqAll, "masqueraded always")
	add(k.prefix+setMasqNotPods, "masqueraded unless from a pod")
	add(k.prefix+setMasqHost, "masqueraded from this host")
	add(k.prefix+setSplit, "outside clients have endpoints of their own, or none")
	add(k.prefix+setReject, "no endpoint anywhere")
	add(k.prefix+setDrop, "no endpoint for this traffic here")
	for i, name := range []string{setSize, setExternalSize} {
		for _, n := range sizes[i] {
			add(k.prefix+name+strconv.Itoa(n), "")
		}
	}
	for _, t := range affinity {
		add(affinityName(k, t), "")
	}
	return l
}

func affinityName(k *kind, seconds uint32) string {
	return k.prefix + setAffinity + strconv.FormatUint(uint64(seconds), 10)
}

// Priorities (enum nf_ip_hook_priorities in include/uapi/linux/netfilter_ipv4.h). Source ranges are
// checked just before DNAT, while the destination is still the service's; clients are learnt just
// after it.
const (
	prioSources = prioDNAT - 10
	prioDNAT    = -100
	prioLearn   = prioDNAT + 1
	prioFilter  = 0
	prioSNAT    = 100
)
