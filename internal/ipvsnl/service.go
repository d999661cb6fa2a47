package ipvsnl

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/kernlb/kernlb/internal/rawnl"
)

// Limits of a service.
const (
	maxSchedulerName   = 15 // IP_VS_SCHEDNAME_MAXLEN, with the NUL
	maxPersistenceName = 16 // IP_VS_PENAME_MAXLEN: the policy allows as many, and a NUL

	// MaxPersistence is the longest timeout of persistence. The kernel counts it in clock ticks of
	// 32 bits and does not check for overflow, so that much more than this would become very
	// little; ipvsadm has the same limit.
	MaxPersistence = 31 * 24 * time.Hour
)

// ServiceKey names a virtual service, the kernel's own way: by protocol, address and port, or by
// firewall mark. Keys can be compared with ==. [AddressService] and [MarkService] make them.
type ServiceKey struct {
	Family   Family
	Protocol Protocol   // 0 for a service by mark, which takes any protocol
	Addr     netip.Addr // of Family, not mapped, without zone; invalid for a service by mark
	Port     uint16     // 0, which is allowed for persistent services only, means every port
	FWMark   uint32     // not 0 for a service by mark
}

// AddressService returns the key of the service at addr. An IPv4 address mapped into IPv6 is taken
// as IPv4.
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

// Validate returns an [ErrInvalid] that names the field at fault.
func (k ServiceKey) Validate() error {
	if err := k.encodable(); err != nil || k.FWMark != 0 {
		return err
	}
	switch {
	case k.Protocol != TCP && k.Protocol != UDP && k.Protocol != SCTP:
		return invalid(k, "protocol", "%v is not TCP, UDP or SCTP", k.Protocol)
	case k.Addr.IsUnspecified() || k.Addr.IsMulticast():
		return invalid(k, "address", "%v is no unicast address", k.Addr)
	}
	return nil
}

// encodable reports whether k can name a service that exists: others may have made some that we
// never would.
func (k ServiceKey) encodable() error {
	switch {
	case k.Family != FamilyIPv4 && k.Family != FamilyIPv6:
		return invalid(k, "family", "%v is neither IPv4 nor IPv6", k.Family)
	case k.FWMark != 0 && k != MarkService(k.Family, k.FWMark):
		return invalid(k, "firewall mark", "a service by mark has no protocol, address or port")
	case k.FWMark != 0:
		return nil
	}
	if err := checkAddr(k.Addr, k.Family); err != nil {
		return invalid(k, "address", "%v", err)
	}
	return nil
}

// checkAddr reports what is wrong with a as an address of the family f.
func checkAddr(a netip.Addr, f Family) error {
	switch {
	case !a.IsValid():
		return errors.New("missing")
	case a.Is4In6():
		return fmt.Errorf("%v is mapped into IPv6", a)
	case a.Zone() != "":
		return fmt.Errorf("%v has a zone", a)
	case familyOf(a) != f:
		return fmt.Errorf("%v is not of the family %v", a, f)
	}
	return nil
}

// Service is a virtual service as it is wanted. Two wanted services are the same if they are ==,
// and so are a wanted and an observed one: what is embedded in [ObservedService] can be compared to
// what was asked for.
type Service struct {
	ServiceKey
	// Scheduler is the name of the scheduler, for example "rr". The kernel loads its module,
	// ip_vs_rr, by itself. "none" means no scheduler: then no new connection is taken.
	Scheduler string
	// Flags, without FlagHashed.
	Flags ServiceFlags
	// Timeout is how long a client keeps its destination after its last connection, if
	// FlagPersistent is set. Whole seconds, at most MaxPersistence. The kernel keeps any value also
	// without the flag.
	Timeout time.Duration
	// Netmask says which clients count as one for persistence. The zero value means each for
	// itself.
	Netmask Netmask
	// PersistenceEngine is the name of what finds out, instead of the source address, which
	// connections belong together: "sip", from the module ip_vs_pe_sip, or nothing.
	PersistenceEngine string
}

// Validate returns an [ErrInvalid] that names the field at fault: what the kernel would refuse, and
// what it would take but could not do.
func (s Service) Validate() error {
	if err := s.ServiceKey.Validate(); err != nil {
		return err
	}
	if err := wholeSeconds(s.Timeout, MaxPersistence); err != nil {
		return invalid(s, "timeout", "%v", err)
	}
	switch {
	case s.Scheduler == "":
		return invalid(s, "scheduler", "missing")
	case !validName(s.Scheduler, maxSchedulerName):
		return invalid(s, "scheduler", "%q is not a name of at most %d characters", s.Scheduler,
			maxSchedulerName)
	case !validName(s.PersistenceEngine, maxPersistenceName):
		return invalid(s, "persistence engine", "%q is not a name of at most %d characters",
			s.PersistenceEngine, maxPersistenceName)
	case s.Flags&FlagHashed != 0:
		return invalid(s, "flags", "%v belongs to the kernel", FlagHashed)
	case !s.Netmask.valid(s.Family):
		return invalid(s, "netmask", "not one of %v", s.Family)
	case s.Port == 0 && s.FWMark == 0 && s.Flags&FlagPersistent == 0:
		return invalid(s, "port", "0 needs the flag %v", FlagPersistent)
	}
	return nil
}

// validName reports whether s may be part of a module's name.
func validName(s string, limit int) bool {
	return len(s) <= limit && !strings.ContainsFunc(s, func(r rune) bool {
		return r <= ' ' || r >= 0x7f || r == '/'
	})
}

// ObservedService is a virtual service as the kernel reports it.
type ObservedService struct {
	Service      // without FlagHashed
	Hashed  bool // whether FlagHashed is set, as it is on every service that can be found
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

// allFlags is the mask that sets every flag of a service: with it, a request says all there is to
// say.
const allFlags = ^uint32(0)

// putServiceKey appends k as the service of a request about something that exists.
func putServiceKey(b *rawnl.Batch, k ServiceKey) {
	m := b.Nest(CmdAttrService)
	putKey(b, k)
	b.End(m)
}

// putKey appends the attributes that name a service.
func putKey(b *rawnl.Batch, k ServiceKey) {
	b.NativeU16(SvcAttrFamily, uint16(k.Family))
	if k.FWMark != 0 {
		b.NativeU32(SvcAttrFWMark, k.FWMark)
		return
	}
	b.NativeU16(SvcAttrProtocol, uint16(k.Protocol))
	putAddr(b, SvcAttrAddr, k.Addr)
	b.U16(SvcAttrPort, k.Port)
}

// PutService appends the attributes of s, which belong into [CmdAttrService]. Flags are sent with a
// mask that says which to set:
//
//	struct ip_vs_flags { __u32 flags; __u32 mask; };
func PutService(b *rawnl.Batch, s Service) {
	putKey(b, s.ServiceKey)
	b.Text(SvcAttrScheduler, s.Scheduler)
	if s.PersistenceEngine != "" {
		b.Text(SvcAttrPEName, s.PersistenceEngine)
	}
	m := b.Begin(SvcAttrFlags)
	b.RawNativeU32(uint32(s.Flags))
	b.RawNativeU32(allFlags)
	b.End(m)
	putSeconds(b, SvcAttrTimeout, s.Timeout)
	putNetmask(b, SvcAttrNetmask, s.Family, s.Netmask)
}

// WireService is the service of a message, as its attributes say it. What they do not say is zero.
type WireService struct {
	Family            Family
	Scheduler         string
	Flags, Mask       ServiceFlags // the flags, and which of them a request sets
	PersistenceEngine string

	present  attrSet
	protocol Protocol
	addr     wireAddr
	port     uint16
	fwmark   uint32
	timeout  time.Duration
	netmask  wireNetmask
	stats    Stats
}

// parseService parses the attributes inside IPVS_CMD_ATTR_SERVICE.
func parseService(attrs []byte) (w WireService, err error) {
	it := rawnl.Attrs(attrs)
	var narrow, wide []byte
	for it.Next() {
		w.present = w.present.with(it.Type())
		switch it.Type() {
		case SvcAttrFamily:
			w.Family = Family(it.NativeU16())
		case SvcAttrProtocol:
			w.protocol = Protocol(it.NativeU16())
		case SvcAttrAddr:
			w.addr = addr(&it)
		case SvcAttrPort:
			w.port = it.U16()
		case SvcAttrFWMark:
			w.fwmark = it.NativeU32()
		case SvcAttrScheduler:
			w.Scheduler = text(&it, maxSchedulerName)
		case SvcAttrFlags:
			p := it.Fixed(8)
			w.Flags = ServiceFlags(binary.NativeEndian.Uint32(p))
			w.Mask = ServiceFlags(binary.NativeEndian.Uint32(p[4:]))
		case SvcAttrTimeout:
			w.timeout = seconds(&it)
		case SvcAttrNetmask:
			w.netmask = wireNetmask(it.Fixed(4))
		case SvcAttrPEName:
			w.PersistenceEngine = text(&it, maxPersistenceName)
		case SvcAttrStats:
			narrow = it.Data()
		case SvcAttrStats64:
			wide = it.Data()
		}
	}
	w.stats, err = finish(&it, "service", narrow, wide)
	return w, err
}

// Full reports whether w has what a new service needs, besides its name.
func (w WireService) Full() bool {
	return w.present.has(SvcAttrScheduler, SvcAttrFlags, SvcAttrTimeout, SvcAttrNetmask)
}

// Named reports whether w names a service, as the kernel requires of it
// (ip_vs_genl_parse_service).
func (w WireService) Named() bool {
	return w.present.has(SvcAttrFamily) &&
		(w.present.has(SvcAttrFWMark) || w.present.has(SvcAttrPort, SvcAttrProtocol, SvcAttrAddr))
}

// Key returns the key of the service, or an [rawnl.ErrMalformed].
func (w WireService) Key() (ServiceKey, error) {
	if !w.Named() {
		return ServiceKey{}, malformed("service: neither a mark nor protocol, address and port")
	}
	if w.present.has(SvcAttrFWMark) && w.fwmark != 0 {
		return MarkService(w.Family, w.fwmark), nil
	}
	a, err := w.addr.in(w.Family)
	if err != nil {
		return ServiceKey{}, fmt.Errorf("service: %w", err)
	}
	return ServiceKey{Family: w.Family, Protocol: w.protocol, Addr: a, Port: w.port}, nil
}

// Observed returns the whole service, or an [rawnl.ErrMalformed].
func (w WireService) Observed() (ObservedService, error) {
	key, err := w.Key()
	if err != nil {
		return ObservedService{}, err
	}
	if !w.Full() {
		return ObservedService{}, malformed("service %v: not all attributes are there", key)
	}
	mask, err := w.netmask.in(w.Family)
	if err != nil {
		return ObservedService{}, fmt.Errorf("service %v: %w", key, err)
	}
	return ObservedService{
		Service: Service{
			ServiceKey: key, Scheduler: w.Scheduler, Flags: w.Flags &^ FlagHashed,
			Timeout: w.timeout, Netmask: mask, PersistenceEngine: w.PersistenceEngine,
		},
		Hashed: w.Flags&FlagHashed != 0,
		Stats:  w.stats,
	}, nil
}

// parseServiceReply parses the attributes of IPVS_CMD_NEW_SERVICE.
func parseServiceReply(attrs []byte) (ObservedService, error) {
	w, err := Parse(attrs)
	if err != nil {
		return ObservedService{}, err
	}
	return w.Service.Observed()
}
