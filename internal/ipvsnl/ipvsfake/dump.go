package ipvsfake

import (
	"encoding/binary"

	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/rawnl/rawnltest"
)

// list returns the objects of a dump, each as the body of a message. It is false for commands
// without dump.
func (k *Kernel) list(cmd ipvsnl.Command, attrs []byte) (bodies [][]byte, ok bool) {
	switch cmd {
	case ipvsnl.CommandGetService:
		for _, s := range k.inHashOrder() {
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
	case ipvsnl.CommandGetDaemon:
		return nil, true
	}
	return nil, false
}

// dump packs the objects into parts, and the end into a part of its own.
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

// inHashOrder returns the services as ip_vs_genl_dump_services of Linux before 7.1 walks them:
// those by address before those by mark, bucket after bucket, the newest of a bucket first.
func (k *Kernel) inHashOrder() []*service {
	const buckets = 256 // IP_VS_SVC_TAB_SIZE
	var table [2 * buckets][]*service
	for _, s := range k.order {
		i := int(s.FWMark % buckets)
		if s.FWMark != 0 {
			i += buckets
		} else {
			i = int(hashKey(s.ServiceKey) % buckets)
		}
		table[i] = append(table[i], s)
	}
	var all []*service
	for _, bucket := range table {
		all = append(all, bucket...)
	}
	return all
}

// hashKey is ip_vs_svc_hashkey, without the address of the network namespace that the kernel mixes
// in.
func hashKey(k ipvsnl.ServiceKey) uint32 {
	var fold uint32
	for word := k.Addr.AsSlice(); len(word) >= 4; word = word[4:] {
		fold ^= binary.BigEndian.Uint32(word)
	}
	return uint32(k.Protocol) ^ fold ^ uint32(k.Port)>>8 ^ uint32(k.Port)
}
