package ipvs

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rendering"
	"github.com/kernlb/kernlb/servicemodel"
)

// companion is the content of the companion tables.
type companion struct {
	version  version
	exists   [2]bool // the table of the family is there
	whole    [2]bool // the table is whole, or rightly absent
	other    bool    // another version of kernlb has made one of the tables
	foreign  string  // a table that no instance has made; empty: there is none
	rules    servicemodel.Rules
	addrs    map[string][]netip.Addr // by addrSets; sorted
	records  map[servicemodel.FrontendKey]*record
	tunables map[string]string // the earlier values of tunables that this instance may have set
}

// addrSets are the sets of addresses: cluster IPs, endpoints that masquerade packets to themselves,
// and the node's addresses that take node ports.
var addrSets = []string{setClusterIPs, setHairpins, setNodeAddrs}

// addrsOf returns what the sets of addresses hold for a table of the model.
func addrsOf(t *servicemodel.Table, node []netip.Addr) map[string][]netip.Addr {
	return map[string][]netip.Addr{setClusterIPs: slices.Collect(t.ClusterIPs()),
		setHairpins: slices.Collect(t.Hairpins()), setNodeAddrs: node}
}

func newCompanion() companion {
	return companion{
		addrs:   map[string][]netip.Addr{setClusterIPs: nil, setHairpins: nil, setNodeAddrs: nil},
		records: map[servicemodel.FrontendKey]*record{}, tunables: map[string]string{}}
}

// equal reports whether the tables have the same content.
func (c *companion) equal(o *companion) bool {
	return c.version == o.version && c.exists == o.exists && c.whole == o.whole &&
		c.rules.Equal(o.rules) && maps.EqualFunc(c.addrs, o.addrs, slices.Equal) &&
		maps.EqualFunc(c.records, o.records, (*record).equal) && maps.Equal(c.tunables, o.tunables)
}

// elements passes on the elements of the family's table that belong to no frontend, except the
// version and the tunables, each with the name of its set.
func (c *companion) elements(f *nft.Family, to func(set string, e nft.Elem)) {
	for _, set := range addrSets {
		for _, a := range c.addrs[set] {
			if servicemodel.FamilyOf(a) == f.Model && f.ServedBy(&c.rules) {
				to(set, addrElem(set, a))
			}
		}
	}
	for i, line := range rendering.Settings(layoutNumber, c.rules) {
		to(setSettings, nft.Elem{Key: nft.Native32(uint32(i + 1)),
			UserData: nft.AppendComment(nil, line)})
	}
}

// addrElem is the element of an address in one of the sets of addresses.
func addrElem(set string, a netip.Addr) nft.Elem {
	key := nft.AppendAddr(nil, a)
	if set == setHairpins {
		key = nft.AppendAddr(key, a)
	}
	return nft.Elem{Key: key}
}
