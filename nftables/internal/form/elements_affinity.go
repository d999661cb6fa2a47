package form

import (
	"net/netip"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/servicemodel"
)

// affinity writes the element of a frontend's session affinity.
func (w *Writer) affinity(fe *servicemodel.Frontend, to Sink) {
	e := nft.Elem{Key: w.key}
	if fe.AffinityService {
		f := nft.Families[nft.FamilyIndex(fe.Key.Addr)]
		w.data = nft.AppendAddr(w.data[:0], ServiceID(fe.Service.Name, f))
		e.Data = w.data
	}

	to(w.names.get(KindOf(fe.Key).Prefix, SetAffinity+affinityOf(fe).name(), -1), e)
}

// ByAddress writes the elements that differ between the pools old and new in the map of endpoints
// by address. The frontend has the affinity of a whole service.
func (w *Writer) ByAddress(fe *servicemodel.Frontend, outside bool, old, new *servicemodel.Pool,
	del, add Sink) {
	if old == nil && new == nil {
		return
	}
	name := w.names.get(PrefixOf(KindOf(fe.Key), outside), setByAddress, -1)
	w.key = nft.AppendFrontend(w.key[:0], fe.Key)
	write := func(to Sink, ep netip.AddrPort) {
		if ep.IsValid() {
			w.data = nft.AppendEndpoint(w.data[:0], ep)
			to(name, nft.Elem{Key: nft.AppendAddr(w.key, ep.Addr()), Data: w.data})
		}
	}

	for _, c := range w.PoolChange(old, new).byAddress() {
		write(del, c.old)
		write(add, c.new)
	}
}
