package ipvsnl

import (
	"cmp"
	"math"
	"net/netip"

	"github.com/kernlb/kernlb/internal/rawnl"
)

// MaxWeight is the greatest weight and the greatest threshold of a destination (INT_MAX).
const MaxWeight = math.MaxInt32

// DestinationKey names a destination within its service. Keys can be compared with ==.
type DestinationKey struct {
	Addr netip.Addr // not mapped, without zone
	// 0 means the port that the client addressed: for services by mark and services with port 0
	Port uint16
}

// String returns the key as ipvsadm prints it: "10.1.0.1:8080".
func (k DestinationKey) String() string { return netip.AddrPortFrom(k.Addr, k.Port).String() }

// Compare orders keys by address and port.
func (k DestinationKey) Compare(o DestinationKey) int {
	return cmp.Or(k.Addr.Compare(o.Addr), cmp.Compare(k.Port, o.Port))
}

// Tunnel says how the kernel encapsulates packets to a destination, if its method is
// [ForwardTunnel]. The zero value is IP in IP. This package writes no other value; other programs
// may.
type Tunnel struct {
	Type  uint8  // IP_VS_CONN_F_TUNNEL_TYPE_* (Linux 5.2): 0 is IP in IP, 1 GUE, 2 GRE
	Port  uint16 // the UDP port of GUE (Linux 5.2)
	Flags uint16 // IP_VS_TUNNEL_ENCAP_FLAG_* (Linux 5.3)
}

// Destination is the desired form of a service's real server. Like services, destinations can be
// compared with ==, including a desired destination with an observed one.
type Destination struct {
	DestinationKey
	// Weight is the share of new connections that the weighted schedulers give, relative to the
	// other destinations, at most MaxWeight. With weight 0, every scheduler gives no new
	// connections; existing connections continue.
	Weight uint32
	// Forward is the method of forwarding packets to the destination.
	Forward ForwardingMethod
	// Tunnel is for comparing only: it shows that another program has changed the destination.
	Tunnel Tunnel
	// UpperThreshold is the number of connections at which the destination gets no new connections.
	// 0 means no limit. At most MaxWeight.
	UpperThreshold uint32
	// LowerThreshold is the number of connections below which the destination gets new connections
	// again. 0 means three quarters of UpperThreshold. At most UpperThreshold.
	LowerThreshold uint32
}

// ObservedDestination is a destination as the kernel reports it.
type ObservedDestination struct {
	Destination
	ActiveConns uint32 // established TCP and SCTP connections
	// all other connections in the table: those being set up or torn down, and all of UDP
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

// putDestinationKey appends the attributes that name a destination. Without a family, the kernel
// would assume the service's family.
func putDestinationKey(b *rawnl.Batch, k DestinationKey) {
	b.NativeU16(DestAttrFamily, uint16(familyOf(k.Addr)))
	putAddr(b, DestAttrAddr, k.Addr)
	b.U16(DestAttrPort, k.Port)
}

// PutDestination appends the attributes of d, which belong in [CmdAttrDestination]. It leaves out
// the tunnel. The kernel takes a missing attribute as zero, also when it changes a destination.
func PutDestination(b *rawnl.Batch, d Destination) {
	putDestinationKey(b, d.DestinationKey)
	b.NativeU32(DestAttrForward, uint32(d.Forward))
	b.NativeU32(DestAttrWeight, d.Weight)
	b.NativeU32(DestAttrUpper, d.UpperThreshold)
	b.NativeU32(DestAttrLower, d.LowerThreshold)
}

// WireDestination is a destination as the attributes of a message describe it.
type WireDestination struct {
	ObservedDestination        // without the address
	Family              Family // 0 if the message does not have it

	present attrSet
	addr    wireAddr
}

// parseDestination parses the attributes inside IPVS_CMD_ATTR_DEST.
func parseDestination(attrs []byte) (w WireDestination, err error) {
	it := rawnl.Attrs(attrs)
	for it.Next() {
		w.present |= 1 << it.Type()
		switch it.Type() {
		case DestAttrAddr:
			w.addr = addr(&it)
		case DestAttrPort:
			w.Port = it.U16()
		case DestAttrForward:
			w.Forward = ForwardingMethod(it.NativeU32())
		case DestAttrWeight:
			w.Weight = it.NativeU32()
		case DestAttrUpper:
			w.UpperThreshold = it.NativeU32()
		case DestAttrLower:
			w.LowerThreshold = it.NativeU32()
		case DestAttrActive:
			w.ActiveConns = it.NativeU32()
		case DestAttrInactive:
			w.InactiveConns = it.NativeU32()
		case DestAttrPersistent:
			w.PersistentConns = it.NativeU32()
		case DestAttrFamily:
			w.Family = Family(it.NativeU16())
		case DestAttrStats64:
			w.Stats = stats(&it)
		case DestAttrTunnelType:
			w.Tunnel.Type = it.U8()
		case DestAttrTunnelPort:
			w.Tunnel.Port = it.U16()
		case DestAttrTunnelFlags:
			w.Tunnel.Flags = it.NativeU16()
		}
	}

	return w, about("destination", it.Err())
}

// Key returns the key of a destination of a service of the family f, or an [rawnl.ErrMalformed].
// The kernel requires the same attributes of a request (ip_vs_genl_parse_dest).
func (w WireDestination) Key(f Family) (DestinationKey, error) {
	if !w.present.has(DestAttrAddr, DestAttrPort) {
		return DestinationKey{}, malformed("destination: no address or no port")
	}
	a, err := w.addr.in(cmp.Or(w.Family, f))
	return DestinationKey{Addr: a, Port: w.Port}, about("destination", err)
}

// Observed returns the whole destination, of a service of the family f, or an [rawnl.ErrMalformed].
func (w WireDestination) Observed(f Family) (ObservedDestination, error) {
	key, err := w.Key(f)
	if err != nil {
		return ObservedDestination{}, err
	}
	if !w.present.has(DestAttrForward, DestAttrWeight, DestAttrUpper, DestAttrLower) {
		return ObservedDestination{}, malformed("destination %v: not all attributes are there", key)
	}
	w.DestinationKey = key
	return w.ObservedDestination, nil
}

// parseDestinationReply parses the attributes of IPVS_CMD_NEW_DEST about a service of the family f.
func parseDestinationReply(attrs []byte, f Family) (ObservedDestination, error) {
	w, err := Parse(attrs)
	if err != nil {
		return ObservedDestination{}, err
	}
	return w.Destination.Observed(f)
}
