package ipvsfake

import (
	"syscall"

	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/test/rawnltest"
)

// Constants of the generic netlink controller for looking up a family
// (include/uapi/linux/genetlink.h).
const (
	controller uint16 = 0x10 // GENL_ID_CTRL

	newFamily = 1 // CTRL_CMD_NEWFAMILY: the reply
	getFamily = 3 // CTRL_CMD_GETFAMILY

	attrFamilyID   uint16 = 1 // CTRL_ATTR_FAMILY_ID
	attrFamilyName uint16 = 2 // CTRL_ATTR_FAMILY_NAME

	family uint16 = 0x1b // the number of IPVS
)

const (
	headerLen    = 16      // struct nlmsghdr
	genHeaderLen = 4       // struct genlmsghdr
	partSize     = 8 << 10 // of a dump
)

// Answer carries out a request and returns the datagrams of the answer. It is genl_rcv_msg and
// netlink_rcv_skb.
func (k *Kernel) Answer(request []rawnltest.Message) (queue []any) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, m := range request {
		cmd, attrs := ipvsnl.Command(m.Body[0]), m.Body[genHeaderLen:]
		var body []byte
		var errno syscall.Errno
		switch {
		case m.Type == controller:
			body, errno = k.control(uint8(cmd), attrs)
		case m.Type != family || k.unloaded:
			errno = syscall.ENOENT
		case m.Flags&rawnl.FlagDump == rawnl.FlagDump:
			queue = append(queue, k.dump(m, k.list(cmd, attrs))...)
			continue
		default:
			body, errno = k.do(cmd, attrs)
		}

		if body != nil {
			queue = append(queue, rawnltest.Reply(m.Type, 0, m.Seq, body))
		}
		if errno != 0 || m.Flags&rawnl.FlagAck != 0 {
			queue = append(queue, rawnltest.Error(m, errno, "", 0))
		}
	}

	return queue
}

// Body returns the body of a message, after the nlmsghdr: a genlmsghdr with the command, and the
// attributes that put appends.
func Body(cmd ipvsnl.Command, put func(b *rawnl.Batch)) []byte {
	var b rawnl.Batch
	b.Command(uint8(cmd), 1, 0, rawnl.Object{})
	put(&b)
	return b.Bytes()[headerLen:]
}

// control answers for the generic netlink controller.
func (k *Kernel) control(cmd uint8, attrs []byte) ([]byte, syscall.Errno) {
	it := rawnl.Attrs(attrs)
	for cmd == getFamily && it.Next() {
		if it.Type() == attrFamilyName && it.Text() == "IPVS" && !k.unloaded {
			return Body(newFamily, func(b *rawnl.Batch) {
				b.Text(attrFamilyName, it.Text())
				b.NativeU16(attrFamilyID, family)
			}), 0
		}
	}

	return nil, syscall.ENOENT
}

// ServiceBody returns the message that reports a service.
func ServiceBody(s ipvsnl.ObservedService) []byte {
	s.Flags |= ipvsnl.FlagHashed
	return Body(ipvsnl.CommandNewService, func(b *rawnl.Batch) {
		m := b.Nest(ipvsnl.CmdAttrService)
		ipvsnl.PutService(b, s.Service)
		putStats(b, ipvsnl.SvcAttrStats64, s.Stats)
		b.End(m)
	})
}

// DestinationBody returns the message that reports a destination.
func DestinationBody(d ipvsnl.ObservedDestination) []byte {
	return Body(ipvsnl.CommandNewDestination, func(b *rawnl.Batch) {
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
	for i, n := range s.Counters() {
		b.NativeU64(ipvsnl.StatsAttrConns+uint16(i), *n)
	}
	b.End(m)
}

// list returns the objects of a dump, each as the body of a message. For a service that does not
// exist, the list of destinations is empty, without an error (ip_vs_genl_dump_dests).
func (k *Kernel) list(cmd ipvsnl.Command, attrs []byte) (bodies [][]byte) {
	if cmd == ipvsnl.CommandGetService {
		for _, s := range k.order {
			bodies = append(bodies, ServiceBody(s.ObservedService))
		}
		return bodies
	}

	w, _ := ipvsnl.Parse(attrs)
	key, _ := w.Service.Key()
	if s := k.services[key]; s != nil {
		for _, d := range s.destinations {
			bodies = append(bodies, DestinationBody(*d))
		}
	}

	return bodies
}

// dump packs the objects into parts. The end of the dump is a separate part.
func (k *Kernel) dump(m rawnltest.Message, bodies [][]byte) (parts []any) {
	flags := rawnl.FlagMulti
	if k.interrupt > 0 {
		k.interrupt--
		flags |= rawnl.FlagIntr
	}

	var part []byte
	for _, body := range bodies {
		r := rawnltest.Reply(m.Type, flags, m.Seq, body)
		if len(part)+len(r) > partSize {
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
