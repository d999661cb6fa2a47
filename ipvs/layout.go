package ipvs

import (
	"hash/fnv"
	"slices"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/servicemodel"
)

// layoutNumber is the number of the layout, and part of the settings: see package settings. A
// change that gives the same sets and chains a new meaning increments it.
const layoutNumber = 2

// Sets of a kind ("service", "nodeport"). The constants are the ends of their names. The registry's
// name is the kind and an "s".
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
	setMasqIPs    = "-masquerade-ips"
)

// verdictSets are the sets of a kind that contain nothing but keys of frontends.
var verdictSets = []string{setReject, setDrop, setSplit, setExtReject, setExtDrop, setMasqAll,
	setMasqNotPod, setMasqHost}

// Sets that do not belong to a kind.
const (
	setSettings   = "settings"
	setClusterIPs = "cluster-ips"
	setHairpins   = "hairpins"
	setNodeAddrs  = "node-addresses"
	setRestricted = "service-restricted"
	setRouted     = "service-routed"
	setSources    = "sources"
)

// Kinds of frontends: at an address and port, at a port of the node's addresses, and at a range of
// ports of an address.
const (
	kindService  = "service"
	kindNodePort = "nodeport"
	kindRange    = "range"
)

var kinds = [2]string{kindService, kindNodePort} // without ranges, see ranges.go

// shape describes the parts of a companion table that some frontend needs: bit n is set if the
// table has ranges with blocks of n leading bits. A table gets sets and chains when it first needs
// them, and keeps them until it is recreated for another reason.
type shape uint32

const (
	allBlocks    shape = 1<<17 - 1 // from 0 to 16 bits
	givenSources shape = 1 << 17   // some service gives the source of masqueraded connections
)

// shapeOf returns the shape of a table that was read.
func shapeOf(raw *rawTable) (s shape) {
	for _, b := range allBlocks.blockBits() {
		if _, has := raw.sets[blockMap(b)]; has {
			s |= 1 << b
		}
	}

	if _, has := raw.sets[kindService+setMasqIPs]; has {
		s |= givenSources
	}
	return s
}

func (s shape) hasRanges() bool { return s&allBlocks != 0 }

// kinds are the kinds of frontends that a table has.
func (s shape) kinds() []string {
	if s.hasRanges() {
		return append(kinds[:], kindRange)
	}
	return kinds[:]
}

// shape returns the smallest shape of a table that contains the record.
func (r *record) shape() (s shape) {
	if r.at != nil {
		for _, b := range r.at.blocks {
			s |= 1 << b.Bits
		}
	}

	if r.fe.MasqueradeIP.IsValid() {
		s |= givenSources
	}
	return s
}

// growShape adds the needs of new records to the shape of a family's table.
func (p *plan) growShape(family int, keys []servicemodel.FrontendKey) {
	for _, k := range keys {
		if r := p.records[k]; r != nil && nft.FamilyIndex(k.Addr) == family {
			p.shapes[family] |= r.shape()
		}
	}
}

// tableSets are the sets of the companion tables, in the order of nft.Families.
var tableSets = [2][]*nft.Set{newSets(nft.Families[0]), newSets(nft.Families[1])}

// settingsSet is the set with the settings and the records of tunables.
var settingsSet = &nft.Set{Name: setSettings, Key: []nft.Field{nft.FieldMark}}

// tableOf returns the sets and chains of the companion table of a family, and whether there is a
// table.
func tableOf(f *nft.Family, r servicemodel.Rules, mark uint32, s shape) (sets []*nft.Set,
	program nft.Program, exists bool) {
	switch {
	case f.ServedBy(&r):
		return setsOf(f, s), newProgram(f, r, mark, s), true
	case hasTable(f, &r):
		return []*nft.Set{versionSet, settingsSet}, nil, true
	}

	return nil, nil, false
}

// hasTable reports whether there is a companion table of a family. A family that the node does not
// serve has no table ([servicemodel.Node.OnlyFamily]), except that the table ip always has the
// version and the settings. Without a chain, the table has no hook, so packets do not pass it, and
// the kernel does not track connections because of it.
func hasTable(f *nft.Family, r *servicemodel.Rules) bool {
	return f == nft.IPv4 || f.ServedBy(r)
}

// setsOf lists the sets of a companion table of a family that the node serves. They depend on the
// services only by the shape, and must not be modified.
func setsOf(f *nft.Family, s shape) []*nft.Set {
	sets := tableSets[0]
	if f == nft.IPv6 {
		sets = tableSets[1]
	}
	if s == 0 {
		return sets
	}
	sets = slices.Clone(sets)
	if s.hasRanges() {
		sets = append(sets, rangeSets(f, s)...)
	}
	if s&givenSources == 0 {
		return sets
	}
	for _, k := range s.kinds() {
		key := f.FrontendFields(k == kindNodePort)
		if k == kindRange {
			key = []nft.Field{nft.FieldMark}
		}
		sets = append(sets, &nft.Set{Name: k + setMasqIPs, Key: key, Data: []nft.Field{f.Addr},
			Flags: nft.SetMap})
	}

	return sets
}

// newSets builds the sets of a companion table.
func newSets(f *nft.Family) []*nft.Set {
	service := f.FrontendFields(false)
	var l []*nft.Set
	for _, k := range kinds {
		key := f.FrontendFields(k == kindNodePort)
		l = append(l, &nft.Set{Name: k + "s", Key: key})
		for _, rest := range verdictSets {
			l = append(l, &nft.Set{Name: k + rest, Key: key})
		}

		l = append(l, &nft.Set{Name: k + setMarks, Key: key,
			Data: []nft.Field{nft.FieldMark}, Flags: nft.SetMap})
	}

	if f == nft.IPv4 {
		l = append(l, versionSet)
	}
	return append(l, &nft.Set{Name: setRestricted, Key: service},
		&nft.Set{Name: setRouted, Key: service},
		&nft.Set{Name: setSources, Key: append(f.FrontendFields(false), f.Addr),
			Flags: nft.SetInterval | nft.SetConcat},
		&nft.Set{Name: setClusterIPs, Key: []nft.Field{f.Addr}},
		&nft.Set{Name: setHairpins, Key: []nft.Field{f.Addr, f.Addr}},
		&nft.Set{Name: setNodeAddrs, Key: []nft.Field{f.Addr}},
		settingsSet)
}

// Packet marks. The twelve upper bits of a mark, [Config.Mark], identify the instance. The next two
// bits are the state of the packet. A packet with other upper bits is not ours, and its mark is
// never changed.
//
// - 00: a packet to the address of a service. It is delivered to this machine, where IPVS receives
// it. The lower bits belong to other programs and stay.
// - 01: the same, for a range of ports, or for a service whose pods and host have endpoints other
// than clients outside. The lower bits are the number of the virtual server, which IPVS finds by
// the whole mark.
// - 10: a packet that IPVS has sent on unchanged. Its destination is still the address of the
// service, and it must not be delivered to IPVS again until it has left.
// - 11: in a table with ranges, a packet of 01 that IPVS has sent on translated. The number decides
// whether it is masqueraded.
//
// All instances set the two highest bits in their marks, so each leaves the packets of the other
// instances alone.
const (
	allMarks  uint32 = 3 << 30
	ownMask   uint32 = 0xfff << 20
	splitMark uint32 = 1 << 18
	sentMark  uint32 = 2 << 18
	kindMask         = ownMask | splitMark | sentMark
	ledMask          = ownMask | sentMark // of marks that are delivered to this machine
)

// rulePriority is the priority of the rules that send marked packets to the routing table of the
// instance. It is behind the rule of the table of local addresses.
const rulePriority = 107

// instanceFlag identifies an instance in the high half of a virtual server's flags. It is never
// zero.
func instanceFlag(table string) uint32 {
	h := fnv.New32a()
	h.Write([]byte(table))
	v := h.Sum32()
	v = (v ^ v<<16) & 0xffff0000
	if v == 0 {
		v = 0x6b6c0000
	}
	return v
}

// instanceNumber identifies the instance's routing table, device and addresses.
func instanceNumber(instance uint32) uint32 { return numberBase | instance>>16 }

// numberBase is the high bits of all instances' numbers.
const numberBase = 0x6b000000

// isInstanceNumber reports whether n is the number of some instance.
func isInstanceNumber(n uint32) bool { return n&0xffff0000 == numberBase }
