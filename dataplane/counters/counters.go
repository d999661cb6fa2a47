package counters

import (
	"errors"
	"net/netip"
	"time"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/servicemodel"
)

// DefaultTable is the name of the tables if [Config.Table] is empty.
const DefaultTable = "kernlb-counters"

// ErrOff says that nothing is counted: [Counters.Start] has not been called, or somebody deleted
// the tables.
var ErrOff = errors.New("counters are off")

// Config says where counters are. A nil *Config is the zero Config.
type Config struct {
	// NetNS is a file descriptor of the network namespace to work in, and NetNSPath its path:
	// either, used only while the counters are opened. Zero and empty mean that of the calling
	// thread.
	NetNS     int
	NetNSPath string
	// Table is the name of the tables in the families ip and ip6. Empty means [DefaultTable].
	Table string
}

// Values are what was counted.
type Values struct {
	Connections uint64 `json:"connections"`
	PacketsIn   uint64 `json:"packetsIn"` // from clients to endpoints
	BytesIn     uint64 `json:"bytesIn"`
	PacketsOut  uint64 `json:"packetsOut"` // from endpoints to clients
	BytesOut    uint64 `json:"bytesOut"`
}

// plus returns the sum.
func (v Values) plus(o Values) Values {
	return Values{v.Connections + o.Connections, v.PacketsIn + o.PacketsIn, v.BytesIn + o.BytesIn,
		v.PacketsOut + o.PacketsOut, v.BytesOut + o.BytesOut}
}

// Pair is where packets were sent, and where they went.
type Pair struct {
	Protocol servicemodel.Protocol
	// Dst is what clients sent to: for a node port, the address of the node that they used.
	Dst      netip.AddrPort
	Endpoint netip.AddrPort
}

// Reading is what was counted until it was read.
type Reading struct {
	Pairs map[Pair]Values
	// Full says that there were more pairs than there is room for.
	Full bool
}

// Sums are what was counted of services.
type Sums struct {
	frontends map[servicemodel.FrontendKey]Values
	endpoints map[endpoint]Values
}

type endpoint struct {
	frontend servicemodel.FrontendKey
	addr     netip.AddrPort
}

// Of sums up what concerns the services of a table, on a node with these addresses.
func (r *Reading) Of(t *servicemodel.Table, here servicemodel.Locality) *Sums {
	s := &Sums{map[servicemodel.FrontendKey]Values{}, map[endpoint]Values{}}
	keys := map[servicemodel.FrontendKey]bool{}
	for f := range t.Frontends() {
		keys[f.Key] = true
	}
	local := map[netip.Addr]bool{}
	for _, a := range here {
		local[a] = true
	}
	for p, v := range r.Pairs {
		k := servicemodel.FrontendKey{Addr: p.Dst.Addr(), Protocol: p.Protocol, Port: p.Dst.Port()}
		if !keys[k] && (local[k.Addr] || k.Addr.IsLoopback()) {
			k.Addr = nft.Families[nft.FamilyIndex(k.Addr)].Any
		}
		if !keys[k] {
			continue
		}
		e := endpoint{k, p.Endpoint}
		s.frontends[k], s.endpoints[e] = s.frontends[k].plus(v), s.endpoints[e].plus(v)
	}
	return s
}

// Frontend returns what was counted of a frontend, also of endpoints that it no longer has.
func (s *Sums) Frontend(k servicemodel.FrontendKey) Values { return s.frontends[k] }

// Endpoint returns what was counted of an endpoint of a frontend.
func (s *Sums) Endpoint(k servicemodel.FrontendKey, addr netip.AddrPort) Values {
	return s.endpoints[endpoint{k, addr}]
}

// The sets.
const (
	setConnections = "connections"
	setRequests    = "requests"
	setAnswers     = "answers"
)

var setNames = [...]string{setConnections, setRequests, setAnswers}

const (
	setSize   = 1 << 16
	forgotten = 24 * time.Hour
	// afterDNAT is behind the translation of destinations and what the nftables backend learns from
	// it.
	afterDNAT = -98
)

// set is a set of pairs.
func set(f *nft.Family, name string, size int) *nft.Set {
	return &nft.Set{Name: name, Flags: nft.SetTimeout | nft.SetEval, Size: uint32(size),
		Key: []nft.Field{f.Addr, nft.FieldProto, nft.FieldPort, f.Addr, nft.FieldPort}}
}

// program makes the chains of a table.
func program(f *nft.Family) nft.Program {
	var p nft.Program
	pair := nft.Concat{f.CTDaddr, nft.CTOriginalProtocol, nft.CTOriginalDPort, f.CTReplySaddr,
		nft.CTReplySPort}
	c := p.Chain("count")
	c.Add(nft.CTDirOriginal, nft.CTUnconfirmed, nft.Count(setConnections, pair, forgotten))
	c.Add(nft.CTDirOriginal, nft.Count(setRequests, pair, forgotten))
	c.Add(nft.CTDirReply, nft.Count(setAnswers, pair, forgotten))
	// What goes from the node to itself passes both hooks.
	p.Filter("prerouting", nft.HookPrerouting, afterDNAT).Add(nft.IIFNameNot("lo"),
		nft.CTStatusDNAT, nft.Jump(c.Name))
	p.Filter("output", nft.HookOutput, afterDNAT).Add(nft.CTStatusDNAT, nft.Jump(c.Name))
	return p
}

// add adds an element of a set to a reading.
func (r *Reading) add(f *nft.Family, name string, c nft.Counted) bool {
	k := nft.Reader{Bytes: c.Key}
	var p Pair
	dst := k.Addr(f.AddrLen)
	p.Protocol = k.Proto()
	p.Dst = netip.AddrPortFrom(dst, k.Port())
	p.Endpoint = k.Endpoint(f.AddrLen)
	if !k.Done() {
		return false
	}
	v := r.Pairs[p]
	switch name {
	case setConnections:
		v.Connections = c.Packets
	case setRequests:
		v.PacketsIn, v.BytesIn = c.Packets, c.Bytes
	case setAnswers:
		v.PacketsOut, v.BytesOut = c.Packets, c.Bytes
	}
	r.Pairs[p] = v
	return true
}
