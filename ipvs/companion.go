package ipvs

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/settings"
	"github.com/kernlb/kernlb/servicemodel"
)

// companion is what the companion tables hold.
type companion struct {
	version    version
	exists     [2]bool // the table of the family is there
	whole      [2]bool // and is as it should be
	other      bool    // another version has made one of them
	rules      servicemodel.Rules
	clusterIPs []netip.Addr
	hairpins   []netip.Addr
	addrs      []netip.Addr // that have node ports
	records    map[servicemodel.FrontendKey]*record
	tunables   map[string]string // what those were that this instance may have set
}

func newCompanion() companion {
	return companion{records: map[servicemodel.FrontendKey]*record{}, tunables: map[string]string{}}
}

// equal reports whether the tables hold the same.
func (c *companion) equal(o *companion) bool {
	return c.version == o.version && c.exists == o.exists && c.whole == o.whole &&
		c.rules.Equal(o.rules) &&
		slices.Equal(c.clusterIPs, o.clusterIPs) && slices.Equal(c.hairpins, o.hairpins) &&
		slices.Equal(c.addrs, o.addrs) &&
		maps.EqualFunc(c.records, o.records, (*record).equal) && maps.Equal(c.tunables, o.tunables)
}

// elements are those that a table of the family holds, by set.
func (c *companion) elements(f *nft.Family,
	records []*record) map[string]map[string]nft.Elem {
	want := map[string]map[string]nft.Elem{}
	add := func(set string, e nft.Elem) {
		if want[set] == nil {
			want[set] = map[string]nft.Elem{}
		}
		want[set][string(e.Key)+string(e.KeyEnd)] = e
	}
	for _, r := range records {
		r.elements(add)
	}
	for _, a := range c.clusterIPs {
		add(setClusterIPs, addrElem(setClusterIPs, a))
	}
	for _, a := range c.hairpins {
		add(setHairpins, addrElem(setHairpins, a))
	}
	for _, a := range c.addrs {
		add(setNodeAddrs, addrElem(setNodeAddrs, a))
	}
	for _, e := range settingElems(c.rules) {
		add(setSettings, e)
	}
	if f == nft.IPv4 {
		for name, value := range c.tunables {
			add(setSettings, tunableElem(name, value))
		}
	}
	return want
}

// addrElem is the element of an address in one of the sets of addresses.
func addrElem(set string, a netip.Addr) nft.Elem {
	key := nft.AppendAddr(nil, a)
	if set == setHairpins {
		key = nft.AppendAddr(key, a)
	}
	return nft.Elem{Key: key}
}

// settingElems are the elements of the node-wide rules.
func settingElems(r servicemodel.Rules) []nft.Elem {
	var l []nft.Elem
	for i, line := range settings.Lines(layoutNumber, r) {
		l = append(l,
			nft.Elem{Key: nft.Native32(uint32(i + 1)),
				UserData: nft.AppendComment(nil, line)})
	}
	return l
}
