package read

import (
	"context"
	"net/netip"
	"slices"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rendering"
	"github.com/kernlb/kernlb/nftables/internal/form"
	"github.com/kernlb/kernlb/servicemodel"
)

// contest finds service ports that look complete although leftover elements concern them:
// additional elements of their frontends, or frontends whose comment names the same service port.
// These service ports no longer count as complete. All their elements are left over, too, although
// they are as desired.
func (r *Reading) contest(context.Context, *Reading) error {
	if r.want == nil {
		return nil
	}
	incomplete := map[servicemodel.PortName]bool{}
	for _, o := range r.incomplete {
		if o.frontends != nil {
			incomplete[o.frontends[0].Service] = true
		}
	}

	var contested []object
	contest := func(port servicemodel.PortName) {
		if o := portOf(r.Family, r.want, port); !incomplete[port] && len(o.frontends) > 0 {
			incomplete[port] = true
			contested = append(contested, o)
		}
	}

	for name, elems := range r.Elems {
		set := r.sets[name]
		if set == nil || !IsRead(name) {
			continue
		}
		registry := slices.ContainsFunc(form.Kinds[:], func(k *form.Kind) bool {
			return name == k.Registry
		})
		for _, e := range elems {
			key, ok := r.keyOf(set, *e)
			if fe := r.want.Frontend(key); ok && fe != nil {
				contest(fe.Service)
			}
			if !registry {
				continue
			}
			fe, err := rendering.ParseComment(nft.CommentOf(e.UserData), key, nil)
			if err == nil {
				contest(fe.Service)
			}
		}
	}

	if ranges := r.rangesBeside(append(contested, r.incomplete...)); ranges != nil {
		for fe := range form.FrontendsOf(r.want, r.Family) {
			if fe.Key.EndPort != 0 && ranges[fe.Key.Addr] {
				contest(fe.Service)
			}
		}
	}

	for _, o := range contested {
		o.elements(r.w, r.want, func(set string, e nft.Elem) { r.Add(set, e) })
	}
	r.incomplete = append(r.incomplete, contested...)
	return nil
}

// rangesBeside returns the addresses at which the objects or the leftover elements have ranges.
// Ranges at an address share elements, so all of them are left over together. It returns nil if
// there are no such addresses.
func (r *Reading) rangesBeside(objects []object) map[netip.Addr]bool {
	var at map[netip.Addr]bool
	note := func(a netip.Addr) {
		if at == nil {
			at = map[netip.Addr]bool{}
		}
		at[a] = true
	}

	for _, o := range objects {
		for _, fe := range o.frontends {
			if fe.Key.EndPort != 0 {
				note(fe.Key.Addr)
			}
		}
	}

	for _, k := range []*form.Kind{form.KindRange, form.KindNodeRange} {
		for _, e := range r.Elems[k.Registry] {
			rd := nft.Reader{Bytes: e.Key}
			note(k.ReadKey(&rd, r.Family).Addr)
		}
	}

	return at
}
