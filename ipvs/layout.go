package ipvs

import (
	"github.com/kernlb/kernlb/internal/nftwire"
	"github.com/kernlb/kernlb/servicemodel"
)

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

// setsOf lists the sets of a companion table. They are the same whatever the services are.
func setsOf(f *nftwire.Family) []*nftwire.Set {
	service := []nftwire.Field{f.Addr, nftwire.FieldProto, nftwire.FieldPort}
	keys := map[string][]nftwire.Field{kindService: service, kindNodePort: service[1:]}
	var l []*nftwire.Set
	for _, k := range kinds {
		l = append(l, &nftwire.Set{Name: k + "s", Key: keys[k]})
		for _, rest := range []string{setReject, setDrop, setSplit, setExtReject, setExtDrop,
			setMasqAll, setMasqNotPod, setMasqHost} {
			l = append(l, &nftwire.Set{Name: k + rest, Key: keys[k]})
		}
		l = append(l, &nftwire.Set{Name: k + setMarks, Key: keys[k],
			Data: []nftwire.Field{nftwire.FieldMark}, Flags: nftwire.SetMap})
	}
	if f == nftwire.IPv4 {
		l = append(l, versionSet)
	}
	return append(l,
		&nftwire.Set{Name: setRestricted, Key: service},
		&nftwire.Set{Name: setRouted, Key: service},
		&nftwire.Set{Name: setSources, Key: append(service[:3:3], f.Addr),
			Flags: nftwire.SetInterval | nftwire.SetConcat},
		&nftwire.Set{Name: setClusterIPs, Key: []nftwire.Field{f.Addr}},
		&nftwire.Set{Name: setHairpins, Key: []nftwire.Field{f.Addr, f.Addr}},
		&nftwire.Set{Name: setNodeAddrs, Key: []nftwire.Field{f.Addr}},
		&nftwire.Set{Name: setSettings, Key: []nftwire.Field{nftwire.FieldMark}})
}

// Packet marks. A packet to the address of a service carries steerBit, so that it is delivered to
// this machine, where IPVS finds it, though the address is nobody's. Where pods and the host have
// other endpoints than clients outside, their packets carry a mark of splitMarks in full: that of a
// virtual server by mark. Both are taken away when IPVS has seen the packet. What IPVS sends on
// unchanged, by direct routing, still goes to the address of the service: sentMark keeps it from
// being led to IPVS again, until it has left.
const (
	steerBit   uint32 = 1 << 30
	splitMarks uint32 = 3 << 30 // and a number from 1 on below
	sentMark   uint32 = 2 << 30 // in these two bits
)
