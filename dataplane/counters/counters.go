package counters

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/kernlb/kernlb/dataplane/netns"
	"github.com/kernlb/kernlb/internal/nft"
)

// defaultTable is the name of the tables if [Config.Table] is empty.
const defaultTable = "kernlb-counters"

// ErrOff says that nothing is counted: [Counters.Start] has not been called, or another program
// deleted the tables.
var ErrOff = errors.New("counters are off")

// Source is a source of counts: [Counters] for nftables and iptables, the kernel's own counters for
// IPVS ([ipvs.Counters]), or the flows of conntrack ([flows.Counters]). A program that shows the
// counts does not depend on their source. Its method is safe for concurrent use.
//
// [ipvs.Counters]: https://pkg.go.dev/github.com/kernlb/kernlb/ipvs#Counters
// [flows.Counters]: https://pkg.go.dev/github.com/kernlb/kernlb/dataplane/flows#Counters
type Source interface {
	Read(ctx context.Context) (*Reading, error)
}

var _ Source = (*Counters)(nil)

// Config names the counters. A nil *Config is the zero Config.
type Config struct {
	// NetNS names the network namespace of the counters.
	NetNS netns.Namespace
	// Table is the name of the tables in the families ip and ip6. Empty means "kernlb-counters".
	Table string
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
	// afterDNAT is a priority after the translation of destinations, and after the rules with which
	// the nftables backend remembers clients of translated packets.
	afterDNAT = -98
)

func set(f *nft.Family, name string, size int) *nft.Set {
	return &nft.Set{Name: name, Flags: nft.SetTimeout | nft.SetEval, Size: uint32(size),
		Key: []nft.Field{f.Addr, nft.FieldProto, nft.FieldPort, f.Addr, nft.FieldPort}}
}

// program returns the chains of a table.
func program(f *nft.Family) nft.Program {
	var p nft.Program
	pair := nft.Concat{f.CTDaddr, nft.CTOriginalProtocol, nft.CTOriginalDPort, f.CTReplySaddr,
		nft.CTReplySPort}
	c := p.Chain("count")
	c.Add(nft.CTDirOriginal, nft.CTUnconfirmed, nft.Count(setConnections, pair, forgotten))
	c.Add(nft.CTDirOriginal, nft.Count(setRequests, pair, forgotten))
	c.Add(nft.CTDirReply, nft.Count(setAnswers, pair, forgotten))

	// Packets from the node to itself pass both hooks, and must count once.
	p.Filter("prerouting", nft.HookPrerouting, afterDNAT).Add(nft.IIFNameNot("lo"),
		nft.CTStatusDNAT, nft.Jump(c.Name))
	p.Filter("output", nft.HookOutput, afterDNAT).Add(nft.CTStatusDNAT, nft.Jump(c.Name))
	return p
}

// add adds an element of a set to a reading.
func (r *Reading) add(f *nft.Family, name string, e nft.Elem) bool {
	k := nft.Reader{Bytes: e.Key}
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
		v.Connections = e.Packets
	case setRequests:
		v.PacketsIn, v.BytesIn = e.Packets, e.Bytes
	case setAnswers:
		v.PacketsOut, v.BytesOut = e.Packets, e.Bytes
	}

	r.Pairs[p] = v
	return true
}
