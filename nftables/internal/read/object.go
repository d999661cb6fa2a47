package read

import (
	"iter"
	"net/netip"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rendering"
	"github.com/kernlb/kernlb/nftables/internal/form"
	"github.com/kernlb/kernlb/servicemodel"
)

// A reading that knows the wanted table asks the kernel for the table's elements, object by object.
// An object whose elements all exist as wanted needs no further reading.

// object is the unit that a reading finds whole or not at all: a service port in one family, or an
// address in a set of addresses.
type object struct {
	frontends []*servicemodel.Frontend // of the service port. They share pools.
	set       string
	addr      netip.Addr
}

// objectsOf yields the objects of a table in one family: service ports, then addresses.
func objectsOf(f *nft.Family, t *servicemodel.Table) iter.Seq[object] {
	return func(yield func(object) bool) {
		for fe := range form.FrontendsOf(t, f) {
			o := portOf(f, t, fe.Service)
			if first := o.frontends[0].Key == fe.Key; first && !yield(o) {
				return
			}
		}

		for _, set := range form.AddressSets {
			for a := range form.AddressesOf(t, f, set) {
				if !yield(object{set: set, addr: a}) {
					return
				}
			}
		}
	}
}

// portOf returns a service port of a table. It has no frontends if the table has no such port.
func portOf(f *nft.Family, t *servicemodel.Table, port servicemodel.PortName) object {
	all := t.FrontendsOf(port) // sorted: frontends of one family are adjacent
	from, to := len(all), 0
	for i, fe := range all {
		if fe.Key.Family() == f.Model {
			from, to = min(from, i), i+1
		}
	}

	return object{frontends: all[min(from, to):to]}
}

// elements writes the elements of an object of t.
func (o *object) elements(w *form.Writer, t *servicemodel.Table, to form.Sink) {
	if o.frontends == nil {
		w.Address(o.set, o.addr, to)
	}
	for _, fe := range o.frontends {
		w.Elements(t, fe, to)
	}
}

// expressible reports whether the backend can express an object. Only then do the object's elements
// identify it.
func (o *object) expressible(t *servicemodel.Table) bool {
	for _, fe := range o.frontends {
		if !rendering.KnownOrigins(fe.Masquerade) || fe.Sources != nil && fe.Key.NodePort() ||
			!hasPools(t, fe) || fe.Key.EndPort != 0 && !expressibleRange(t, fe) {
			return false
		}

		internal, external := t.PoolsOf(fe)
		for _, p := range []*servicemodel.Pool{internal, external} {
			if p == nil {
				continue
			}
			n := form.EntryCount(p)
			if n == 0 || n > form.MaxSlots || p.Forwarding != servicemodel.ForwardNAT {
				return false
			}
		}
	}

	return true
}

// expressibleRange reports whether the backend can express what it lacks at some ranges.
func expressibleRange(t *servicemodel.Table, fe *servicemodel.Frontend) bool {
	internal, external := t.PoolsOf(fe)
	_, ok := form.RangePort(internal, external)
	switch {
	case !ok, fe.AffinityService, fe.AffinityBits > 0, !form.TakesRanges(internal),
		!form.TakesRanges(external):
		return false
	}

	return !fe.Key.NodePort() || fe.Affinity == 0 && !fe.MasqueradeIP.IsValid()
}

// hasPools reports whether a table has the pools of a frontend.
func hasPools(t *servicemodel.Table, fe *servicemodel.Frontend) bool {
	internal, external := t.PoolsOf(fe)
	return (internal != nil || !fe.Internal.Balances()) &&
		(external != nil || !fe.External.Balances() || fe.External == fe.Internal)
}
