package servicemodel

import (
	"cmp"
	"encoding/binary"
	"net/netip"

	"github.com/kernlb/kernlb/internal/persist"
)

// The orderings of the maps that states and tables are made of.
type (
	nameOrder   struct{}
	portOrder   struct{}
	keyOrder    struct{}
	claimOrder  struct{}
	poolIDOrder struct{}
	addrOrder   struct{}
)

func (nameOrder) Compare(a, b Name) int { return a.Compare(b) }
func (nameOrder) Hash(n Name) uint64 {
	return persist.MixString(persist.MixString(0, n.Namespace), n.Name)
}

func (portOrder) Compare(a, b PortName) int { return a.Compare(b) }
func (portOrder) Hash(n PortName) uint64 {
	return persist.Mix(persist.MixString(nameOrder{}.Hash(n.Name), n.Port), uint64(n.Protocol))
}

func (keyOrder) Compare(a, b FrontendKey) int { return a.Compare(b) }
func (keyOrder) Hash(k FrontendKey) uint64 {
	return persist.Mix(addrOrder{}.Hash(k.Addr), uint64(k.Port)<<8|uint64(k.Protocol))
}

func (claimOrder) Compare(a, b claimKey) int { return a.compare(b) }
func (claimOrder) Hash(k claimKey) uint64 {
	return persist.Mix(keyOrder{}.Hash(k.key), portOrder{}.Hash(k.service)^uint64(k.kind))
}

func (poolIDOrder) Compare(a, b PoolID) int { return a.Compare(b) }
func (poolIDOrder) Hash(id PoolID) uint64 {
	return persist.Mix(portOrder{}.Hash(id.Service), uint64(id.Family)<<8|uint64(id.Scope))
}

func (addrOrder) Compare(a, b netip.Addr) int { return a.Compare(b) }
func (addrOrder) Hash(a netip.Addr) uint64 {
	b := a.As16()
	return persist.Mix(persist.Mix(0, binary.BigEndian.Uint64(b[:8])),
		binary.BigEndian.Uint64(b[8:]))
}

// claimKey orders claims: those of one key stand together, the winner first.
type claimKey struct {
	key     FrontendKey
	kind    Kind
	service PortName
}

func claimOf(f *Frontend) claimKey { return claimKey{key: f.Key, kind: f.Kind, service: f.Service} }

func (k claimKey) compare(o claimKey) int {
	if c := k.key.Compare(o.key); c != 0 {
		return c
	}
	return cmp.Or(cmp.Compare(k.kind, o.kind), k.service.Compare(o.service))
}

// beats reports whether f wins over o where both claim one key.
func (f *Frontend) beats(o *Frontend) bool {
	return cmp.Or(cmp.Compare(f.Kind, o.Kind), f.Service.Compare(o.Service)) < 0
}
