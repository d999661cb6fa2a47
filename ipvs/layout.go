package ipvs

import (
	"hash/fnv"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/servicemodel"
)

// layoutNumber is the number of the layout, which the settings have: see package settings. It is
// counted up by a change after which what is in the kernel means something else, though sets and
// chains are the same.
const layoutNumber = 1

// Sets of a kind ("service", "nodeport"), by the rest of their names; the registry is the kind and
// an "s".
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

// Sets that do not come once for each kind.
const (
	setSettings   = "settings"
	setClusterIPs = "cluster-ips"
	setHairpins   = "hairpins"
	setNodeAddrs  = "node-addresses"
	setRestricted = "service-restricted"
	setRouted     = "service-routed"
	setSources    = "sources"
)

// Kinds of frontends: at an address and port, and at a port of the node's addresses.
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

// tableSets are the sets of the companion tables, in the order of nft.Families.
var tableSets = [2][]*nft.Set{newSets(nft.Families[0]), newSets(nft.Families[1])}

// setsOf lists the sets of a companion table. They are the same whatever the services are, and must
// not be modified.
func setsOf(f *nft.Family) []*nft.Set {
	if f == nft.IPv4 {
		return tableSets[0]
	}
	return tableSets[1]
}

// newSets makes the sets of a companion table.
func newSets(f *nft.Family) []*nft.Set {
	service := f.FrontendFields(false)
	var l []*nft.Set
	for _, k := range kinds {
		key := f.FrontendFields(k == kindNodePort)
		l = append(l, &nft.Set{Name: k + "s", Key: key})
		for _, rest := range []string{setReject, setDrop, setSplit, setExtReject, setExtDrop,
			setMasqAll, setMasqNotPod, setMasqHost} {
			l = append(l, &nft.Set{Name: k + rest, Key: key})
		}
		l = append(l, &nft.Set{Name: k + setMarks, Key: key,
			Data: []nft.Field{nft.FieldMark}, Flags: nft.SetMap})
	}
	if f == nft.IPv4 {
		l = append(l, versionSet)
	}
	return append(l,
		&nft.Set{Name: setRestricted, Key: service},
		&nft.Set{Name: setRouted, Key: service},
		&nft.Set{Name: setSources, Key: append(f.FrontendFields(false), f.Addr),
			Flags: nft.SetInterval | nft.SetConcat},
		&nft.Set{Name: setClusterIPs, Key: []nft.Field{f.Addr}},
		&nft.Set{Name: setHairpins, Key: []nft.Field{f.Addr, f.Addr}},
		&nft.Set{Name: setNodeAddrs, Key: []nft.Field{f.Addr}},
		&nft.Set{Name: setSettings, Key: []nft.Field{nft.FieldMark}})
}

// Packet marks. A packet to the address of a service carries steerBit, so that it is delivered to
// this machine, where IPVS finds it, although no device has the address. Where pods and the host
// have other endpoints than clients outside, their packets carry all bits of splitMarks and a
// number: the mark of a virtual server by mark. Both are taken away when IPVS has seen the packet.
// What IPVS sends on unchanged, by direct routing, still goes to the address of the service:
// sentMark keeps it from being led to IPVS again, until it has left.
const (
	steerBit   uint32 = 1 << 30
	splitMarks uint32 = 3 << 30 // and a number from 1 on below
	sentMark   uint32 = 2 << 30 // in these two bits
)

// firstMark returns the mark before the first one that an instance gives to its frontends. Each
// instance has a quarter of a million numbers of its own, as far as the twelve bits of its name's
// hash differ; a number that a virtual server of anybody else has is left out anyway.
func (pl *planner) firstMark() uint32 { return splitMarks | pl.instance>>20<<18 }

// rulePriority is that of the rules that lead marked packets to the routing table of the instance,
// behind the one of the table of local addresses.
const rulePriority = 107

// instanceFlag is the mark of an instance in the high half of a virtual server's flags: never zero.
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

// instanceNumber is the number by which the instance's routing table, device and addresses are
// known.
func instanceNumber(instance uint32) uint32 { return 0x6b000000 | instance>>16 }
