package ipvsnl

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"

	"github.com/kernlb/kernlb/internal/rawnl"
)

// Limits of a service.
const (
	maxSchedulerName   = 15 // IP_VS_SCHEDNAME_MAXLEN, with the NUL
	maxPersistenceName = 16 // IP_VS_PENAME_MAXLEN: the policy allows as many, and a NUL
)

// ServiceKey names a virtual service as the kernel does: by protocol, address and port, or by
// firewall mark. Keys can be compared with ==. [AddressService] and [MarkService] return keys.
type ServiceKey struct {
	Family   Family
	Protocol Protocol   // 0 for a service by mark, which accepts any protocol
	Addr     netip.Addr // of Family, not mapped, without zone; invalid for a service by mark
	Port     uint16     // 0 means every port, and is allowed for persistent services only
	FWMark   uint32     // not 0 for a service by mark
}

// AddressService returns the key of the service at addr. An IPv4 address mapped into IPv6 counts as
// IPv4.
func AddressService(p Protocol, addr netip.AddrPort) ServiceKey {
	a := addr.Addr().Unmap()
	return ServiceKey{Family: familyOf(a), Protocol: p, Addr: a, Port: addr.Port()}
}

// MarkService returns the key of the service for packets of the family f with the firewall mark.
func MarkService(f Family, mark uint32) ServiceKey { return ServiceKey{Family: f, FWMark: mark} }

// familyOf returns the family of a, 0 if a is not valid.
func familyOf(a netip.Addr) Family {
	switch {
	case a.Is4():
		return FamilyIPv4
	case a.Is6():
		return FamilyIPv6
	}

	return 0
}

// String returns the key much as ipvsadm prints it: "TCP 10.0.0.1:80" or "FWM 7 IPv4".
func (k ServiceKey) String() string {
	if k.FWMark != 0 {
		return fmt.Sprintf("FWM %d %v", k.FWMark, k.Family)
	}
	return fmt.Sprintf("%v %v", k.Protocol, netip.AddrPortFrom(k.Addr, k.Port))
}

// Compare orders keys: services by mark last, then by family, address, port and protocol.
func (k ServiceKey) Compare(o ServiceKey) int {
	return cmp.Or(cmp.Compare(k.FWMark, o.FWMark), cmp.Compare(k.Family, o.Family),
		k.Addr.Compare(o.Addr),
		cmp.Compare(k.Port, o.Port), cmp.Compare(k.Protocol, o.Protocol))
}

// ServiceFlags are the flags of a service (IP_VS_SVC_F_*, include/uapi/linux/ip_vs.h).
type ServiceFlags uint32

// The flags of a service. Each scheduler gives the scheduler flags its own meaning, or ignores
// them.
const (
	// IP_VS_SVC_F_PERSISTENT: a client keeps its destination for Timeout
	FlagPersistent ServiceFlags = 0x01
	// IP_VS_SVC_F_HASHED: set by the kernel, on every service it lists
	FlagHashed ServiceFlags = 0x02
	// IP_VS_SVC_F_ONEPACKET: schedule each UDP datagram separately
	FlagOnePacket ServiceFlags = 0x04
	// FlagFallback, for sh and mh: take another destination if the chosen one is overloaded or has
	// weight 0 (IP_VS_SVC_F_SCHED_SH_FALLBACK, IP_VS_SVC_F_SCHED_MH_FALLBACK: IP_VS_SVC_F_SCHED1).
	FlagFallback ServiceFlags = 0x08
	// FlagHashPort, for sh and mh: choose by source address and port, not by address alone
	// (IP_VS_SVC_F_SCHED_SH_PORT, IP_VS_SVC_F_SCHED_MH_PORT: IP_VS_SVC_F_SCHED2).
	FlagHashPort ServiceFlags = 0x10
)

// Service is the desired form of a virtual service. Two services with the same settings are equal
// by ==. A desired service can be compared with the Service in an [ObservedService].
type Service struct {
	ServiceKey
	// Scheduler is the name of the scheduler, for example "rr". The kernel loads its module,
	// ip_vs_rr, on demand. "none" means no scheduler: the service accepts no new connections.
	Scheduler string
	// Flags of the service, without FlagHashed.
	Flags ServiceFlags
	// Timeout is the time that a client keeps its destination after its last connection, if
	// FlagPersistent is set. Whole seconds. The kernel stores any value even without the flag. It
	// counts clock ticks of 32 bits and does not check for overflow; ipvsadm allows 31 days.
	Timeout time.Duration
	// Netmask says which clients count as one client for persistence. With the zero value, each
	// address is a separate client.
	Netmask Netmask
	// PersistenceEngine is the name of the engine that decides which connections belong together,
	// instead of the source address: "sip", from the module ip_vs_pe_sip, or "".
	PersistenceEngine string
}

// ObservedService is a virtual service as the kernel reports it.
type ObservedService struct {
	Service // without FlagHashed
	Stats   Stats
}

// Attributes of a service, in the kernel's order.
const (
	SvcAttrFamily    uint16 = iota + 1 // IPVS_SVC_ATTR_AF
	SvcAttrProtocol                    // IPVS_SVC_ATTR_PROTOCOL
	SvcAttrAddr                        // IPVS_SVC_ATTR_ADDR
	SvcAttrPort                        // IPVS_SVC_ATTR_PORT
	SvcAttrFWMark                      // IPVS_SVC_ATTR_FWMARK
	SvcAttrScheduler                   // IPVS_SVC_ATTR_SCHED_NAME
	SvcAttrFlags                       // IPVS_SVC_ATTR_FLAGS
	SvcAttrTimeout                     // IPVS_SVC_ATTR_TIMEOUT
	SvcAttrNetmask                     // IPVS_SVC_ATTR_NETMASK
	SvcAttrStats                       // IPVS_SVC_ATTR_STATS
	SvcAttrPEName                      // IPVS_SVC_ATTR_PE_NAME
	SvcAttrStats64                     // IPVS_SVC_ATTR_STATS64
)

// allFlags is the mask that sets every flag of a service. With it, a request replaces all flags.
const allFlags = ^uint32(0)

// putServiceKey appends the attributes that name a service.
func putServiceKey(b *rawnl.Batch, k ServiceKey) {
	b.NativeU16(SvcAttrFamily, uint16(k.Family))
	if k.FWMark != 0 {
		b.NativeU32(SvcAttrFWMark, k.FWMark)
		return
	}

	b.NativeU16(SvcAttrProtocol, uint16(k.Protocol))
	putAddr(b, SvcAttrAddr, k.Addr)
	b.U16(SvcAttrPort, k.Port)
}

// PutService appends the attributes of s, which belong in [CmdAttrService]. Flags are sent with a
// mask of the flags to set:
//
//	struct ip_vs_flags { __u32 flags; __u32 mask; };
func PutService(b *rawnl.Batch, s Service) {
	putServiceKey(b, s.ServiceKey)
	b.Text(SvcAttrScheduler, s.Scheduler)
	if s.PersistenceEngine != "" {
		b.Text(SvcAttrPEName, s.PersistenceEngine)
	}
	var flags [8]byte
	binary.NativeEndian.PutUint32(flags[:], uint32(s.Flags))
	binary.NativeEndian.PutUint32(flags[4:], allFlags)
	b.Attr(SvcAttrFlags, flags[:])
	putSeconds(b, SvcAttrTimeout, s.Timeout)
	mask := s.Netmask.wire(s.Family)
	b.Attr(SvcAttrNetmask, mask[:])
}

// WireService is a service as the attributes of a message describe it. Fields without an attribute
// are zero.
type WireService struct {
	ObservedService // without the address and the netmask

	present attrSet
	addr    wireAddr
	netmask [4]byte
}

// parseService parses the attributes inside IPVS_CMD_ATTR_SERVICE.
func parseService(attrs []byte) (w WireService, err error) {
	it := rawnl.Attrs(attrs)
	for it.Next() {
		w.present |= 1 << it.Type()
		switch it.Type() {
		case SvcAttrFamily:
			w.Family = Family(it.NativeU16())
		case SvcAttrProtocol:
			w.Protocol = Protocol(it.NativeU16())
		case SvcAttrAddr:
			w.addr = addr(&it)
		case SvcAttrPort:
			w.Port = it.U16()
		case SvcAttrFWMark:
			w.FWMark = it.NativeU32()
		case SvcAttrScheduler:
			w.Scheduler = text(&it, maxSchedulerName)
		case SvcAttrFlags:
			w.Flags = ServiceFlags(binary.NativeEndian.Uint32(it.Fixed(8)))
		case SvcAttrTimeout:
			w.Timeout = seconds(&it)
		case SvcAttrNetmask:
			w.netmask = [4]byte(it.Fixed(4))
		case SvcAttrPEName:
			w.PersistenceEngine = text(&it, maxPersistenceName)
		case SvcAttrStats64:
			w.Stats = stats(&it)
		}
	}

	return w, about("service", it.Err())
}

// Key returns the key of the service, or an [rawnl.ErrMalformed]. The kernel requires the same
// attributes of a request (ip_vs_genl_parse_service).
func (w WireService) Key() (ServiceKey, error) {
	switch {
	case !w.present.has(SvcAttrFamily):
	case w.FWMark != 0:
		return MarkService(w.Family, w.FWMark), nil
	case w.present.has(SvcAttrPort, SvcAttrProtocol, SvcAttrAddr):
		a, err := w.addr.in(w.Family)
		return ServiceKey{Family: w.Family, Protocol: w.Protocol, Addr: a, Port: w.Port},
			about("service", err)
	}

	return ServiceKey{}, malformed("service: neither a mark nor protocol, address and port")
}

// Observed returns the whole service, or an [rawnl.ErrMalformed].
func (w WireService) Observed() (ObservedService, error) {
	key, err := w.Key()
	if err != nil {
		return ObservedService{}, err
	}
	if !w.present.has(SvcAttrScheduler, SvcAttrFlags, SvcAttrTimeout, SvcAttrNetmask) {
		return ObservedService{}, malformed("service %v: not all attributes are there", key)
	}
	w.ServiceKey, w.Flags, w.Netmask = key, w.Flags&^FlagHashed, netmask(w.netmask, w.Family)
	return w.ObservedService, nil
}

// parseServiceReply parses the attributes of IPVS_CMD_NEW_SERVICE.
func parseServiceReply(attrs []byte) (ObservedService, error) {
	w, err := Parse(attrs)
	if err != nil {
		return ObservedService{}, err
	}
	return w.Service.Observed()
}

// Netmask is the number of bits of a client's address that count for persistence: clients that
// agree in these bits share a destination. The zero value means the whole address, in both
// families.
//
// The kernel wants an IPv4 netmask, which need not be contiguous, or an IPv6 prefix length from 1
// to 128 (svc->netmask; ip_vs_add_service in net/netfilter/ipvs/ip_vs_ctl.c). A Netmask is the
// complement of the IPv4 netmask, or 128 less the prefix length.
type Netmask uint32

// PrefixNetmask returns the netmask whose first n bits are set: 0 to 32 for IPv4, 1 to 128 for
// IPv6.
func PrefixNetmask(f Family, n int) Netmask {
	if f == FamilyIPv6 {
		return Netmask(128 - n)
	}
	return Netmask(uint64(1)<<(32-n) - 1)
}

// Text returns m as ipvsadm prints it: "255.255.255.0" for IPv4, "64" for IPv6.
func (m Netmask) Text(f Family) string {
	b := m.wire(f)
	if f == FamilyIPv6 {
		return fmt.Sprint(binary.NativeEndian.Uint32(b[:]))
	}
	return netip.AddrFrom4(b).String()
}

// wire encodes m for the family f: an IPv4 mask in network byte order, an IPv6 prefix length in the
// byte order of the machine.
func (m Netmask) wire(f Family) (b [4]byte) {
	if f == FamilyIPv6 {
		binary.NativeEndian.PutUint32(b[:], uint32(128-m))
	} else {
		binary.BigEndian.PutUint32(b[:], uint32(^m))
	}

	return b
}

// netmask is the inverse of wire.
func netmask(b [4]byte, f Family) Netmask {
	if f == FamilyIPv6 {
		return 128 - Netmask(binary.NativeEndian.Uint32(b[:]))
	}
	return ^Netmask(binary.BigEndian.Uint32(b[:]))
}
