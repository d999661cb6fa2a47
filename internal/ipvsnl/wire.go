package ipvsnl

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"time"

	"github.com/kernlb/kernlb/internal/rawnl"
)

// Attributes of the first level of a message, in the kernel's order.
const (
	CmdAttrService       uint16 = iota + 1 // IPVS_CMD_ATTR_SERVICE
	CmdAttrDestination                     // IPVS_CMD_ATTR_DEST
	CmdAttrDaemon                          // IPVS_CMD_ATTR_DAEMON
	CmdAttrTimeoutTCP                      // IPVS_CMD_ATTR_TIMEOUT_TCP
	CmdAttrTimeoutTCPFin                   // IPVS_CMD_ATTR_TIMEOUT_TCP_FIN
	CmdAttrTimeoutUDP                      // IPVS_CMD_ATTR_TIMEOUT_UDP
)

// Wire is the service and the destination in a message.
type Wire struct {
	Service     WireService     // zero if the message has none
	Destination WireDestination // likewise
}

// Parse parses the attributes of a message about a service or a destination.
func Parse(attrs []byte) (w Wire, err error) {
	it := rawnl.Attrs(attrs)
	for it.Next() && err == nil {
		switch it.Type() {
		case CmdAttrService:
			w.Service, err = parseService(it.Data())
		case CmdAttrDestination:
			w.Destination, err = parseDestination(it.Data())
		}
	}

	return w, cmp.Or(err, it.Err())
}

const addrLen = 16 // union nf_inet_addr, for IPv4 too

// putAddr appends addr as a union nf_inet_addr: 16 bytes, of which IPv4 uses the first 4.
func putAddr(b *rawnl.Batch, typ uint16, addr netip.Addr) {
	var u [addrLen]byte
	if addr.Is4() {
		a := addr.As4()
		copy(u[:], a[:])
	} else {
		u = addr.As16()
	}

	b.Attr(typ, u[:])
}

// wireAddr is an address in a message whose family is not known yet: the beginning of a union
// nf_inet_addr.
type wireAddr []byte

func addr(it *rawnl.AttrIter) wireAddr {
	if n := len(it.Data()); n > addrLen {
		it.Fail("has %d bytes of data, want at most %d", n, addrLen)
		return nil
	}

	return it.Data()
}

// in decodes u in the family f.
func (u wireAddr) in(f Family) (netip.Addr, error) {
	switch {
	case f == FamilyIPv4 && len(u) >= 4:
		return netip.AddrFrom4([4]byte(u)), nil
	case f == FamilyIPv6 && len(u) == addrLen:
		return netip.AddrFrom16([addrLen]byte(u)), nil
	}

	return netip.Addr{}, malformed("an address of %v has %d bytes", f, len(u))
}

// text returns a NUL-terminated string of at most limit bytes.
func text(it *rawnl.AttrIter, limit int) string {
	n := len(it.Data()) - 1
	switch {
	case n < 0 || it.Data()[n] != 0:
		it.Fail("is not a terminated string")
	case n > limit:
		it.Fail("is a string of %d bytes, want at most %d", n, limit)
	default:
		return string(it.Data()[:n])
	}

	return ""
}

// malformed returns an error that matches [rawnl.ErrMalformed].
func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", rawnl.ErrMalformed, fmt.Sprintf(format, args...))
}

// about adds the name of the malformed object to an error.
func about(object string, err error) error {
	if err != nil {
		err = fmt.Errorf("%s: %w", object, err)
	}
	return err
}

// attrSet is a set of attribute types below 32. This package does not know higher types.
type attrSet uint32

// has reports whether s has all of types.
func (s attrSet) has(types ...uint16) bool {
	for _, typ := range types {
		if s&(1<<typ) == 0 {
			return false
		}
	}

	return true
}

// Stats are the counters of a service or a destination (IPVS_STATS_ATTR_*,
// include/uapi/linux/ip_vs.h). The kernel updates all of them every two seconds. It also sends
// rates, which no caller needs.
type Stats struct {
	Connections uint64 // scheduled so far
	InPackets   uint64 // from clients
	OutPackets  uint64 // to clients; with direct routing and tunnels the kernel does not see them
	InBytes     uint64
	OutBytes    uint64
}

// StatsAttrConns is the first attribute of statistics, IPVS_STATS_ATTR_CONNS. The other attributes
// of [Stats] follow in the same order.
const StatsAttrConns uint16 = 1

// Counters are the fields of s in the order of their attributes, from [StatsAttrConns] on.
func (s *Stats) Counters() [5]*uint64 {
	return [5]*uint64{&s.Connections, &s.InPackets, &s.OutPackets, &s.InBytes, &s.OutBytes}
}

// stats parses the statistics in an attribute. Linux 4.1 and newer send an attribute with numbers
// of 64 bits, in addition to an attribute where most numbers have 32 bits.
func stats(it *rawnl.AttrIter) (s Stats) {
	inner := rawnl.Attrs(it.Data())
	for inner.Next() {
		if i := int(inner.Type()) - int(StatsAttrConns); 0 <= i && i < len(s.Counters()) {
			*s.Counters()[i] = inner.NativeU64()
		}
	}

	if err := inner.Err(); err != nil {
		it.Fail("has statistics that are malformed: %v", err)
	}
	return s
}

// Timeouts are the times for which the kernel keeps idle connections, for all services of the
// network namespace (IPVS_CMD_SET_CONFIG). When they are set, zero leaves a timeout unchanged. The
// defaults of a namespace are 15 minutes, 2 minutes and 5 minutes.
type Timeouts struct {
	TCP    time.Duration // established TCP connections; whole seconds
	TCPFin time.Duration // TCP connections after a FIN; whole seconds
	UDP    time.Duration // whole seconds
}

// Validate returns an error that names the invalid field. The kernel refuses, with EINVAL, more
// than 2147483647 of its clock ticks: 24 days at 1000 Hz, 99 days at 250 Hz.
func (t Timeouts) Validate() error {
	for i, d := range t.fields() {
		if *d < 0 || *d%time.Second != 0 || *d > math.MaxInt32*time.Second {
			return fmt.Errorf("%s: %v: want whole seconds, at most %d",
				[...]string{"TCP", "TCPFin", "UDP"}[i], *d, math.MaxInt32)
		}
	}

	return nil
}

// putSeconds appends d in seconds. d must be whole seconds.
func putSeconds(b *rawnl.Batch, typ uint16, d time.Duration) {
	b.NativeU32(typ, uint32(d/time.Second))
}

// seconds returns the data as a number of seconds.
func seconds(it *rawnl.AttrIter) time.Duration {
	return time.Duration(it.NativeU32()) * time.Second
}

// fields are the timeouts in the order of their attributes, from [CmdAttrTimeoutTCP] on.
func (t *Timeouts) fields() [3]*time.Duration {
	return [3]*time.Duration{&t.TCP, &t.TCPFin, &t.UDP}
}

// PutTimeouts appends the attributes of t, except zero timeouts.
func PutTimeouts(b *rawnl.Batch, t Timeouts) {
	for i, d := range t.fields() {
		if *d != 0 {
			putSeconds(b, CmdAttrTimeoutTCP+uint16(i), *d)
		}
	}
}

// ParseTimeouts parses the attributes of IPVS_CMD_SET_CONFIG. A kernel without TCP or UDP in IPVS
// (CONFIG_IP_VS_PROTO_TCP) leaves their timeouts out.
func ParseTimeouts(attrs []byte) (t Timeouts, err error) {
	it := rawnl.Attrs(attrs)
	for it.Next() {
		if typ := it.Type(); typ >= CmdAttrTimeoutTCP && typ <= CmdAttrTimeoutUDP {
			*t.fields()[typ-CmdAttrTimeoutTCP] = seconds(&it)
		}
	}

	return t, it.Err()
}
