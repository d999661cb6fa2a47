package ipvsnl

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
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

// Tunnel says how packets to a destination are encapsulated, if its method is [ForwardTunnel]. The
// zero value is IP in IP.
type Tunnel struct {
	Type TunnelType // IPVS_DEST_ATTR_TUN_TYPE (Linux 5.2)
	// the UDP port, for TunnelGUE only, which needs one; IPVS_DEST_ATTR_TUN_PORT (Linux 5.2)
	Port  uint16
	Flags TunnelFlags // IPVS_DEST_ATTR_TUN_FLAGS (Linux 5.3)
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
	// Tunnel is for ForwardTunnel only.
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
	t := d.Tunnel
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
	case d.Forward != ForwardTunnel && t != Tunnel{}:
		return invalid(d, "tunnel", "the forwarding method is %v", d.Forward)
	case t.Type > TunnelGRE:
		return invalid(d, "tunnel type", "there is no number %d", uint8(t.Type))
	case t.Type == TunnelGUE && t.Port == 0:
		return invalid(d, "tunnel port", "gue needs one")
	case t.Type != TunnelGUE && t.Port != 0:
		return invalid(d, "tunnel port", "%v has none", t.Type)
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
	dstAttrAddr        uint16 = iota + 1 // IPVS_DEST_ATTR_ADDR
	dstAttrPort                          // IPVS_DEST_ATTR_PORT
	dstAttrForward                       // IPVS_DEST_ATTR_FWD_METHOD
	dstAttrWeight                        // IPVS_DEST_ATTR_WEIGHT
	dstAttrUpper                         // IPVS_DEST_ATTR_U_THRESH
	dstAttrLower                         // IPVS_DEST_ATTR_L_THRESH
	dstAttrActive                        // IPVS_DEST_ATTR_ACTIVE_CONNS
	dstAttrInactive                      // IPVS_DEST_ATTR_INACT_CONNS
	dstAttrPersistent                    // IPVS_DEST_ATTR_PERSIST_CONNS
	dstAttrStats                         // IPVS_DEST_ATTR_STATS
	dstAttrAddrFamily                    // IPVS_DEST_ATTR_ADDR_FAMILY (Linux 3.18)
	dstAttrStats64                       // IPVS_DEST_ATTR_STATS64
	dstAttrTunnelType                    // IPVS_DEST_ATTR_TUN_TYPE
	dstAttrTunnelPort                    // IPVS_DEST_ATTR_TUN_PORT
	dstAttrTunnelFlags                   // IPVS_DEST_ATTR_TUN_FLAGS
)

// appendDestinationKey appends k as the destination of IPVS_CMD_DEL_DEST.
func appendDestinationKey(b []byte, k DestinationKey) []byte {
	b, mark := beginNest(b, cmdAttrDestination)
	return endNest(appendDestinationKeyAttrs(b, k), mark)
}

// appendDestination appends d as the destination of IPVS_CMD_NEW_DEST or IPVS_CMD_SET_DEST.
func appendDestination(b []byte, d Destination) []byte {
	b, mark := beginNest(b, cmdAttrDestination)
	return endNest(appendDestinationAttrs(b, d), mark)
}

// appendObservedDestination appends d as the kernel does.
func appendObservedDestination(b []byte, d ObservedDestination) []byte {
	b, mark := beginNest(b, cmdAttrDestination)
	b = appendDestinationAttrs(b, d.Destination)
	b = appendU32(b, dstAttrActive, d.ActiveConns)
	b = appendU32(b, dstAttrInactive, d.InactiveConns)
	b = appendU32(b, dstAttrPersistent, d.PersistentConns)
	b = appendStats(b, dstAttrStats, d.Stats)
	b = appendStats64(b, dstAttrStats64, d.Stats)
	return endNest(b, mark)
}

// appendDestinationKeyAttrs appends the attributes that name a destination. Without a family the
// kernel would take the address for one of the service's family.
func appendDestinationKeyAttrs(b []byte, k DestinationKey) []byte {
	b = appendU16(b, dstAttrAddrFamily, uint16(k.Family()))
	b = appendAddr(b, dstAttrAddr, k.Addr)
	return appendPort(b, dstAttrPort, k.Port)
}

// appendDestinationAttrs appends the attributes of d. What it leaves out the kernel takes as zero,
// also when it changes a destination.
func appendDestinationAttrs(b []byte, d Destination) []byte {
	b = appendDestinationKeyAttrs(b, d.DestinationKey)
	b = appendU32(b, dstAttrForward, uint32(d.Forward))
	b = appendU32(b, dstAttrWeight, d.Weight)
	if d.Tunnel != (Tunnel{}) {
		b = appendU8(b, dstAttrTunnelType, uint8(d.Tunnel.Type))
		b = appendPort(b, dstAttrTunnelPort, d.Tunnel.Port)
		b = appendU16(b, dstAttrTunnelFlags, uint16(d.Tunnel.Flags))
	}
	b = appendU32(b, dstAttrUpper, d.UpperThreshold)
	return appendU32(b, dstAttrLower, d.LowerThreshold)
}

// wireDestination is the destination of a message, as its attributes say it. All of dest but the
// address is filled in.
type wireDestination struct {
	present attrSet
	family  Family
	addr    wireAddr
	dest    ObservedDestination
}

// decodeDestination decodes the attributes inside IPVS_CMD_ATTR_DEST.
func decodeDestination(data []byte) (w wireDestination, err error) {
	a := attrs{what: "destination", rest: data}
	var narrow, wide []byte
	d := &w.dest
	for a.next() {
		w.present = w.present.with(a.typ)
		switch a.typ {
		case dstAttrAddr:
			w.addr = a.addr()
		case dstAttrPort:
			d.Port = a.port()
		case dstAttrForward:
			d.Forward = ForwardingMethod(a.u32())
		case dstAttrWeight:
			d.Weight = a.u32()
		case dstAttrUpper:
			d.UpperThreshold = a.u32()
		case dstAttrLower:
			d.LowerThreshold = a.u32()
		case dstAttrActive:
			d.ActiveConns = a.u32()
		case dstAttrInactive:
			d.InactiveConns = a.u32()
		case dstAttrPersistent:
			d.PersistentConns = a.u32()
		case dstAttrStats:
			narrow = a.data
		case dstAttrAddrFamily:
			w.family = Family(a.u16())
		case dstAttrStats64:
			wide = a.data
		case dstAttrTunnelType:
			d.Tunnel.Type = TunnelType(a.u8())
		case dstAttrTunnelPort:
			d.Tunnel.Port = a.port()
		case dstAttrTunnelFlags:
			d.Tunnel.Flags = TunnelFlags(a.u16())
		}
	}
	if a.err == nil {
		d.Stats, a.err = decodeStats(narrow, wide)
	}
	return w, a.err
}

// identified reports whether w names a destination, as the kernel requires of it
// (ip_vs_genl_parse_dest).
func (w wireDestination) identified() bool { return w.present.has(dstAttrAddr, dstAttrPort) }

// full reports whether w has what a new destination needs.
func (w wireDestination) full() bool {
	return w.present.has(dstAttrForward, dstAttrWeight, dstAttrUpper, dstAttrLower)
}

// key returns the key of a destination of a service of the family f.
func (w wireDestination) key(f Family) (DestinationKey, error) {
	if !w.identified() {
		return DestinationKey{}, fmt.Errorf("%w: destination: no address or no port", ErrMalformed)
	}
	if w.family != 0 {
		f = w.family
	}
	addr, err := w.addr.in(f)
	if err != nil {
		return DestinationKey{}, fmt.Errorf("destination: %w", err)
	}
	return DestinationKey{Addr: addr, Port: w.dest.Port}, nil
}

// observed returns the whole destination, of a service of the family f.
func (w wireDestination) observed(f Family) (ObservedDestination, error) {
	key, err := w.key(f)
	if err != nil {
		return ObservedDestination{}, err
	}
	if !w.full() {
		return ObservedDestination{}, fmt.Errorf("%w: destination %v: not all attributes are there",
			ErrMalformed, key)
	}
	w.dest.DestinationKey = key
	return w.dest, nil
}
