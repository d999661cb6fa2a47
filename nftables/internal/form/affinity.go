package form

import (
	"cmp"
	"crypto/sha256"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/servicemodel"
)

// Affinity is a kind of session affinity in use.
type Affinity struct {
	Seconds uint32
	Bits    uint8 // the number of leading bits of an address that identify a client, 0 for all
	Whole   bool  // a client has one endpoint address at all ports of a service
}

func affinityOf(fe *servicemodel.Frontend) Affinity {
	return Affinity{uint32(fe.Affinity / time.Second), fe.AffinityBits, fe.AffinityService}
}

func (a Affinity) Compare(o Affinity) int {
	whole := func(a Affinity) int {
		if a.Whole {
			return 1
		}
		return 0
	}

	return cmp.Or(cmp.Compare(whole(a), whole(o)), cmp.Compare(a.Bits, o.Bits),
		cmp.Compare(a.Seconds, o.Seconds))
}

// Parts of the names of the sets and chains of an affinity.
const (
	wordBits  = "-by-"
	wordWhole = "-whole"
)

// by is the part of a name that gives the bits of a client's address.
func (a Affinity) by() string {
	if a.Bits == 0 {
		return ""
	}
	return wordBits + strconv.Itoa(int(a.Bits))
}

// name is the end of the names of sets and chains, such as "-60", "-60-by-24" or "-60-whole".
func (a Affinity) name() string {
	name := "-" + strconv.FormatUint(uint64(a.Seconds), 10) + a.by()
	if a.Whole {
		name += wordWhole
	}
	return name
}

// ParseAffinity is the inverse of name.
func ParseAffinity(name string) (a Affinity, ok bool) {
	rest, whole := strings.CutSuffix(name, wordWhole)
	seconds, bits, _ := strings.Cut(rest, wordBits)
	n, _ := strconv.ParseUint(strings.TrimPrefix(seconds, "-"), 10, 31)
	b, _ := strconv.ParseUint(bits, 10, 8)
	a = Affinity{uint32(n), uint8(b), whole}
	return a, n > 0 && a.name() == name
}

// Groups of maps remember clients, by different keys. A hash of the client's leading bits selects
// the map in the group: see [AffinityMap].
const (
	GroupClients = "affinity" // by the leading bits of a client's address, and by frontend
	// The same key, for outside clients whose endpoints differ from those of pods and the host, if
	// prefixes are remembered: a prefix may contain clients of both kinds.
	groupOutside  = "affinity-external"
	GroupServices = "affinity-services" // by client and service
	groupRanges   = "affinity-ranges"   // by client and frontend at a range of ports
)

// Group is the group of maps of the clients.
func (a Affinity) Group() string {
	if a.Whole {
		return GroupServices
	}
	return GroupClients
}

// A group has AffinityMaps maps. A hash of the client's address selects the map. When an endpoint
// is removed, all maps are read, and other commits wait for at most one map. The kernel walks a map
// from its beginning for each 32 KiB that it returns (nft_rhash_walk), so it is several times
// faster to read many small maps than one large map.
const (
	AffinityMaps = 64
	// the seed of the hash: the rules that look up and the rules that learn must use the same seed
	affinitySeed = 0x6b6c62
	// AffinitySize is the number of clients that one map can remember, of all services together. If
	// a map is full, further clients are not remembered. Without a size, the limit would be 65,535
	// (nft_dynset.c).
	AffinitySize = 1 << 12
)

// IsAffinityMap reports whether a set is a map of remembered clients.
func IsAffinityMap(name string) bool { return strings.HasPrefix(name, "affinity-") }

// AffinityMap is the name of the i-th map of a group.
func AffinityMap(group string, i int) string { return group + "-" + strconv.Itoa(i) }

func affinityName(k *Kind, a Affinity) string { return k.Prefix + SetAffinity + a.name() }

// ServiceID represents a service in the map of whole services. It has the form of an address. If
// two services had the same ID, a client of both could get only endpoints that both services have.
func ServiceID(of servicemodel.Name, f *nft.Family) netip.Addr {
	sum := sha256.Sum256([]byte(of.String()))
	a, _ := netip.AddrFromSlice(sum[:f.AddrLen])
	return a
}

// setByAddress is the end of the name of a map whose key is a frontend with a whole service's
// affinity and an endpoint address, and whose value is the endpoint.
const setByAddress = "-by-address"

// ClientsOf returns the key that identifies the clients of a frontend when they are forgotten: the
// frontend's key or, for the clients of a whole service, the service's ID without protocol and
// port.
func ClientsOf(fe *servicemodel.Frontend) servicemodel.FrontendKey {
	if fe.AffinityService {
		f := nft.Families[nft.FamilyIndex(fe.Key.Addr)]
		return servicemodel.FrontendKey{Addr: ServiceID(fe.Service.Name, f)}
	}

	return fe.Key
}

// ClientEntry decodes an entry of an affinity map. The key of the entry has the client's address
// and the key of a frontend or the ID of a service.
func ClientEntry(f *nft.Family, group string, e nft.Elem) (key servicemodel.FrontendKey,
	ep netip.AddrPort, ok bool) {
	r, d := nft.Reader{Bytes: e.Key}, nft.Reader{Bytes: e.Data}
	r.Addr(f.AddrLen)
	switch group {
	case GroupServices:
		key.Addr, ep = r.Addr(f.AddrLen), netip.AddrPortFrom(d.Addr(f.AddrLen), 0)
	case groupRanges:
		key, ep = r.RangeClients(f.AddrLen), KindRange.ReadEndpoint(&d, f)
	default:
		key, ep = r.Frontend(f.Any, false), d.Endpoint(f.AddrLen)
	}

	return key, ep, r.Done() && d.Done()
}
