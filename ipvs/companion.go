package ipvs

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rendering"
	"github.com/kernlb/kernlb/servicemodel"
)

// companion is the content of the companion tables.
type companion struct {
	version  version
	exists   [2]bool // the table of the family exists
	whole    [2]bool // the table is whole, or rightly absent
	other    bool    // a different version of kernlb has made one of the tables
	foreign  string  // a table that no instance has made, or ""
	rules    servicemodel.Rules
	shapes   [2]shape                // by family
	addrs    map[string][]netip.Addr // by addrSets; sorted
	records  map[servicemodel.FrontendKey]*record
	tunables map[string]string // the earlier values of tunables that this instance may have set
}

// addrSets are the sets of addresses: cluster IPs, endpoints that connect to themselves, and the
// node's addresses that answer node ports.
var addrSets = []string{setClusterIPs, setHairpins, setNodeAddrs}

// addrsOf returns the contents of the sets of addresses for a table of the model.
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
		c.rules.Equal(o.rules) && c.shapes == o.shapes &&
		maps.EqualFunc(c.addrs, o.addrs, slices.Equal) &&
		maps.EqualFunc(c.records, o.records, (*record).equal) && maps.Equal(c.tunables, o.tunables)
}

// elements yields the elements of the family's table that belong to no frontend, each with the name
// of its set, except the version and the tunables.
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

// record is the content of the companion table about a frontend. All elements of the frontend
// follow from it.
type record struct {
	fe   *servicemodel.Frontend
	mark uint32 // of the virtual server for pods and the host, if they have separate endpoints
	nat  bool   // its packets are translated, and so can be masqueraded
	at   *portRange
}

func (r *record) equal(o *record) bool {
	return r == o || r != nil && o != nil && r.mark == o.mark && r.nat == o.nat &&
		r.at.equal(o.at) && r.fe.Equal(o.fe)
}

// The words that the companion adds to the comment of a frontend.
const (
	wordMark   = "mark="  // the number of the mark, without allMarks
	wordRouted = "routed" // packets are forwarded unchanged
)

// comment returns the comment of the frontend in the registry.
func (r *record) comment() string {
	var more []string
	if r.mark != 0 {
		more = append(more, wordMark+strconv.FormatUint(uint64(r.mark&^allMarks), 10))
	}
	if !r.nat {
		more = append(more, wordRouted)
	}
	return rendering.Comment(r.fe, more...)
}

// parseRecord is the inverse of comment. The sources are in separate sets.
func parseRecord(s string, k servicemodel.FrontendKey) (*record, error) {
	r := &record{nat: true}
	fe, err := rendering.ParseComment(s, k, func(word string) bool {
		number, mark := strings.CutPrefix(word, wordMark)
		switch {
		case mark:
			n, err := strconv.ParseUint(number, 10, 30)
			r.mark = allMarks | uint32(n)
			return err == nil
		case word == wordRouted:
			r.nat = false
		default:
			return false
		}

		return true
	})
	if err != nil {
		return nil, err
	}
	r.fe = fe
	return r, nil
}

// elements yields all elements of a record, each with the name of its set.
func (r *record) elements(to func(set string, e nft.Elem)) {
	if r == nil {
		return
	}
	kind, key := kindService, nft.AppendFrontend(nil, r.fe.Key)
	restricted, sources := setRestricted, setSources
	registered := nft.Elem{Key: key, UserData: nft.AppendComment(nil, r.comment())}
	switch {
	case r.at != nil:
		kind, restricted, sources = kindRange, setRangeRestricted, setRangeSources
		key = nft.Native32(r.at.mark)
		registered.Data = key
		r.at.elements(r.fe.Key, to)
	case r.fe.Key.NodePort():
		kind = kindNodePort
	}

	to(kind+"s", registered)
	in := func(set string, key []byte) {
		if set != "" {
			to(kind+set, nft.Elem{Key: key})
		}
	}

	in(refusing[r.fe.Internal], key)
	if r.fe.External != r.fe.Internal {
		in(setSplit, key)
		in(refusingOutside[r.fe.External], key)
	}

	if r.mark != 0 {
		to(kind+setMarks, nft.Elem{Key: key, Data: nft.Native32(r.mark)})
	}
	if r.nat {
		r.masquerade(kind, key, to)
	}
	if !r.nat && kind == kindService {
		to(setRouted, nft.Elem{Key: key})
	}
	if r.fe.Sources != nil {
		to(restricted, nft.Elem{Key: key})
	}
	for _, p := range r.fe.Sources {
		to(sources, nft.Elem{Key: nft.AppendAddr(slices.Clone(key), p.Masked().Addr()),
			KeyEnd: nft.AppendAddr(slices.Clone(key), nft.LastAddr(p))})
	}

	if r.at != nil && r.mark != 0 {
		r.masquerade(kind, nft.Native32(r.mark), to)
	}
}

// masquerade yields the elements that select masqueraded connections, and their source.
func (r *record) masquerade(kind string, key []byte, to func(set string, e nft.Elem)) {
	if set := masqueradeSets[r.fe.Masquerade]; set != "" {
		to(kind+set, nft.Elem{Key: key})
	}
	if r.fe.MasqueradeIP.IsValid() {
		to(kind+setMasqIPs, nft.Elem{Key: key, Data: nft.AppendAddr(nil, r.fe.MasqueradeIP)})
	}
}

// masqueradeSets are the sets of frontends whose connections are masqueraded, by their origins.
var masqueradeSets = map[servicemodel.Origins]string{
	servicemodel.FromAnywhere:                        setMasqAll,
	servicemodel.FromHost | servicemodel.FromOutside: setMasqNotPod,
	servicemodel.FromHost:                            setMasqHost,
}

// refusing and refusingOutside are the sets of frontends that reject or drop packets: of pods and
// the host, and of clients outside if their verdict differs.
var (
	refusing = map[servicemodel.Verdict]string{
		servicemodel.Reject: setReject, servicemodel.Drop: setDrop}
	refusingOutside = map[servicemodel.Verdict]string{
		servicemodel.Reject: setExtReject, servicemodel.Drop: setExtDrop}
)
