package servicemodel

import (
	"cmp"
	"encoding/binary"
	"net/netip"

	"github.com/kernlb/kernlb/servicemodel/internal/pmap"
)

// The hashers of the keys of states and tables.
type (
	nameHash  struct{}
	portHash  struct{}
	keyHash   struct{}
	claimHash struct{}
	poolHash  struct{}
	addrHash  struct{}
)

func (nameHash) Hash(n Name) uint64 {
	return pmap.MixString(pmap.MixString(0, n.Namespace), n.Name)
}

func (portHash) Hash(n PortName) uint64 {
	return pmap.Mix(pmap.MixString(nameHash{}.Hash(n.Name), n.Port), uint64(n.Protocol))
}

func (keyHash) Hash(k FrontendKey) uint64 {
	return pmap.Mix(addrHash{}.Hash(k.Addr), uint64(k.Port)<<8|uint64(k.Protocol))
}

func (claimHash) Hash(k claimKey) uint64 {
	return pmap.Mix(keyHash{}.Hash(k.key), portHash{}.Hash(k.service)^uint64(k.kind))
}

func (poolHash) Hash(id PoolID) uint64 {
	bits := uint64(id.Family) << 8
	if id.Local {
		bits |= 1
	}
	return pmap.Mix(portHash{}.Hash(id.Service), bits)
}

func (addrHash) Hash(a netip.Addr) uint64 {
	b := a.As16()
	return pmap.Mix(pmap.Mix(0, binary.BigEndian.Uint64(b[:8])),
		binary.BigEndian.Uint64(b[8:]))
}

// claimKey orders claims: all claims of one key stand together, the winner first.
type claimKey struct {
	key     FrontendKey
	kind    Kind
	service PortName
}

func claimOf(f *Frontend) claimKey { return claimKey{key: f.Key, kind: f.Kind, service: f.Service} }

func (k claimKey) Compare(o claimKey) int {
	if c := k.key.Compare(o.key); c != 0 {
		return c
	}
	return cmp.Or(cmp.Compare(k.kind, o.kind), k.service.Compare(o.service))
}

// beats reports whether f wins over o if both claim one key.
func (f *Frontend) beats(o *Frontend) bool {
	return cmp.Or(cmp.Compare(f.Kind, o.Kind), f.Service.Compare(o.Service)) < 0
}
