package nftables

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/kernlb/kernlb/internal/comment"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/shared"
	"github.com/kernlb/kernlb/servicemodel"
)

// frontends reads the frontends and their pools, as far as they can be understood.
func (r *reading) frontends() {
	r.ranges = r.readRanges()
	r.slots = map[string]map[string][]netip.AddrPort{}
	for _, k := range kinds {
		for _, rest := range []string{setEndpoints, setExternalEps} {
			r.slots[k.prefix+rest] = r.readSlots(k.prefix + rest)
		}
	}
	for _, k := range kinds {
		for _, e := range r.elems[k.registry] {
			if fe := r.frontend(k, e); fe != nil {
				r.fes = append(r.fes, fe)
			}
		}
	}
	slices.SortFunc(r.fes, func(a, b *servicemodel.Frontend) int { return a.Key.Compare(b.Key) })
	for _, fe := range r.fes {
		r.pool(fe, fe.Internal, setSize, setEndpoints)
		if fe.External != fe.Internal {
			r.pool(fe, fe.External, setExternalSize, setExternalEps)
		}
	}
}

// readSlots collects the endpoints of a map by the key of their frontend. A missing slot is an
// invalid endpoint.
func (r *reading) readSlots(set string) map[string][]netip.AddrPort {
	m := make(map[string][]netip.AddrPort, len(r.elems[set])/4)
	for _, e := range r.elems[set] {
		n := len(e.Key) - 4
		if n < 0 {
			continue
		}
		slot := binary.NativeEndian.Uint32(e.Key[n:])
		d := nft.Reader{Bytes: e.Data}
		ep := d.Endpoint(r.f.AddrLen)
		if slot >= maxSlots || !d.Done() {
			continue
		}
		l := m[string(e.Key[:n])]
		for len(l) <= int(slot) {
			l = append(l, netip.AddrPort{})
		}
		l[slot] = ep
		m[string(e.Key[:n])] = l
	}
	return m
}

// frontend reads one frontend; nil if it cannot be understood.
func (r *reading) frontend(k *kind, e *found) *servicemodel.Frontend {
	rd := nft.Reader{Bytes: e.Key}
	key := rd.Frontend(r.f.Any, k == kindNodePort)
	if !rd.Done() || !key.Protocol.Valid() || k == kindService && key.NodePort() {
		return nil
	}
	// with other padding it is another element
	if string(nft.AppendFrontend(nil, key)) != string(e.Key) {
		return nil
	}
	fe, err := comment.Parse(nft.CommentOf(e.UserData), key, nil)
	if err != nil {
		return nil
	}
	if k == kindService && r.has(setRestricted, e.Key) {
		fe.Sources = r.sources(e.Key)
	}
	return fe
}

// readRanges collects the source ranges by the key of their frontend.
func (r *reading) readRanges() map[string][]netip.Prefix {
	m := map[string][]netip.Prefix{}
	for _, e := range r.elems[setSources] {
		n := len(e.Key) - r.f.AddrLen
		if n < 0 || len(e.KeyEnd) != len(e.Key) {
			continue
		}
		first, _ := netip.AddrFromSlice(e.Key[n:])
		last, _ := netip.AddrFromSlice(e.KeyEnd[n:])
		if p, ok := nft.RangePrefix(first, last); ok {
			m[string(e.Key[:n])] = append(m[string(e.Key[:n])], p)
		}
	}
	return m
}

// sources returns the ranges of a restricted frontend.
func (r *reading) sources(key []byte) []netip.Prefix {
	l := append([]netip.Prefix{}, r.ranges[string(key)]...)
	slices.SortFunc(l, netip.Prefix.Compare)
	return l
}

// pool reads the pool that a frontend balances over, unless another frontend's was read before.
func (r *reading) pool(fe *servicemodel.Frontend, v servicemodel.Verdict, size, eps string) {
	id, ok := fe.Pool(v)
	if !ok || r.pools[id] != nil {
		return
	}
	k := kindOf(fe.Key)
	key := nft.AppendFrontend(nil, fe.Key)
	list := r.slots[k.prefix+eps][string(key)]
	if len(list) == 0 || slices.Contains(list, netip.AddrPort{}) ||
		!r.has(r.w.names.get(k.prefix, size, len(list)), key) {
		return
	}
	p := &servicemodel.Pool{ID: id}
	for _, ep := range list {
		appendSlot(p, ep)
	}
	r.pools[id] = p
}

// verified returns the frontends of which every element is there as it should be, with their pools;
// those elements have their place.
func (r *reading) verified() servicemodel.Contents {
	all := servicemodel.Contents{Frontends: r.fes}
	for _, p := range r.pools {
		all.Pools = append(all.Pools, p)
	}
	t, err := servicemodel.NewTable(all)
	if err != nil { // keys and identities are unique: they come from maps
		return servicemodel.Contents{}
	}
	var c servicemodel.Contents
	used := map[servicemodel.PoolID]bool{}
	for _, fe := range r.fes {
		if !hasPools(t, fe) || !r.verify(t, fe) {
			continue
		}
		internal, external := shared.Of(t).PoolsOf(fe)
		c.Frontends = append(c.Frontends, fe)
		for _, p := range []*servicemodel.Pool{internal, external} {
			if p != nil && !used[p.ID] {
				used[p.ID] = true
				c.Pools = append(c.Pools, p)
			}
		}
	}
	return c
}

// verify checks the elements of a frontend against what they should be, and gives them their place
// if all are right.
func (r *reading) verify(t *servicemodel.Table, fe *servicemodel.Frontend) bool {
	good := true
	var place []*found
	want := func(set string, e nft.Elem) {
		f := r.elems[set][string(e.Key)+string(e.KeyEnd)]
		if f == nil || string(f.Data) != string(e.Data) ||
			nft.CommentOf(f.UserData) != nft.CommentOf(e.UserData) {
			good = false
			return
		}
		place = append(place, f)
	}
	r.w.frontend(t, fe, want)
	internal, external := shared.Of(t).PoolsOf(fe)
	r.w.slots(fe, false, nil, internal, nil, want)
	r.w.slots(fe, true, nil, external, nil, want)
	if !good {
		return false
	}
	for _, f := range place {
		f.seen = true
	}
	return true
}
