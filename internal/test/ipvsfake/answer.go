package ipvsfake

import (
	"encoding/binary"
	"slices"
	"syscall"

	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/test/rawnltest"
)

// The part of the generic netlink controller that is needed to find a family
// (include/uapi/linux/genetlink.h).
const (
	controller uint16 = 0x10 // GENL_ID_CTRL
	newFamily  uint8  = 1    // CTRL_CMD_NEWFAMILY: the reply
	getFamily  uint8  = 3    // CTRL_CMD_GETFAMILY

	attrFamilyID   uint16 = 1 // CTRL_ATTR_FAMILY_ID
	attrFamilyName uint16 = 2 // CTRL_ATTR_FAMILY_NAME
)

const (
	headerLen    = 16 // struct nlmsghdr
	genHeaderLen = 4  // struct genlmsghdr
)

// Answer carries out a request and returns the datagrams of the answer, as many as the receive
// queue holds. The parts of a dump are made as they are read, so they always fit.
func (k *Kernel) Answer(request []rawnltest.Message) (queue []any) {
	k.mu.Lock()
	defer k.mu.Unlock()
	queued := 0
	for _, m := range request {
		replies, isDump := k.handle(m)
		for _, r := range replies {
			if queued == queueLen {
				return append(queue, syscall.ENOBUFS)
			}
			if !isDump {
				queued++
			}
			queue = append(queue, r)
		}
	}
	return queue
}

// handle executes one message and returns its answer, as genl_rcv_msg and netlink_rcv_skb do.
func (k *Kernel) handle(m rawnltest.Message) (replies [][]byte, isDump bool) {
	if m.Flags&rawnl.FlagRequest == 0 {
		return nil, false
	}
	if len(m.Body) < genHeaderLen {
		return [][]byte{rawnltest.Error(m, syscall.EINVAL, "", 0)}, false
	}
	cmd, attrs := m.Body[0], m.Body[genHeaderLen:]
	var body []byte
	var errno syscall.Errno
	switch {
	case m.Type == controller:
		body, errno = k.control(cmd, attrs)
	case m.Type != Family || k.unloaded:
		errno = syscall.ENOENT
	case m.Flags&rawnl.FlagDump == rawnl.FlagDump:
		if objects, ok := k.list(ipvsnl.Command(cmd), attrs); ok {
			return k.dump(m, objects), true
		}
		errno = syscall.EOPNOTSUPP
	default:
		body, errno = k.do(ipvsnl.Command(cmd), attrs)
	}
	if body != nil {
		replies = append(replies, rawnltest.Reply(m.Type, 0, m.Seq, body))
	}
	if errno != 0 || m.Flags&rawnl.FlagAck != 0 {
		replies = append(replies, rawnltest.Error(m, errno, "", 0))
	}
	return replies, false
}

// Body makes the body of a message, after the nlmsghdr: a genlmsghdr with the command, and the
// attributes that put appends.
func Body(cmd uint8, put func(b *rawnl.Batch)) []byte {
	var b rawnl.Batch
	b.Command(cmd, 1, 0, rawnl.Object{})
	put(&b)
	return b.Bytes()[headerLen:]
}

// control answers for the generic netlink controller.
func (k *Kernel) control(cmd uint8, attrs []byte) ([]byte, syscall.Errno) {
	if cmd != getFamily {
		return nil, syscall.EOPNOTSUPP
	}
	it := rawnl.Attrs(attrs)
	for it.Next() {
		if it.Type() == attrFamilyName && it.Text() == "IPVS" && !k.unloaded {
			return Body(newFamily, func(b *rawnl.Batch) {
				b.Text(attrFamilyName, it.Text())
				b.NativeU16(attrFamilyID, Family)
			}), 0
		}
	}
	return nil, syscall.ENOENT
}

// ServiceBody makes the message that shows a service.
func ServiceBody(s ipvsnl.ObservedService) []byte {
	s.Flags |= ipvsnl.FlagHashed
	return Body(uint8(ipvsnl.CommandNewService), func(b *rawnl.Batch) {
		m := b.Nest(ipvsnl.CmdAttrService)
		ipvsnl.PutService(b, s.Service)
		putStats(b, ipvsnl.SvcAttrStats64, s.Stats)
		b.End(m)
	})
}

// DestinationBody makes the message that shows a destination.
func DestinationBody(d ipvsnl.ObservedDestination) []byte {
	return Body(uint8(ipvsnl.CommandNewDestination), func(b *rawnl.Batch) {
		m := b.Nest(ipvsnl.CmdAttrDestination)
		ipvsnl.PutDestination(b, d.Destination)
		b.U8(ipvsnl.DestAttrTunnelType, d.Tunnel.Type)
		b.U16(ipvsnl.DestAttrTunnelPort, d.Tunnel.Port)
		b.NativeU16(ipvsnl.DestAttrTunnelFlags, d.Tunnel.Flags)
		b.NativeU32(ipvsnl.DestAttrActive, d.ActiveConns)
		b.NativeU32(ipvsnl.DestAttrInactive, d.InactiveConns)
		b.NativeU32(ipvsnl.DestAttrPersistent, d.PersistentConns)
		putStats(b, ipvsnl.DestAttrStats64, d.Stats)
		b.End(m)
	})
}

// putStats appends the statistics of 64 bits, without rates.
func putStats(b *rawnl.Batch, attr uint16, s ipvsnl.Stats) {
	m := b.Nest(attr)
	for typ := ipvsnl.StatsAttrConns; typ <= ipvsnl.StatsAttrOutBytes; typ++ {
		b.NativeU64(typ, *s.Counter(typ))
	}
	b.End(m)
}

// list returns the objects of a dump, each as the body of a message. It returns false for a command
// that has no dump.
func (k *Kernel) list(cmd ipvsnl.Command, attrs []byte) (bodies [][]byte, ok bool) {
	switch cmd {
	case ipvsnl.CommandGetService:
		for _, s := range k.order {
			bodies = append(bodies, ServiceBody(s.ObservedService))
		}
		return bodies, true
	case ipvsnl.CommandGetDestination:
		r, errno := k.parse(attrs)
		if errno != 0 || r.found == nil {
			return nil, true // ip_vs_genl_dump_dests: an empty list, no error
		}
		for _, d := range r.found.destinations {
			bodies = append(bodies, DestinationBody(*d))
		}
		return bodies, true
	}
	return nil, false
}

// dump packs the objects into parts. The end of the dump is a part of its own.
func (k *Kernel) dump(m rawnltest.Message, bodies [][]byte) (parts [][]byte) {
	flags := rawnl.FlagMulti
	if k.interrupt > 0 {
		k.interrupt--
		flags |= rawnl.FlagIntr
	}
	var part []byte
	for _, body := range bodies {
		r := rawnltest.Reply(m.Type, flags, m.Seq, body)
		if len(part)+len(r) > partSize && len(part) > 0 {
			parts = append(parts, part)
			part = nil
		}
		part = append(part, r...)
	}
	if len(part) > 0 {
		parts = append(parts, part)
	}
	return append(parts, rawnltest.Done(m.Seq, flags, 0))
}

// Sockopt reads a socket option of IPVS into b: the IPv4 services, or the destinations of one of
// them. b begins with the request, which says for how many it has room.
func (k *Kernel) Sockopt(option int, b []byte) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	start, size, at := ipvsnl.OutlinesStart, ipvsnl.OutlineSize, 0
	var entries [][]byte
	switch option {
	case ipvsnl.GetServices:
		for _, s := range k.order {
			if s.Family == ipvsnl.FamilyIPv4 {
				o := ipvsnl.OutlineOf(s.Service, len(s.destinations))
				entries = append(entries, o[:])
			}
		}
	case ipvsnl.GetDestinations:
		start, size, at = ipvsnl.DestinationsStart, ipvsnl.DestinationSize, 16
		i := slices.IndexFunc(k.order, func(s *service) bool {
			var key [16]byte
			ipvsnl.PutOutlineKey(key[:], s.ServiceKey)
			return s.Family == ipvsnl.FamilyIPv4 && [16]byte(b) == key
		})
		if i < 0 {
			return syscall.ESRCH
		}
		for _, d := range k.order[i].destinations {
			if d.Addr.Is4() {
				o := ipvsnl.OutlineDestinationOf(d.Destination)
				entries = append(entries, o[:])
			}
		}
	}
	if len(b) < start || len(b) != start+size*int(binary.NativeEndian.Uint32(b[at:])) {
		return syscall.EINVAL
	}
	for i := 0; i < len(entries) && start+i*size < len(b); i++ {
		copy(b[start+i*size:], entries[i])
	}
	return nil
}
