package ipvsnl

import (
	"encoding/binary"
	"syscall"
)

// handle carries out one message and returns its answer: what genl_rcv_msg and netlink_rcv_skb do.
func (f *Fake) handle(m message) (replies [][]byte, isDump bool) {
	if m.flags&flagRequest == 0 {
		return nil, false
	}
	cmd, data, err := m.command()
	if err != nil {
		return [][]byte{appendVerdict(nil, typeError, m, syscall.EINVAL)}, false
	}
	var body []byte
	var errno syscall.Errno
	switch {
	case m.typ == typeControl:
		body, errno = f.control(cmd, data)
	case m.typ != fakeFamily || f.unloaded:
		errno = syscall.ENOENT
	case m.flags&flagDump == flagDump:
		if objects, ok := f.list(Command(cmd), data); ok {
			return f.dump(m, objects), true
		}
		errno = syscall.EOPNOTSUPP
	default:
		body, errno = f.do(Command(cmd), data)
	}
	if body != nil {
		replies = append(replies, reply(m, 0, body))
	}
	if errno != 0 || m.flags&flagAck != 0 {
		replies = append(replies, appendVerdict(nil, typeError, m, errno))
	}
	return replies, false
}

// reply makes a message of body, which begins with a genlmsghdr, in answer to m.
func reply(m message, flags uint16, body []byte) []byte {
	b := native.AppendUint32(nil, 0)
	b = native.AppendUint16(b, m.typ)
	b = native.AppendUint16(b, flags)
	b = native.AppendUint32(b, m.seq)
	b = native.AppendUint32(b, 0)
	return endMessage(append(b, body...), 0)
}

// genBody returns a genlmsghdr with the command.
func genBody(cmd uint8) []byte { return []byte{cmd, genlVersion, 0, 0} }

// control answers for the generic netlink controller.
func (f *Fake) control(cmd uint8, data []byte) ([]byte, syscall.Errno) {
	if cmd != ctrlGetFamily {
		return nil, syscall.EOPNOTSUPP
	}
	name, _, err := decodeFamily(data)
	if err != nil {
		return nil, syscall.EINVAL
	}
	if name != familyName || f.unloaded {
		return nil, syscall.ENOENT
	}
	return appendFamily(genBody(ctrlNewFamily), familyName, fakeFamily), 0
}

// list returns the objects of a dump, each as the body of a message. It is false for commands
// without dump.
func (f *Fake) list(cmd Command, data []byte) (bodies [][]byte, ok bool) {
	switch cmd {
	case CommandGetService:
		for _, s := range f.inHashOrder() {
			bodies = append(bodies, appendObservedService(genBody(uint8(CommandNewService)),
				s.ObservedService))
		}
		return bodies, true
	case CommandGetDestination:
		r, errno := f.parse(data)
		if errno != 0 || r.found == nil {
			return nil, true // ip_vs_genl_dump_dests: an empty list, no error
		}
		for _, d := range r.found.destinations {
			bodies = append(bodies, appendObservedDestination(genBody(uint8(CommandNewDestination)),
				*d))
		}
		return bodies, true
	case CommandGetDaemon:
		return nil, true
	}
	return nil, false
}

// dump packs the objects into parts, and the end into a part of its own.
func (f *Fake) dump(m message, bodies [][]byte) (parts [][]byte) {
	flags := flagMulti
	if f.interrupt > 0 {
		f.interrupt--
		flags |= flagInterrupted
	}
	var part []byte
	for _, body := range bodies {
		r := reply(m, flags, body)
		if len(part)+len(r) > f.partSize && len(part) > 0 {
			parts = append(parts, part)
			part = nil
		}
		part = append(part, r...)
	}
	if len(part) > 0 {
		parts = append(parts, part)
	}
	end := appendVerdict(nil, typeDone, m, 0)
	native.PutUint16(end[6:], flags)
	return append(parts, end)
}

// inHashOrder returns the services as ip_vs_genl_dump_services of Linux before 7.1 walks them:
// those by address before those by mark, bucket after bucket, the newest of a bucket first.
func (f *Fake) inHashOrder() []*fakeService {
	const buckets = 256 // IP_VS_SVC_TAB_SIZE
	var table [2 * buckets][]*fakeService
	for _, s := range f.order {
		i := int(s.FWMark % buckets)
		if s.FWMark != 0 {
			i += buckets
		} else {
			i = int(hashKey(s.ServiceKey) % buckets)
		}
		table[i] = append(table[i], s)
	}
	var all []*fakeService
	for _, bucket := range table {
		all = append(all, bucket...)
	}
	return all
}

// hashKey is ip_vs_svc_hashkey, without the address of the network namespace that the kernel mixes
// in.
func hashKey(k ServiceKey) uint32 {
	var fold uint32
	for word := k.Addr.AsSlice(); len(word) >= 4; word = word[4:] {
		fold ^= binary.BigEndian.Uint32(word)
	}
	return uint32(k.Protocol) ^ fold ^ uint32(k.Port)>>8 ^ uint32(k.Port)
}
