package ipvsnl

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"

	"github.com/kernlb/kernlb/internal/rawnl"
)

// MaxWeight is the greatest weight and the greatest threshold of a destination (INT_MAX).
const MaxWeight = math.MaxInt32

// DestinationKey names a destination within its service. Keys can be compared with ==.
type DestinationKey struct {
	Addr netip.Addr // not mapped, without zone
	// 0 means the port that the client asked for: for services by mark and for port 0
	Port uint16
}

// String returns the key as ipvsadm prints it: "10.1.0.1:8080".
func (k DestinationKey) String() string { return netip.AddrPortFrom(k.Addr, k.Port).String() }

// Family returns the family of the address, which is that of the service except for tunnels; 0
// without address.
func (k DestinationKey) Family() Family { return familyOf(k.Addr) }

// Compare orders keys by address and port.
func (k DestinationKey) Compare(o DestinationKey) int {
	return cmp.Or(k.Addr.Compare(o.Addr), cmp.Compare(k.Port, o.Port))
}

// Validate returns an [ErrInvalid] that names the field at fault.
func (k DestinationKey) Validate() error {
	if k.Addr.IsUnspecified() || k.Addr.IsMulticast() {
		return invalid(k, "address", "%v is no unicast address", k.Addr)
	}
	return k.encodable()
}

// encodable reports whether k can name a destination that exists.
func (k DestinationKey) encodable() error {
	if err := checkAddr(k.Addr, k.Family()); err != nil {
		return invalid(k, "address", "%v", err)
	}
	return nil
}

// Tunnel says how the kernel encapsulates packets to a destination, if its method is
// [ForwardTunnel]. The zero value is IP in IP, which is all that is written here; others may have
// chosen something else.
type Tunnel struct {
	Type  uint8  // IP_VS_CONN_F_TUNNEL_TYPE_* (Linux 5.2): 0 is IP in IP, 1 GUE, 2 GRE
	Port  uint16 // the UDP port of GUE (Linux 5.2)
	Flags uint16 // IP_VS_TUNNEL_ENCAP_FLAG_* (Linux 5.3)
}

// Destination is a real server of a service as it is wanted. Like services, destinations can be
// compared with ==, also a wanted and an observed one.
type Destination struct {
	DestinationKey
	// Weight is the share of new connections, relative to the other destinations, that the weighted
	// schedulers give: up to MaxWeight. 0 means no new connections at all, with every scheduler;
	// those that exist go on.
	Weight uint32
	// Forward is how packets reach the destination.
	Forward ForwardingMethod
	// Tunnel is not wanted: it is there to tell a destination that somebody has changed.
	Tunnel Tunnel
	// UpperThreshold is the number of connections at which no new ones are given, 0 for no limit.
	// At most MaxWeight.
	UpperThreshold uint32
	// LowerThreshold is the number of connections below which they are given again; 0 means three
	// quarters of UpperThreshold. At most UpperThreshold.
	LowerThreshold uint32
}

// Validate returns an [ErrInvalid] that names the field at fault: what the kernel would refuse, and
// what it would take but could not do.
func (d Destination) Validate() error {
	if err := d.DestinationKey.Validate(); err != nil {
		return err
	}
	switch {
	case d.Weight > MaxWeight:
		return invalid(d, "weight", "%d is more than %d", d.Weight, uint32(MaxWeight))
	case d.Forward > ForwardBypass:
		return invalid(d, "forwarding method", "there is no number %d", uint32(d.Forward))
	case d.UpperThreshold > MaxWeight:
		return invalid(d, "upper threshold", "%d is more than %d", d.UpperThreshold,
			uint32(MaxWeight))
	case d.LowerThreshold > d.UpperThreshold:
		return invalid(d, "lower threshold", "%d is more than the upper one, %d", d.LowerThreshold,
			d.UpperThreshold)
	case d.Tunnel != Tunnel{}:
		return invalid(d, "tunnel", "only IP in IP can be written")
	}
	return nil
}

// validIn returns an [ErrInvalid] if d cannot be a destination of the service k.
func (d Destination) validIn(k ServiceKey) error {
	if err := d.Validate(); err != nil {
		return err
	}
	// Mixed families: ip_vs_genl_set_cmd in net/netfilter/ipvs/ip_vs_ctl.c.
	if d.Family() != k.Family && d.Forward != ForwardTunnel {
		return invalid(d, "address", "%v, but the service is %v; that takes a tunnel", d.Family(),
			k.Family)
	}
	return nil
}

// ObservedDestination is a destination as the kernel reports it.
type ObservedDestination struct {
	Destination
	ActiveConns uint32 // established TCP and SCTP connections
	// all other connections that are remembered: being set up or torn down, and all of UDP
	InactiveConns   uint32
	PersistentConns uint32 // clients that persistence binds to the destination
	Stats           Stats
}

// Attributes of a destination, in the kernel's order.
const (
	DestAttrAddr        uint16 = iota + 1 // IPVS_DEST_ATTR_ADDR
	DestAttrPort                          // IPVS_DEST_ATTR_PORT
	DestAttrForward                       // IPVS_DEST_ATTR_FWD_METHOD
	DestAttrWeight                        // IPVS_DEST_ATTR_WEIGHT
	DestAttrUpper                         // IPVS_DEST_ATTR_U_THRESH
	DestAttrLower                         // IPVS_DEST_ATTR_L_THRESH
	DestAttrActive                        // IPVS_DEST_ATTR_ACTIVE_CONNS
	DestAttrInactive                      // IPVS_DEST_ATTR_INACT_CONNS
	DestAttrPersistent                    // IPVS_DEST_ATTR_PERSIST_CONNS
	DestAttrStats                         // IPVS_DEST_ATTR_STATS
	DestAttrFamily                        // IPVS_DEST_ATTR_ADDR_FAMILY (Linux 3.18)
	DestAttrStats64                       // IPVS_DEST_ATTR_STATS64
	DestAttrTunnelType                    // IPVS_DEST_ATTR_TUN_TYPE
	DestAttrTunnelPort                    // IPVS_DEST_ATTR_TUN_PORT
	DestAttrTunnelFlags                   // IPVS_DEST_ATTR_TUN_FLAGS
)

// putDestinationKey appends the attributes that name a destination. Without a family the kernel
// would take the address for one of the service's family.
func putDestinationKey(b *rawnl.Batch, k DestinationKey) {
	b.NativeU16(DestAttrFamily, uint16(k.Family()))
	putAddr(b, DestAttrAddr, k.Addr)
	b.U16(DestAttrPort, k.Port)
}

// PutDestination appends the attributes of d, which belong into [CmdAttrDestination]. What it
// leaves out the kernel takes as zero, also when it changes a destination: the tunnel.
func PutDestination(b *rawnl.Batch, d Destination) {
	putDestinationKey(b, d.DestinationKey)
	b.NativeU32(DestAttrForward, uint32(d.Forward))
	b.NativeU32(DestAttrWeight, d.Weight)
	b.NativeU32(DestAttrUpper, d.UpperThreshold)
	b.NativeU32(DestAttrLower, d.LowerThreshold)
}

// WireDestination is the destination of a message, as its attributes say it.
type WireDestination struct {
	Family Family // 0 if the message does not say it

	present attrSet
	addr    wireAddr
	dest    ObservedDestination // without the address
}

// number returns the field of an attribute that is a number of 32 bits, nil for another one.
func (w *WireDestination) number(typ uint16) *uint32 {
	switch typ {
	case DestAttrForward:
		return (*uint32)(&w.dest.Forward)
	case DestAttrWeight:
		return &w.dest.Weight
	case DestAttrUpper:
		return &w.dest.UpperThreshold
	case DestAttrLower:
		return &w.dest.LowerThreshold
	case DestAttrActive:
		return &w.dest.ActiveConns
	case DestAttrInactive:
		return &w.dest.InactiveConns
	case DestAttrPersistent:
		return &w.dest.PersistentConns
	}
	return nil
}

// parseDestination parses the attributes inside IPVS_CMD_ATTR_DEST.
func parseDestination(attrs []byte) (w WireDestination, err error) {
	it := rawnl.Attrs(attrs)
	var narrow, wide []byte
	for it.Next() {
		w.present = w.present.with(it.Type())
		if n := w.number(it.Type()); n != nil {
			*n = it.NativeU32()
			continue
		}
		switch it.Type() {
		case DestAttrAddr:
			w.addr = addr(&it)
		case DestAttrPort:
			w.dest.Port = it.U16()
		case DestAttrFamily:
			w.Family = Family(it.NativeU16())
		case DestAttrStats:
			narrow = it.Data()
		case DestAttrStats64:
			wide = it.Data()
		case DestAttrTunnelType:
			w.dest.Tunnel.Type = it.U8()
		case DestAttrTunnelPort:
			w.dest.Tunnel.Port = it.U16()
		case DestAttrTunnelFlags:
			w.dest.Tunnel.Flags = it.NativeU16()
		}
	}
	w.dest.Stats, err = finish(&it, "destination", narrow, wide)
	return w, err
}

// Named reports whether w names a destination, as the kernel requires of it
// (ip_vs_genl_parse_dest).
func (w WireDestination) Named() bool { return w.present.has(DestAttrAddr, DestAttrPort) }

// Full reports whether w has what a new destination needs, besides its name.
func (w WireDestination) Full() bool {
	return w.present.has(DestAttrForward, DestAttrWeight, DestAttrUpper, DestAttrLower)
}

// Key returns the key of a destination of a service of the family f, or an [rawnl.ErrMalformed].
func (w WireDestination) Key(f Family) (DestinationKey, error) {
	if !w.Named() {
		return DestinationKey{}, malformed("destination: no address or no port")
	}
	if w.Family != 0 {
		f = w.Family
	}
	a, err := w.addr.in(f)
	if err != nil {
		return DestinationKey{}, fmt.Errorf("destination: %w", err)
	}
	return DestinationKey{Addr: a, Port: w.dest.Port}, nil
}

// Observed returns the whole destination, of a service of the family f, or an [rawnl.ErrMalformed].
func (w WireDestination) Observed(f Family) (ObservedDestination, error) {
	key, err := w.Key(f)
	if err != nil {
		return ObservedDestination{}, err
	}
	if !w.Full() {
		return ObservedDestination{}, malformed("destination %v: not all attributes are there", key)
	}
	w.dest.DestinationKey = key
	return w.dest, nil
}

// parseDestinationReply parses the attributes of IPVS_CMD_NEW_DEST about a service of the family f.
func parseDestinationReply(attrs []byte, f Family) (ObservedDestination, error) {
	w, err := Parse(attrs)
	if err != nil {
		return ObservedDestination{}, err
	}
	return w.Destination.Observed(f)
}
