package read

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rendering"
	"github.com/kernlb/kernlb/nftables/internal/form"
	"github.com/kernlb/kernlb/servicemodel"
)

// Interpret adds the meaning of the elements in the model to c. Elements without a meaning are
// drift. Before them, the text names the elements that their frontends lack.
func (r *Reading) Interpret(c *servicemodel.Contents) {
	r.frontends(c)
	for i, l := range []*[]netip.Addr{&c.ClusterIPs, &c.Hairpins} {
		set := form.AddressSets[i]
		for key, e := range r.Elems[set] {
			if a, ok := form.AddressIn(r.Family, set, *e); ok {
				delete(r.Elems[set], key)
				*l = append(*l, a)
			}
		}
	}

	r.lackRegistered(c.Frontends)
	for _, s := range form.SetsOf(r.Family, &r.Shape) {
		if !IsRead(s.Name) {
			continue
		}
		m := r.Elems[s.Name]
		for _, k := range slices.Sorted(maps.Keys(m)) {
			l := r.Drift[s.Name]
			if l == nil {
				l = &nft.ElemList{}
				r.Drift[s.Name] = l
			}

			l.Add(nft.Elem{Key: m[k].Key, KeyEnd: m[k].KeyEnd, Data: m[k].Data,
				Goto: m[k].Goto})
			r.Text = append(r.Text, fmt.Sprintf("table %s: %s: element %s", r.Family.Name, s.Name,
				s.ElemText(*m[k])))
		}
	}
}

// frontends decodes the frontends and their pools, as far as possible. It adds the frontends whose
// elements are all right, with their pools, and removes these elements from the leftover elements.
func (r *Reading) frontends(c *servicemodel.Contents) {
	var decoded servicemodel.Contents
	ranges, slots := r.ReadRanges(), map[string]map[string][]form.Entry{}
	for _, k := range r.Shape.Kinds() {
		for _, s := range k.EndpointMaps(r.Family, &r.Shape) {
			slots[s.Name] = r.ReadSlots(k, s.Name)
		}
		for _, e := range r.Elems[k.Registry] {
			if fe := r.frontend(k, e, ranges); fe != nil {
				decoded.Frontends = append(decoded.Frontends, fe)
			}
		}
	}

	slices.SortFunc(decoded.Frontends,
		func(a, b *servicemodel.Frontend) int { return a.Key.Compare(b.Key) })
	views := map[servicemodel.PoolID][]*poolView{}
	for _, fe := range decoded.Frontends {
		r.view(views, slots, fe, false)
		if fe.External != fe.Internal {
			r.view(views, slots, fe, true)
		}
	}

	for _, l := range views {
		usual := slices.MaxFunc(l, func(a, b *poolView) int { return a.n - b.n })
		decoded.Pools = append(decoded.Pools, usual.pool)
	}

	own := decoded.Frontends
	decoded.Frontends = slices.Concat(own, r.beside)
	t, err := servicemodel.NewTable(decoded)
	if err != nil { // impossible: keys and identities come from maps
		return
	}
	faulty := r.faultyRanges(t, own)
	used := map[servicemodel.PoolID]bool{}
	for _, fe := range own {
		if !hasPools(t, fe) {
			r.lackSlots(slots, fe)
			continue
		}
		if fe.Key.EndPort != 0 && faulty[fe.Key.Addr] || !r.verify(t, fe) {
			continue
		}
		c.Frontends = append(c.Frontends, fe)
		internal, external := t.PoolsOf(fe)
		for _, p := range []*servicemodel.Pool{internal, external} {
			if p != nil && !used[p.ID] {
				used[p.ID] = true
				c.Pools = append(c.Pools, p)
			}
		}
	}

	for _, fe := range r.beside {
		r.w.Blocks(t, fe, func(set string, e nft.Elem) { delete(r.Elems[set], string(e.Key)) })
	}
}

// poolView is one version of a pool, and n is the number of frontends with this version.
type poolView struct {
	pool *servicemodel.Pool
	n    int
}

// ReadSlots collects the endpoints in a map by their frontend's key. A missing slot is an invalid
// endpoint.
func (r *Reading) ReadSlots(k *form.Kind, set string) map[string][]form.Entry {
	m := make(map[string][]form.Entry, len(r.Elems[set])/4)
	for _, e := range r.Elems[set] {
		n := len(e.Key) - 4
		if n < 0 {
			continue
		}
		slot := binary.NativeEndian.Uint32(e.Key[n:])
		d := nft.Reader{Bytes: e.Data}
		ep := k.ReadEndpoint(&d, r.Family)
		if slot >= form.MaxSlots || !d.Done() {
			continue
		}
		l := m[string(e.Key[:n])]
		for len(l) <= int(slot) {
			l = append(l, form.Entry{})
		}
		l[slot], _ = form.ParseEntry(ep, nft.CommentOf(e.UserData))
		m[string(e.Key[:n])] = l
	}

	return m
}

// frontend decodes one frontend. It returns nil if that is impossible.
func (r *Reading) frontend(k *form.Kind, e *nft.Elem,
	ranges map[string][]netip.Prefix) *servicemodel.Frontend {
	rd := nft.Reader{Bytes: e.Key}
	key := k.ReadKey(&rd, r.Family)
	if !rd.Done() || !key.Protocol.Valid() || form.KindOf(key) != k {
		return nil
	}

	// An element with different padding is a different element.
	if string(nft.AppendFrontend(nil, key)) != string(e.Key) {
		return nil
	}
	fe, err := rendering.ParseComment(nft.CommentOf(e.UserData), key, nil)
	if err != nil {
		return nil
	}
	if k.HasAddress() && r.Elems[k.SetRestricted()][string(e.Key)] != nil {
		fe.Sources = append([]netip.Prefix{}, ranges[string(e.Key)]...)
		slices.SortFunc(fe.Sources, netip.Prefix.Compare)
	}

	if e := r.Elems[k.Prefix+form.SetMasqIPs][string(e.Key)]; e != nil {
		fe.MasqueradeIP, _ = netip.AddrFromSlice(e.Data)
	}
	return fe
}

// ReadRanges collects the source ranges by their frontend's key.
func (r *Reading) ReadRanges() map[string][]netip.Prefix {
	m := map[string][]netip.Prefix{}
	r.readRanges(form.KindService, m)
	r.readRanges(form.KindRange, m)
	return m
}

func (r *Reading) readRanges(k *form.Kind, m map[string][]netip.Prefix) {
	for _, e := range r.Elems[k.SetSources()] {
		n := len(e.Key) - r.Family.AddrLen
		if n < 0 || len(e.KeyEnd) != len(e.Key) {
			continue
		}
		first, _ := netip.AddrFromSlice(e.Key[n:])
		last, _ := netip.AddrFromSlice(e.KeyEnd[n:])
		if p, ok := nft.RangePrefix(first, last); ok {
			m[string(e.Key[:n])] = append(m[string(e.Key[:n])], p)
		}
	}
}

// view reads the pool of a frontend for clients inside or outside. If frontends of one pool differ,
// the most frequent version counts.
func (r *Reading) view(views map[servicemodel.PoolID][]*poolView,
	slots map[string]map[string][]form.Entry, fe *servicemodel.Frontend, outside bool) {
	v := fe.Internal
	if outside {
		v = fe.External
	}
	id, ok := fe.Pool(v)
	if !ok {
		return
	}
	l, ok := r.leaf(fe, outside)
	if !ok {
		return
	}
	key := nft.AppendFrontend(nil, fe.Key)
	list := slots[l.SlotMap()][string(key)]
	if fe.Key.EndPort != 0 {
		r.addPort(list, fe)
	}
	if len(list) == 0 || l.Way != form.ByHash && slices.Contains(list, form.Entry{}) {
		return
	}
	first := r.Elems[l.SlotMap()][string(nft.AppendSlot(key, 0))]
	if first == nil {
		return // a hash may have holes, but not here: another program has removed the element
	}
	_, s := form.ParseEntry(netip.AddrPort{}, nft.CommentOf(first.UserData))
	p := form.PoolFrom(id, s, list, l.Way)
	if p == nil {
		return
	}
	for _, other := range views[id] {
		if other.pool.Equal(p) {
			other.n++
			return
		}
	}

	views[id] = append(views[id], &poolView{p, 1})
}

// addPort gives the endpoints of a range their port, unless packets keep their ports.
func (r *Reading) addPort(to []form.Entry, fe *servicemodel.Frontend) {
	set, key := form.SetPorts, nft.AppendFrontend(nil, fe.Key)
	if fe.Shifted {
		set, key = form.SetShifts, nft.AppendPort(key, fe.Key.Port)
	}
	e := r.Elems[form.KindOf(fe.Key).Prefix+set][string(key)]
	for i, en := range to {
		if e != nil && en.Endpoint.IsValid() && len(e.Data) == 2 {
			to[i].Endpoint = netip.AddrPortFrom(en.Endpoint.Addr(),
				binary.BigEndian.Uint16(e.Data))
		}
	}
}

// faultyRanges returns the addresses of ranges that have a wrong element. Ranges at an address
// share elements.
func (r *Reading) faultyRanges(t *servicemodel.Table,
	own []*servicemodel.Frontend) map[netip.Addr]bool {
	var faulty map[netip.Addr]bool
	for _, fe := range own {
		if fe.Key.EndPort != 0 && (!hasPools(t, fe) || !r.right(t, fe)) {
			if faulty == nil {
				faulty = map[netip.Addr]bool{}
			}
			faulty[fe.Key.Addr] = true
		}
	}

	return faulty
}

// right reports whether a frontend has the right elements.
func (r *Reading) right(t *servicemodel.Table, fe *servicemodel.Frontend) bool {
	good := true
	r.w.Elements(t, fe, func(set string, e nft.Elem) {
		f := r.Elems[set][string(e.Key)+string(e.KeyEnd)]
		if f == nil && good {
			r.lack(set, e)
		}
		good = good && f != nil && bytes.Equal(f.Data, e.Data) && f.Goto == e.Goto &&
			nft.CommentOf(f.UserData) == nft.CommentOf(e.UserData)
	})

	return good
}

// verify compares the elements of a frontend with the right ones. If all are right, it removes them
// from the leftover elements.
func (r *Reading) verify(t *servicemodel.Table, fe *servicemodel.Frontend) bool {
	good := r.right(t, fe)
	if good {
		r.w.Elements(t, fe, func(set string, e nft.Elem) {
			delete(r.Elems[set], string(e.Key)+string(e.KeyEnd))
		})
	}

	return good
}
