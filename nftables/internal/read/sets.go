package read

import (
	"slices"
	"strings"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/nftables/internal/form"
	"github.com/kernlb/kernlb/servicemodel"
)

// Functions about the sets of a reading.

// isLarge reports whether a set grows with the endpoints or ports rather than with the services.
func isLarge(name string) bool {
	return strings.HasSuffix(name, form.SetEndpoints) || name == form.SetHairpins ||
		strings.HasSuffix(name, form.SetShifts)
}

// IsRead reports whether the elements of a set describe services.
func IsRead(name string) bool {
	return !form.IsAffinityMap(name) && !form.IsOwners(name) && !form.IsVersion(name) &&
		name != form.SetSettings
}

// keyOf returns the frontend that an element of a set belongs to, or false if there is none.
func (r *Reading) keyOf(set *nft.Set, e nft.Elem) (servicemodel.FrontendKey, bool) {
	addr := r.Family.Addr
	node := servicemodel.FrontendKey{Addr: r.Family.Any}
	switch {
	case slices.Equal(set.Key, []nft.Field{nft.FieldPort, nft.FieldProto}): // blocks of node ports
		rd, data := nft.Reader{Bytes: e.Key}, nft.Reader{Bytes: e.Data}
		rd.Port()
		node.Protocol = rd.Proto()
		data.Range(&node, r.Family.AddrLen)
		return node, rd.Done() && data.Done()
	case len(set.Key) > 1 && slices.Equal(set.Key[:2], []nft.Field{nft.FieldProto, addr}):
		rd := nft.Reader{Bytes: e.Key[:min(len(e.Key), r.Family.AddrLen+4)]}
		return form.KindNodeRange.ReadKey(&rd, r.Family), rd.Done()
	case slices.Equal(set.Key, []nft.Field{nft.FieldPort, addr, nft.FieldProto}): // blocks
		rd, data := nft.Reader{Bytes: e.Key}, nft.Reader{Bytes: e.Data}
		key := rd.Block(r.Family.AddrLen)
		data.Range(&key, r.Family.AddrLen)
		return key, rd.Done() && data.Done()
	case len(set.Key) > 2 && slices.Equal(set.Key[:3], []nft.Field{addr, nft.FieldProto, addr}):
		rd := nft.Reader{Bytes: e.Key[:min(len(e.Key), 2*r.Family.AddrLen+4)]}
		return rd.RangeFrontend(r.Family.AddrLen), rd.Done()
	}

	nodePort := set.Key[0] == nft.FieldProto
	n := 8
	if !nodePort {
		n += r.Family.AddrLen
	}
	if len(set.Key) < 2 || set.Name == form.SetHairpins || len(e.Key) < n {
		return servicemodel.FrontendKey{}, false
	}
	rd := nft.Reader{Bytes: e.Key[:n]}
	return rd.Frontend(r.Family.Any, nodePort), true
}
