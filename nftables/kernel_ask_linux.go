package nftables

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/nocopy"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/wait"
	"github.com/kernlb/kernlb/servicemodel"
)

// How many elements are asked for at once. A larger number takes more memory.
const (
	chunkPorts = 128
	chunkAddrs = 2048
	// askEntries is how many elements one message asks for. The kernel stops at the first element
	// that is missing. With short messages, one datagram finds many missing elements. Longer
	// messages are not faster.
	askEntries = 20
)

// step is one pass over the elements of a table that is read.
type step struct {
	doing string
	do    func(context.Context, *reading) error
}

// steps read the elements of a table, in this order:
//
//  1. Ask for the wanted elements. A dump takes time quadratic in the number of elements, but
//     questions take linear time. The numbers of found elements say which sets hold more.
//  2. Dump small sets that hold more. They name the unwanted frontends.
//  3. Ask for one slot more than each wanted pool has, in maps that are too large for a dump.
//  4. Elements that are left over by now may be about service ports that seem whole. Ask again for
//     these service ports. All their elements are then left over, too.
//  5. Ask for the slots of the frontends that are left over.
//  6. Ask for hairpins of the endpoints in those slots, and in pools that are not as wanted.
//  7. Dump as few as possible of the large sets that still hold more.
//  8. The elements of that dump, too, may be about service ports that seem whole.
func (k *kernel) steps() []step {
	return []step{
		{"ask for what is wanted", k.askWanted},
		{"dump small sets that hold more", k.dump(false)},
		{"ask for a slot more than wanted", k.askMoreSlots},
		{"ask again for contested service ports", k.askAgain},
		{"ask for slots of frontends that nobody wants", k.askSlots},
		{"ask for hairpins that nobody wants", k.askHairpins},
		{"dump large sets that hold more", k.dump(true)},
		{"ask again for contested service ports", k.askAgain},
	}
}

// readElements reads the elements of a table.
func (k *kernel) readElements(ctx context.Context, r *reading, want *servicemodel.Table) error {
	r.expect(want)
	for _, s := range k.steps() {
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
	order []int   // the questions in the order of their sets
	asked [][]int // by message, the questions that it asks
}

// ask asks the kernel the questions and notes the answers in them.
func (a *asker) ask(ctx context.Context, r *reading, q *questions) error {
	a.req.Reset()
	a.asked = a.asked[:0]
	a.sort(len(r.sets), q)
	for from := 0; from < len(a.order); {
		set, to := q.all[a.order[from]].set, from
		a.list.Reset()
		for to < len(a.order) && to-from < askEntries && q.all[a.order[to]].set == set {
			want := &q.all[a.order[to]].want
			a.list.Add(nft.Elem{Key: want.Key, KeyEnd: want.KeyEnd})
			to++
		}
		nft.AppendLookup(&a.req, r.f, r.name, r.sets[set], &a.list)
		a.asked = append(a.asked, a.order[from:to])
		from = to
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

// sort puts questions in the order of their sets. It leaves out those about sets that the table
// does not have.
func (a *asker) sort(sets int, q *questions) {
	starts := make([]int, sets+1)
	for i := range q.all {
		if set := q.all[i].set; set >= 0 {
			starts[set+1]++
		}
	}
	for i := range sets {
		starts[i+1] += starts[i]
	}
	a.order = append(a.order[:0], make([]int, starts[sets])...)
	for i := range q.all {
		if set := q.all[i].set; set >= 0 {
			a.order[starts[set]] = i
			starts[set]++
		}
	}
}

// job is what an asker asks for at once: service ports, or addresses of a set.
type job struct {
	ports []servicePort
	set   string
	addrs []netip.Addr
}

// portJobs returns the jobs for service ports.
func portJobs(ports []servicePort) (l []job) {
	for chunk := range slices.Chunk(ports, chunkPorts) {
		l = append(l, job{ports: chunk})
	}
	return l
}

// askWanted asks for all wanted elements.
func (k *kernel) askWanted(ctx context.Context, r *reading) error {
	jobs := portJobs(portsOf(r.f, r.want))
	for _, set := range addressSets {
		n := 0
		for a := range addressesOf(r.want, r.f, set) {
			if n%chunkAddrs == 0 {
				jobs = append(jobs, job{set: set})
			}
			last := &jobs[len(jobs)-1]
			last.addrs = append(last.addrs, a)
			n++
		}
	}
	return k.run(ctx, r, jobs, false)
}

// askAgain asks again for the service ports that are contested. These no longer count as whole.
func (k *kernel) askAgain(ctx context.Context, r *reading) error {
	ports := r.contested()
	r.withdraw(ports)
	return k.run(ctx, r, portJobs(ports), true)
}

// run does jobs in parallel. Two askers at the same time need half the time, because readers hold
// no lock in the kernel (nfnl_callback of NFT_MSG_GETSETELEM is NFNL_CB_RCU).
func (k *kernel) run(ctx context.Context, r *reading, jobs []job, again bool) error {
	outer := ctx
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	work := func(a *asker) {
		q, w := &questions{}, newWriter()
		for {
			i := int(next.Add(1)) - 1
			if i >= len(jobs) {
				return
			}
			if err := a.do(ctx, &jobs[i], r, w, q, again); err != nil {
				cancel(err)
				return
			}
		}
	}
	var group sync.WaitGroup
	for i := range min(len(k.askers), len(jobs)) {
		group.Go(func() { work(k.askers[i]) })
	}
	group.Wait()
	if err := wait.Ended(outer); err != nil {
		return err
	}
	return context.Cause(ctx)
}

// do asks for the objects of a job, and the reading notes the answers.
func (a *asker) do(ctx context.Context, j *job, r *reading, w *writer, q *questions,
	again bool) error {
	q.reset()
	var gone []*servicemodel.Frontend
	for _, s := range j.ports {
		if s.expressible(r.want) {
			q.addPort(r, w, s)
		} else {
			gone = append(gone, s...)
		}
	}
	var key [32]byte
	for _, addr := range j.addrs {
		q.add(r.position(j.set), nft.Elem{Key: appendAddrKey(key[:0], j.set, addr)})
	}
	if err := a.ask(ctx, r, q); err != nil {
		return err
	}
	q.judge(r)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gone = append(r.gone, gone...)
	r.note(q, again)
	r.noteAddrs(q, j.set, j.addrs)
	return nil
}

// dump returns the step that dumps those small sets, or large sets, that hold more elements than
// were found. It keeps the elements that were not asked for. A set that is too large for a dump
// makes the reading unread.
func (k *kernel) dump(large bool) func(context.Context, *reading) error {
	return func(ctx context.Context, r *reading) error {
		for i, set := range r.sets {
			if !isRead(set.Name) || isLarge(set.Name) != large || r.complete(i) {
				continue
			}
			if large && r.want != nil && r.found[i] > k.dumpable {
				r.unread = true
				continue
			}
			err := k.dumpSet(ctx, r, set.Name, func(e nft.Elem) {
				if r.want == nil || !r.expects(i, e) {
					r.add(set.Name, e)
				}
			})
			if err != nil {
				return err
			}
		}
		return nil
	}
}

// askMoreSlots asks whether the wanted frontends have a slot more than is wanted, if their map
// holds more than was found.
func (k *kernel) askMoreSlots(ctx context.Context, r *reading) error {
	q := &questions{}
	for fe := range frontendsOf(r.want, r.f) {
		internal, external := nocopy.Of(r.want).PoolsOf(fe)
		for i, p := range []*servicemodel.Pool{internal, external} {
			if p == nil {
				continue
			}
			set := r.position(r.w.slotMap(kindOf(fe.Key), i == 1, p))
			if set < 0 || r.complete(set) {
				continue
			}
			if _, told := r.told[r.sets[set].Name]; !told {
				continue // a later step dumps the map
			}
			q.add(set, nft.Elem{Key: nft.AppendSlot(nft.AppendFrontend(nil, fe.Key),
				entryCount(p))})
			if err := k.askUnwanted(ctx, r, q, k.chunk); err != nil {
				return err
			}
		}
	}
	return k.askUnwanted(ctx, r, q, 0)
}

// askSlots asks for the slots of the frontends that are left over. A map that is dumped anyway
// needs no questions.
func (k *kernel) askSlots(ctx context.Context, r *reading) error {
	q := &questions{}
	for _, kind := range kinds {
		if _, told := r.told[kind.prefix+setEndpoints]; !told && r.want == nil {
			continue
		}
		for key := range r.elems[kind.registry] {
			r.addSlots(q, kind, []byte(key))
			if err := k.askUnwanted(ctx, r, q, k.chunk); err != nil {
				return err
			}
		}
	}
	return k.askUnwanted(ctx, r, q, 0)
}

// askHairpins asks for the hairpins of endpoints that were found and are not wanted.
func (k *kernel) askHairpins(ctx context.Context, r *reading) error {
	set := r.position(setHairpins)
	if _, told := r.told[setHairpins]; !told || set < 0 {
		return nil // a dump reads the set
	}
	q, key := &questions{}, [32]byte{}
	for _, a := range r.unwantedAddrs() {
		q.add(set, nft.Elem{Key: appendAddrKey(key[:0], setHairpins, a)})
		if err := k.askUnwanted(ctx, r, q, k.chunk); err != nil {
			return err
		}
	}
	return k.askUnwanted(ctx, r, q, 0)
}

// askUnwanted asks for elements that are not wanted, once there are at least so many questions, and
// keeps the elements that exist.
func (k *kernel) askUnwanted(ctx context.Context, r *reading, q *questions, atLeast int) error {
	if len(q.all) < atLeast {
		return nil
	}
	err := k.askers[0].ask(ctx, r, q)
	if err == nil {
		r.noteUnwanted(q)
	}
	q.reset()
	return err
}

// dumpSet reads all elements of a set. After many elements were added, the kernel moves the set to
// a larger hash table in the background. A dump during the move can hold elements twice and lack
// others, without any sign of it.
func (k *kernel) dumpSet(ctx context.Context, r *reading, name string,
	fn func(nft.Elem)) error {
	count, told := r.told[name]
	if told && count == 0 {
		return nil
	}
	seed, seen, n := maphash.MakeSeed(), make(map[uint64]struct{}, count), 0
	var key []byte
	err := k.dumpElements(ctx, r.f, r.name, name, func(e nft.Elem) error {
		key = append(append(key[:0], e.Key...), e.KeyEnd...)
		seen[maphash.Bytes(seed, key)] = struct{}{}
		n++
		fn(e)
		return nil
	})
	if err == nil && (len(seen) != n || told && n != count) {
		err = errors.Join(errRehashed, errors.New("set "+name))
	}
	return err
}
