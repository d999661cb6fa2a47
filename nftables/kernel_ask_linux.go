package nftables

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/wait"
	"github.com/kernlb/kernlb/servicemodel"
)

// How many elements are asked for at once. A larger number takes more memory.
const (
	chunk        = 2048
	chunkObjects = 256 // wanted objects, each with all of its elements
	// askEntries is how many elements one message asks for. The kernel stops at the first element
	// that is missing. With short messages, one datagram finds many missing elements. Longer
	// messages are not faster.
	askEntries = 20
)

// readElements reads the elements of a table, in this order:
//
//  1. Ask for the wanted elements. A dump takes time quadratic in the number of elements, but
//     questions take linear time. The numbers of found elements say which sets hold more. If
//     everything is as wanted, the reading ends here.
//  2. Dump small sets that hold more. They name the unwanted frontends.
//  3. Ask for one slot more than each wanted pool has, in maps that are too large for a dump.
//  4. Elements that are left over by now may be about service ports that seem whole. All elements
//     of these service ports are then left over, too.
//  5. Ask for the slots of the frontends that are left over.
//  6. Ask for hairpins of the endpoints in those slots, and in pools that are not as wanted.
//  7. Dump as few as possible of the large sets that still hold more.
//  8. The elements of that dump, too, may be about service ports that seem whole.
func (k *kernel) readElements(ctx context.Context, r *reading, want *servicemodel.Table) error {
	r.want = want
	if err := k.askWanted(ctx, r); err != nil {
		return fmt.Errorf("ask for what is wanted: %w", err)
	}
	asWanted := len(r.gone) == 0
	for name := range r.sets {
		asWanted = asWanted && (!isRead(name) || r.complete(name))
	}
	if asWanted {
		return nil
	}
	return r.take(ctx, []step{
		{"dump small sets that hold more", k.dump(false)},
		{"ask for a slot more than wanted", k.asking(r.slotsAfterWanted)},
		{"leave contested service ports over", r.contest},
		{"ask for slots of frontends that nobody wants", k.asking(r.slotsLeftOver)},
		{"ask for hairpins that nobody wants", k.asking(r.hairpinsLeftOver)},
		{"dump large sets that hold more", k.dump(true)},
		{"leave contested service ports over", r.contest},
	})
}

// step is one pass over the elements of a table that is read.
type step struct {
	doing string
	do    func(context.Context, *reading) error
}

// take takes steps one after the other.
func (r *reading) take(ctx context.Context, steps []step) error {
	for _, s := range steps {
		if err := s.do(ctx, r); err != nil {
			return fmt.Errorf("%s: %w", s.doing, err)
		}
	}
	return nil
}

// asker asks for elements, through a connection of its own.
type asker struct {
	conn  *rawnl.Conn
	req   rawnl.Batch
	list  nft.ElemList
	asked [][]int // by message, the questions that it asks
}

// ask asks the kernel the questions and notes the answers in them.
func (a *asker) ask(ctx context.Context, r *reading, q *questions) error {
	a.req.Reset()
	a.asked = a.asked[:0]
	for name, about := range q.of {
		set := r.sets[name]
		if set == nil {
			continue // its elements are never found
		}
		for asked := range slices.Chunk(about, askEntries) {
			a.list.Reset()
			for _, i := range asked {
				a.list.Add(nft.Elem{Key: q.all[i].want.Key, KeyEnd: q.all[i].want.KeyEnd})
			}
			nft.AppendLookup(&a.req, r.f, r.name, set, &a.list)
			a.asked = append(a.asked, asked)
		}
	}
	return a.conn.Lookup(ctx, &a.req, func(i, entry int, m rawnl.Message, found bool) error {
		if !found {
			return nil
		}
		return nft.DecodeElements(m.Attrs, func(e nft.Elem) error {
			q.all[a.asked[i][entry]].answer(e)
			return nil
		})
	})
}

// askWanted asks for all wanted elements. Two askers at the same time need half the time, because
// readers hold no lock in the kernel (nfnl_callback of NFT_MSG_GETSETELEM is NFNL_CB_RCU).
func (k *kernel) askWanted(ctx context.Context, r *reading) error {
	outer := ctx
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	jobs := make(chan []object)
	var mu sync.Mutex // guards r
	var group sync.WaitGroup
	for _, a := range k.askers {
		group.Go(func() {
			q, w := newQuestions(), newWriter()
			for objects := range jobs {
				q.reset()
				for _, o := range objects {
					if o.expressible(r.want) {
						o.elements(w, r.want, q.add)
					} else {
						q.add("", nft.Elem{}) // the kernel does not have it
					}
					q.objects = append(q.objects, objectRun{o, len(q.all)})
				}
				if err := a.ask(ctx, r, q); err != nil {
					cancel(err)
					return
				}
				mu.Lock()
				r.note(q)
				mu.Unlock()
			}
		})
	}
	var objects []object
	send := func() {
		select {
		case jobs <- objects:
		case <-ctx.Done():
		}
		objects = nil
	}
	for o := range objectsOf(r.f, r.want) {
		if objects = append(objects, o); len(objects) == chunkObjects {
			if send(); ctx.Err() != nil {
				break
			}
		}
	}
	if len(objects) > 0 {
		send()
	}
	close(jobs)
	group.Wait()
	if err := wait.Ended(outer); err != nil {
		return err
	}
	return context.Cause(ctx)
}

// dump returns the step that dumps those small sets, or large sets, that hold more elements than
// were found. It keeps the elements that were not asked for. A set that is too large for a dump
// makes the reading unread.
func (k *kernel) dump(large bool) func(context.Context, *reading) error {
	return func(ctx context.Context, r *reading) error {
		wanted := map[string]map[string]bool{} // the wanted keys in the sets to dump
		for set := range r.sets {
			switch {
			case !isRead(set) || isLarge(set) != large || r.complete(set):
			case large && r.want != nil && r.found[set] > k.dumpable:
				r.unread = true
			default:
				wanted[set] = make(map[string]bool, r.found[set])
			}
		}
		if len(wanted) == 0 {
			return nil
		}
		for o := range objectsOf(r.f, r.want) {
			if !o.expressible(r.want) {
				continue
			}
			o.elements(r.w, r.want, func(set string, e nft.Elem) {
				if keys := wanted[set]; keys != nil {
					keys[string(e.Key)+string(e.KeyEnd)] = true
				}
			})
		}
		for _, name := range slices.Sorted(maps.Keys(wanted)) {
			err := k.dumpSet(ctx, r, name, func(e nft.Elem) {
				if !wanted[name][string(e.Key)+string(e.KeyEnd)] {
					r.add(name, e)
				}
			})
			if err != nil {
				return err
			}
		}
		return nil
	}
}

// slotsAfterWanted asks whether the wanted frontends have a slot more than is wanted, if their map
// holds more than was found. Maps whose numbers the kernel does not tell are dumped later.
func (r *reading) slotsAfterWanted(ask asks) {
	for fe := range frontendsOf(r.want, r.f) {
		internal, external := r.want.PoolsOf(fe)
		for i, p := range []*servicemodel.Pool{internal, external} {
			if p == nil {
				continue
			}
			set := kindOf(fe.Key).slotMap(i == 1, wayOf(p))
			if !r.tells(set) || r.complete(set) {
				continue
			}
			ask(set, nft.AppendSlot(nft.AppendFrontend(nil, fe.Key), entryCount(p)))
			for at, unit := range p.Units {
				if unit < 0 {
					ask(set, nft.AppendSlot(nft.AppendFrontend(nil, fe.Key), at))
				}
			}
		}
	}
}

// slotsLeftOver asks for the slots of the frontends that are left over. A map that is dumped anyway
// needs no questions.
func (r *reading) slotsLeftOver(ask asks) {
	if r.want != nil || r.tells(kindService.prefix+setEndpoints) {
		r.moreSlots(ask)
	}
}

// hairpinsLeftOver asks for the hairpins of endpoints that were found and are not wanted, unless a
// dump reads the set.
func (r *reading) hairpinsLeftOver(ask asks) {
	asked := map[netip.Addr]bool{}
	for _, k := range kinds {
		for _, set := range k.endpointMaps(r.f, &r.shape) {
			for _, e := range r.elems[set.Name] {
				rd := nft.Reader{Bytes: e.Data}
				a := rd.Endpoint(r.f.AddrLen).Addr()
				if r.tells(setHairpins) && a.IsValid() && !asked[a] &&
					!r.want.HasHairpin(a) {
					asked[a] = true
					ask(setHairpins, appendAddrKey(nil, setHairpins, a))
				}
			}
		}
	}
}

// asking returns a step that asks for the elements that which names. The elements that exist come
// into the reading: they are not as wanted.
func (k *kernel) asking(which func(asks)) func(context.Context, *reading) error {
	return func(ctx context.Context, r *reading) error {
		q, err := newQuestions(), error(nil)
		send := func() {
			if err == nil {
				err = k.askers[0].ask(ctx, r, q)
			}
			for i := range q.all {
				if a := &q.all[i]; err == nil && a.found && r.add(a.set, a.elem()) {
					r.found[a.set]++
				}
			}
			q.reset()
		}
		which(func(set string, key []byte) {
			if q.add(set, nft.Elem{Key: key}); len(q.all) >= k.chunk {
				send()
			}
		})
		send()
		return err
	}
}

// dumpSet reads all elements of a set. A dump during a move of the set fails.
func (k *kernel) dumpSet(ctx context.Context, r *reading, name string,
	fn func(nft.Elem)) error {
	count, told := r.told[name]
	if told && count == 0 {
		return nil
	}
	seen, twice, err := k.readSet(ctx, r.f, r.name, name, fn)
	if err == nil && (twice > 0 || told && seen != count) {
		err = errors.Join(errRehashed, errors.New("set "+name))
	}
	return err
}

// readSet reads all elements of a set. It returns how many different elements it saw, and how many
// of them twice. After many elements were added, the kernel moves the set to a larger hash table in
// the background. A dump during the move can hold elements twice and lack as many others.
func (k *kernel) readSet(ctx context.Context, f *nft.Family, table, set string,
	fn func(nft.Elem)) (seen, twice int, err error) {
	seed, hashes, n := maphash.MakeSeed(), map[uint64]struct{}{}, 0
	var key []byte
	err = k.query(f, table).Elements(ctx, set, func(e nft.Elem) error {
		key = append(append(key[:0], e.Key...), e.KeyEnd...)
		hashes[maphash.Bytes(seed, key)] = struct{}{}
		n++
		fn(e)
		return nil
	})
	return len(hashes), n - len(hashes), err
}
