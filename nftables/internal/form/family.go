package form

import (
	"iter"
	"net/netip"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/servicemodel"
)

// FrontendsOf yields the frontends of one family.
func FrontendsOf(t *servicemodel.Table, f *nft.Family) iter.Seq[*servicemodel.Frontend] {
	return func(yield func(*servicemodel.Frontend) bool) {
		for fe := range t.Frontends() {
			if fe.Key.Family() == f.Model && !yield(fe) {
				return
			}
		}
	}
}

// AddressesOf yields the addresses of one family that belong in a set.
func AddressesOf(t *servicemodel.Table, f *nft.Family, set string) iter.Seq[netip.Addr] {
	all := t.ClusterIPs()
	if set == SetHairpins {
		all = t.Hairpins()
	}
	return func(yield func(netip.Addr) bool) {
		for a := range all {
			if servicemodel.FamilyOf(a) == f.Model && !yield(a) {
				return
			}
		}
	}
}
