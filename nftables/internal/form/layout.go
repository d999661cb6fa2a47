package form

import (
	"slices"

	"github.com/kernlb/kernlb/internal/nft"
)

// SetsOf lists the sets of a table. The most used sets come first, because the kernel finds a set
// by walking the list (nft_set_lookup in nf_tables_api.c). The set of the version is not in the
// list, because its name changes.
func SetsOf(f *nft.Family, s *Shape) []*nft.Set {
	var l []*nft.Set
	for _, k := range s.Kinds() {
		l = append(l, k.EndpointMaps(f, s)...)
	}
	l = append(l, rangeSets(f, s)...)
	for _, k := range s.Kinds() {
		l = append(l, &nft.Set{Name: k.Registry, Key: k.Key(f), Comment: "every frontend"})
	}
	l = append(l,
		&nft.Set{Name: SetClusterIPs, Key: []nft.Field{f.Addr},
			Comment: "other ports of these are rejected"},
		&nft.Set{Name: SetHairpins, Key: []nft.Field{f.Addr, f.Addr},
			Comment: "endpoints that may reach themselves"})
	for _, k := range s.Kinds() {
		l = append(l, k.Memberships(f, s)...)
	}
	l = append(l, OwnerSets(f, s)...)
	l = append(l, AffinityMapsOf(f, s)...)
	for _, k := range s.Kinds() {
		if !k.HasAddress() || !s.Has(SourceRanges) {
			continue
		}
		l = append(l,
			&nft.Set{Name: k.SetRestricted(), Key: k.Key(f), Comment: "only sources may connect"},
			&nft.Set{Name: k.SetSources(), Key: append(k.Key(f), f.Addr),
				Flags:   nft.SetInterval | nft.SetConcat,
				Comment: "who may connect to the restricted"})
	}

	return append(l, &nft.Set{Name: SetSettings, Key: []nft.Field{nft.FieldMark},
		Comment: "what the rules were made for"})
}

// EndpointMaps lists the maps from slots to endpoints.
func (k *Kind) EndpointMaps(f *nft.Family, s *Shape) (l []*nft.Set) {
	for _, outside := range []bool{false, true} {
		if outside && !s.Has(SplitPools) {
			continue
		}
		for w, name := range WayNames {
			if w > 0 && (name == "" || !s.Has(Feature(w))) {
				continue
			}
			comment := "endpoints, by slot"
			if outside {
				comment = "endpoints for outside clients only, by slot"
			}
			l = append(l, &nft.Set{Name: k.SlotMap(outside, Feature(w)),
				Key: append(k.Key(f), nft.FieldSlot), Data: k.endpointFields(f), Flags: nft.SetMap,
				Typeof: true, Comment: comment})
		}
	}

	return l
}

// Memberships lists the sets that determine what happens to packets to their frontends.
func (k *Kind) Memberships(f *nft.Family, s *Shape) []*nft.Set {
	var l []*nft.Set
	add := func(name, comment string) {
		l = append(l, &nft.Set{Name: name, Key: k.Key(f), Comment: comment})
	}
	add(k.Prefix+setMasqAll, "masqueraded always")
	if s.Has(NotFromPods) {
		add(k.Prefix+SetMasqNotPods, "masqueraded unless from a pod")
	}
	if s.Has(MasqueradeIPs) {
		add(k.Prefix+SetMasqIPs, "masqueraded as these")
		last := l[len(l)-1]
		last.Data, last.Flags = []nft.Field{f.Addr}, nft.SetMap
	}

	add(k.Prefix+setReject, "no endpoint anywhere")
	add(k.Prefix+setDrop, "no endpoint for this traffic here")
	for class := range s.classes() - 1 {
		add(k.Prefix+OverName(SetOver, class), "")
	}
	if s.Has(SplitPools) {
		add(k.Prefix+setMasqHost, "masqueraded from this host")
		add(k.Prefix+SetSplit, "outside clients have endpoints of their own, or none")
		for class := range s.classes() - 1 {
			add(k.Prefix+OverName(SetExternalOver, class), "")
		}
	}

	whole := false
	for _, a := range s.affinityOf(k) {
		add(affinityName(k, a), "")
		if a.Whole {
			whole = true
			last := l[len(l)-1]
			last.Data, last.Flags, last.Comment = []nft.Field{f.Addr}, nft.SetMap, "their services"
		}
	}

	for _, outside := range []bool{false, true} {
		if whole && (s.Has(SplitPools) || !outside) {
			l = append(l, &nft.Set{Name: PrefixOf(k, outside) + setByAddress,
				Key: append(k.Key(f), f.Addr), Data: k.endpointFields(f), Flags: nft.SetMap,
				Comment: "endpoints of whole services, by address"})
		}
	}

	for _, outside := range []bool{false, true} {
		if s.Has(Ways) && (s.Has(SplitPools) || !outside) {
			add(PrefixOf(k, outside)+SetScheduled, "how to choose, unless at random")
			last := l[len(l)-1]
			last.Data, last.Flags = []nft.Field{nft.FieldVerdict}, nft.SetMap
		}
	}

	return l
}

// AffinityMapsOf returns the maps of remembered clients that a shape needs.
func AffinityMapsOf(f *nft.Family, s *Shape) (l []*nft.Set) {
	for _, group := range s.AffinityGroups() {
		key := append([]nft.Field{f.Addr}, KindService.Key(f)...)
		data := KindService.endpointFields(f)
		switch group {
		case GroupServices:
			key, data = []nft.Field{f.Addr, f.Addr}, []nft.Field{f.Addr}
		case groupRanges:
			key = []nft.Field{f.Addr, f.Addr, nft.FieldProto, f.Addr}
			data = KindRange.endpointFields(f)
			if f == nft.IPv6 {
				key = slices.Delete(key, 2, 3)
			}
		}

		for i := range AffinityMaps {
			l = append(l, &nft.Set{Name: AffinityMap(group, i), Key: key, Data: data,
				Size: AffinitySize, Flags: nft.SetMap | nft.SetTimeout | nft.SetEval,
				Comment: "what clients were given"})
		}
	}

	return l
}
