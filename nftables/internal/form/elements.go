package form

import (
	"cmp"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rendering"
	"github.com/kernlb/kernlb/servicemodel"
)

// Elements writes all elements of fe.
func (w *Writer) Elements(t *servicemodel.Table, fe *servicemodel.Frontend, to Sink) {
	w.Frontend(t, fe, to)
	internal, external := t.PoolsOf(fe)
	w.Pool(nil, fe, false, nil, internal, nil, to)
	w.Pool(nil, fe, true, nil, external, nil, to)
	w.Blocks(t, fe, to)
	w.RangePorts(t, fe, to)
}

// Pool writes the elements that differ between the pools of a frontend before and after a change:
// was is the pool of old, and is the pool of new.
func (w *Writer) Pool(old, new *servicemodel.Frontend, outside bool, was, is *servicemodel.Pool,
	del, add Sink) {
	w.slots(new, outside, was, is, del, add)
	if old == nil || !old.AffinityService {
		was = nil
	}
	if !new.AffinityService {
		is = nil
	}
	w.ByAddress(new, outside, was, is, del, add)
}

// Frontend writes all elements of fe, except the elements of its pools' endpoints, of its blocks
// and of its ports.
func (w *Writer) Frontend(t *servicemodel.Table, fe *servicemodel.Frontend, to Sink) {
	k := KindOf(fe.Key)
	w.key = nft.AppendFrontend(w.key[:0], fe.Key)
	w.ud = nft.AppendComment(w.ud[:0], rendering.Comment(fe))
	to(k.Registry, nft.Elem{Key: w.key, UserData: w.ud})
	member := func(rest string, n int) {
		to(w.names.get(k.Prefix, rest, n), nft.Elem{Key: w.key})
	}

	internal, external := t.PoolsOf(fe)
	w.verdict(fe, false, internal, to)
	if fe.External != fe.Internal {
		member(SetSplit, -1)
		w.verdict(fe, true, external, to)
	}

	switch fe.Masquerade {
	case servicemodel.FromAnywhere:
		member(setMasqAll, -1)
	case servicemodel.FromHost | servicemodel.FromOutside:
		member(SetMasqNotPods, -1)
	case servicemodel.FromHost:
		member(setMasqHost, -1)
	}

	if fe.MasqueradeIP.IsValid() {
		w.data = nft.AppendAddr(w.data[:0], fe.MasqueradeIP)
		to(w.names.get(k.Prefix, SetMasqIPs, -1), nft.Elem{Key: w.key, Data: w.data})
	}

	if fe.Affinity > 0 {
		w.affinity(fe, to)
	}
	if fe.Sources != nil {
		to(k.SetRestricted(), nft.Elem{Key: w.key})
		w.sources(fe, to)
	}
}

// PoolVerdict writes the elements that send packets to a pool of a frontend.
func (w *Writer) PoolVerdict(fe *servicemodel.Frontend, outside bool, p *servicemodel.Pool,
	to Sink) {
	w.key = nft.AppendFrontend(w.key[:0], fe.Key)
	w.verdict(fe, outside, p, to)
}

// verdict writes the elements that decide about packets from inside or outside: elements of sets,
// or of the map that sends packets to a pool's chain.
func (w *Writer) verdict(fe *servicemodel.Frontend, outside bool, p *servicemodel.Pool, to Sink) {
	k, v, over := KindOf(fe.Key), fe.Internal, SetOver
	if outside {
		v, over = fe.External, SetExternalOver
	}
	member := func(rest string, n int) {
		to(w.names.get(k.Prefix, rest, n), nft.Elem{Key: w.key})
	}
	switch {
	case v == servicemodel.Reject:
		member(setReject, -1)
	case v == servicemodel.Drop:
		member(setDrop, -1)
	case p != nil:
		if WayOf(p) != AtRandom {
			w.scheduled(fe, outside, p, to)
			return
		}

		class := ClassOf(EntryCount(p))
		for than := range class {
			if isOver(class, than) {
				member(over, MostSlots(than))
			}
		}
	}
}

// scheduled writes the element that sends packets to a frontend to the chain of its pool.
func (w *Writer) scheduled(fe *servicemodel.Frontend, outside bool, p *servicemodel.Pool, to Sink) {
	k := KindOf(fe.Key)
	l := leafOf(k, outside, p)
	w.data = append(w.data[:0], l.chain()...)
	to(w.names.get(PrefixOf(k, outside), SetScheduled, -1),
		nft.Elem{Key: nft.AppendFrontend(w.key[:0], fe.Key), Data: w.data, Goto: true})
}

func (w *Writer) sources(fe *servicemodel.Frontend, to Sink) {
	for _, p := range fe.Sources {
		first := nft.AppendAddr(w.key, p.Masked().Addr())
		last := nft.AppendAddr(nft.AppendFrontend(w.data[:0], fe.Key), nft.LastAddr(p))
		to(KindOf(fe.Key).SetSources(), nft.Elem{Key: first, KeyEnd: last})
		w.data = last
	}
}

// slots writes the elements that differ between the slots of the pools old and new, in the maps of
// fe's internal or external endpoints. An endpoint of weight w has w elements, unless the scheduler
// needs a different number.
func (w *Writer) slots(fe *servicemodel.Frontend, outside bool, old, new *servicemodel.Pool, del,
	add Sink) {
	if old == nil && new == nil {
		return
	}
	way := WayOf(cmp.Or(new, old))
	if old != nil && WayOf(old) != way { // its slots are in another map
		w.slots(fe, outside, old, nil, del, add)
		old = nil
	}

	k := KindOf(fe.Key)
	name := k.SlotMap(outside, way)
	w.key = nft.AppendFrontend(w.key[:0], fe.Key)
	write := func(to Sink, p *servicemodel.Pool, at int, en *Entry) {
		w.data = k.appendEndpoint(w.data[:0], en.Endpoint)
		e := nft.Elem{Key: nft.AppendSlot(w.key, at), Data: w.data}
		named := at == 0 && p.Scheduler != servicemodel.SchedulerDefault
		if named || en.Slot >= 0 || en.weight > 0 {
			w.ud = nft.AppendComment(w.ud[:0], en.comment(named, p))
			e.UserData = w.ud
		}

		to(name, e)
	}

	renamed := old != nil && new != nil && old.Scheduler != new.Scheduler
	a, b := w.entriesOf(old), w.entriesOf(new)
	for at := 0; ; at++ {
		if moreA, moreB := a.next(), b.next(); !moreA && !moreB {
			return
		}
		if a.now == b.now && (at > 0 || !renamed) {
			continue
		}
		was, is := a.now, b.now
		if was.Endpoint.IsValid() {
			write(del, old, at, &was)
		}
		if is.Endpoint.IsValid() {
			write(add, new, at, &is)
		}
	}
}
