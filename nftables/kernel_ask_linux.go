package nftables

import (
	"context"
	"errors"
	"hash/maphash"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/servicemodel"
)

// How much is asked for at once: the more, the more memory it takes.
const (
	chunkUnits = 128
	chunkAddrs = 2048
	// askEntries is how many elements one message asks for. The kernel stops at the first that is
	// not there: with short messages a datagram finds out about many of those. Longer ones are not
	// faster.
	askEntries = 20
)

// asker asks for elements, through a connection of its own.
type asker struct {
	conn  *rawnl.Conn
	req   rawnl.Batch
	list  nft.ElemList
	order []int   // elements of the chunk, by set
	asked [][]int // by message, the elements that it asks for
}

// ask asks for the elements of a chunk, and notes the answers there.
func (a *asker) ask(ctx context.Context, s *sift, c *chunk) error {
	a.req.Reset()
	a.asked = a.asked[:0]
	a.sort(len(s.sets), c)
	for from := 0; from < len(a.order); {
		set, to := c.elems[a.order[from]].set, from
		a.list.Reset()
		for to < len(a.order) && to-from < askEntries && c.elems[a.order[to]].set == set {
			want := &c.elems[a.order[to]].want
			a.list.Add(nft.Elem{Key: want.Key, KeyEnd: want.KeyEnd})
			to++
		}
		nft.AppendLookup(&a.req, s.f, s.raw.name, s.sets[set], &a.list)
		a.asked = append(a.asked, a.order[from:to])
		from = to
	}
	return a.conn.Lookup(ctx, &a.req, func(i, entry int, m rawnl.Message, found bool) error {
		if !found {
			return nil
		}
		return nft.DecodeElements(m.Attrs, func(e nft.Elem) error {
			c.elems[a.asked[i][entry]].answer(e)
			return nil
		})
	})
}

// sort puts the elements of a chunk in the order of their sets. Those of sets that are not there
// are left out.
func (a *asker) sort(sets int, c *chunk) {
	starts := make([]int, sets+1)
	for i := range c.elems {
		if set := c.elems[i].set; set >= 0 {
			starts[set+1]++
		}
	}
	for i := range sets {
		starts[i+1] += starts[i]
	}
	a.order = append(a.order[:0], make([]int, starts[sets])...)
	for i := range c.elems {
		if set := c.elems[i].set; set >= 0 {
			a.order[starts[set]] = i
			starts[set]++
		}
	}
}

// do asks for a job's elements and judges the answers.
func (j *job) do(ctx context.Context, a *asker, s *sift, w *writer, c *chunk, r *findings,
	force bool) error {
	c.reset()
	for _, u := range j.units {
		if u.expressible(s.want) {
			c.addUnit(s, w, u)
		} else {
			r.gone = append(r.gone, u...)
		}
	}
	for _, addr := range j.addrs {
		c.addAddr(s, j.set, addr)
	}
	if err := a.ask(ctx, s, c); err != nil {
		return err
	}
	r.judge(s, c, force)
	r.judgeAddrs(j, c)
	return nil
}

// jobsFor returns the jobs for units.
func jobsFor(units []unit) []job {
	var l []job
	for len(units) > 0 {
		n := min(len(units), chunkUnits)
		l = append(l, job{units: units[:n]})
		units = units[n:]
	}
	return l
}

// addrJobs returns the jobs for the wanted addresses of a family.
func addrJobs(f *nft.Family, want *servicemodel.Table) []job {
	var l []job
	for _, set := range []string{setClusterIPs, setHairpins} {
		all := want.ClusterIPs()
		if set == setHairpins {
			all = want.Hairpins()
		}
		var addrs []netip.Addr
		for a := range all {
			if servicemodel.FamilyOf(a) != f.Model {
				continue
			}
			if addrs = append(addrs, a); len(addrs) == chunkAddrs {
				l = append(l, job{set: set, addrs: addrs})
				addrs = nil
			}
		}
		if len(addrs) > 0 {
			l = append(l, job{set: set, addrs: addrs})
		}
	}
	return l
}

// run does jobs, in parallel. The kernel answers two that ask at the same time in half the time:
// readers hold no lock (rawnl_callback of NFT_MSG_GETSETELEM is NFNL_CB_RCU).
func (k *kernel) run(ctx context.Context, s *sift, jobs []job, force bool) (*findings, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var mu sync.Mutex
	all := newFindings(len(s.sets))
	work := func(a *asker) {
		r, c, w := newFindings(len(s.sets)), &chunk{}, newWriter()
		for {
			i := int(next.Add(1)) - 1
			if i >= len(jobs) {
				break
			}
			if err := jobs[i].do(ctx, a, s, w, c, &r, force); err != nil {
				cancel(err)
				return
			}
		}
		mu.Lock()
		defer mu.Unlock()
		all.merge(&r)
	}
	var group sync.WaitGroup
	for i := range min(len(k.askers), len(jobs)) {
		group.Go(func() { work(k.askers[i]) })
	}
	group.Wait()
	return &all, context.Cause(ctx)
}

// readWanted reads the elements of a table: it asks for those that are wanted, and finds the
// others.
func (k *kernel) readWanted(ctx context.Context, s *sift) error {
	r, err := k.run(ctx, s, append(jobsFor(unitsOf(s.f, s.want)), addrJobs(s.f, s.want)...), false)
	if err != nil {
		return err
	}
	s.take(r)
	for i, set := range s.sets {
		if isRead(set.Name) && !isLarge(set.Name) && !s.complete(i) {
			if err := k.readOthers(ctx, s, i); err != nil {
				return err
			}
		}
	}
	if err := k.readDoubtful(ctx, s); err != nil {
		return err
	}
	if err := k.readSlots(ctx, s); err != nil {
		return err
	}
	if err := k.readHairpins(ctx, s); err != nil {
		return err
	}
	if err := k.readLarge(ctx, s); err != nil {
		return err
	}
	return k.readDoubtful(ctx, s)
}

// readLarge reads what else the large sets hold, or notes that it is unread.
func (k *kernel) readLarge(ctx context.Context, s *sift) error {
	for i, set := range s.sets {
		if !isRead(set.Name) || !isLarge(set.Name) || s.complete(i) {
			continue
		}
		if s.want != nil && s.found[i] > k.dumpable {
			s.unread = true
			continue
		}
		if err := k.readOthers(ctx, s, i); err != nil {
			return err
		}
	}
	return nil
}

// readDoubtful reads again the units that are no longer to count as whole.
func (k *kernel) readDoubtful(ctx context.Context, s *sift) error {
	units := s.doubtful()
	r, err := k.run(ctx, s, jobsFor(units), true)
	if err == nil {
		s.doubted(units, r)
	}
	return err
}

// readSlots asks for the slots of the frontends that are left over. Where a map is dumped anyway,
// there is no need.
func (k *kernel) readSlots(ctx context.Context, s *sift) error {
	c := &chunk{}
	for _, kind := range kinds {
		if _, told := s.raw.counts[kind.prefix+setEndpoints]; !told && s.want == nil {
			continue
		}
		for key := range s.raw.elems[kind.registry] {
			s.addSlots(c, kind.registry, []byte(key))
			if err := k.askFull(ctx, s, c); err != nil {
				return err
			}
		}
	}
	return k.askLeft(ctx, s, c)
}

// readHairpins asks for the hairpins of endpoints that were found and are not wanted.
func (k *kernel) readHairpins(ctx context.Context, s *sift) error {
	set := s.position(setHairpins)
	if _, told := s.raw.counts[setHairpins]; !told || set < 0 {
		return nil // it is dumped
	}
	c := &chunk{}
	for _, a := range s.unwantedAddrs() {
		key := nft.AppendAddr(nil, a)
		c.add(set, nft.Elem{Key: append(key, key...)})
		if err := k.askFull(ctx, s, c); err != nil {
			return err
		}
	}
	return k.askLeft(ctx, s, c)
}

// askFull is askLeft as soon as there are enough of them.
func (k *kernel) askFull(ctx context.Context, s *sift, c *chunk) error {
	if len(c.elems) < k.chunk {
		return nil
	}
	return k.askLeft(ctx, s, c)
}

// askLeft asks for elements that are not wanted, and takes over those that are there.
func (k *kernel) askLeft(ctx context.Context, s *sift, c *chunk) error {
	err := k.askers[0].ask(ctx, s, c)
	if err == nil {
		s.left(c)
	}
	c.reset()
	return err
}

// readOthers dumps a set and keeps the elements that were not asked for.
func (k *kernel) readOthers(ctx context.Context, s *sift, set int) error {
	name := s.sets[set].Name
	return k.dumpSet(ctx, s.f, s.raw, name, func(e nft.Elem) {
		if s.want == nil || !s.expects(set, e) {
			s.raw.add(name, cloneElem(e))
		}
	})
}

// dumpSet reads all elements of a set. Right after many elements were added, the kernel moves a set
// to a larger hash table in the background; a dump meanwhile can hold elements twice and lack
// others, without a sign of it.
func (k *kernel) dumpSet(ctx context.Context, f *nft.Family, raw *rawTable, name string,
	fn func(nft.Elem)) error {
	count, told := raw.counts[name]
	if told && count == 0 {
		return nil
	}
	seed, seen, n := maphash.MakeSeed(), make(map[uint64]struct{}, count), 0
	var key []byte
	err := k.dumpElements(ctx, f, raw.name, name, func(e nft.Elem) error {
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
