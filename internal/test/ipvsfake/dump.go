package ipvsfake

import (
	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/test/rawnltest"
)

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
