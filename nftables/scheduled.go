package nftables

import (
	"hash/fnv"
	"math/bits"
	"slices"
	"strconv"
	"strings"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/servicemodel"
)

// A pool whose scheduler is not random has its slots in a map of its scheduler, and not in the
// ordinary one, and its frontends are in no set that tells a class. A packet to it finds no slot in
// the ordinary map. Then the map of verdicts "-scheduled" leads it to the chain of its pool's
// scheduler and size. Packets to other services do not come so far.

// way is the way in which a pool's endpoints are chosen. The names of its map and chains begin with
// it.
type way string

// The ways.
const (
	atRandom way = ""
	inTurn   way = "-rr" // in turn, by a counter
	byHash   way = "-sh" // by a hash, among the slots
	byMaglev way = "-mh" // by a hash, in a table of Maglev
)

// ways are all ways except the ordinary one.
var ways = [...]way{inTurn, byHash, byMaglev}

// waysUsed says which of the ways are in use.
type waysUsed [len(ways)]bool

// add adds the ways in o.
func (u *waysUsed) add(o waysUsed) {
	for i := range ways {
		u[i] = u[i] || o[i]
	}
}

// covers reports whether all ways in o are in u.
func (u waysUsed) covers(o waysUsed) bool {
	both := u
	both.add(o)
	return both == u
}

// wayOf returns the way for a scheduler, and false if nftables has none.
func wayOf(s servicemodel.Scheduler) (way, bool) {
	switch name, _, _ := s.Split(); name {
	case servicemodel.SchedulerDefault, servicemodel.Random:
		return atRandom, true
	case servicemodel.RoundRobin, servicemodel.WeightedRR:
		return inTurn, true
	case servicemodel.SourceHash:
		return byHash, true
	case servicemodel.Maglev:
		return byMaglev, true
	}
	return atRandom, false
}

// wayOfPool returns how a packet chooses among a pool's slots.
func wayOfPool(p *servicemodel.Pool) way {
	w, _ := wayOf(p.Scheduler)
	return w
}

// waysOf returns the way of a pool, or none if it is the ordinary one.
func waysOf(p *servicemodel.Pool) (u waysUsed) {
	for i, w := range ways {
		u[i] = w == wayOfPool(p)
	}
	return u
}

// addPool adds the features that a pool needs to s.
func (s *shape) addPool(p *servicemodel.Pool) {
	s.ways.add(waysOf(p))
	s.large = s.large || beyondSmall(p)
}

// schedules reports whether some service has a scheduler other than random.
func (s *shape) schedules() bool { return s.ways != waysUsed{} }

// setScheduled is the end of the name of a map from frontends to chains.
const setScheduled = "-scheduled"

// prefixOf returns the beginning of the names of the chains and maps for packets to a frontend of a
// kind.
func prefixOf(k *kind, outside bool) string {
	if outside {
		return k.outside
	}
	return k.prefix
}

// slotMap is the name of the map with the slots of a pool.
func (w *writer) slotMap(k *kind, outside bool, p *servicemodel.Pool) string {
	return w.names.get(prefixOf(k, outside), string(wayOfPool(p))+setEndpoints, -1)
}

// counters is how many chains of inTurn there can be for each number of slots. Each service port
// has its own chain and so its own counter, unless the hash of its name is the same as another's.
const counters = 1 << 10

// leaf is a chain that chooses an endpoint. The map of verdicts leads to it.
type leaf struct {
	kind    *kind
	outside bool // for clients outside only
	way     way
	port    bool // the hash is also of the client's port
	slots   int  // how many there are, or for byHash the next power of two
	id      int  // for inTurn: the number of the counter
}

// leafOf returns the chain for the packets that a frontend of a kind sends to a pool.
func leafOf(k *kind, outside bool, p *servicemodel.Pool) leaf {
	l := leaf{kind: k, outside: outside, slots: entryCount(p)}
	l.way = wayOfPool(p)
	_, l.port, _ = p.Scheduler.Split()
	switch l.way {
	case inTurn:
		h := fnv.New32a()
		h.Write([]byte(p.ID.String()))
		l.id = int(h.Sum32() % counters)
	case byHash:
		l.slots = 1 << bits.Len(uint(l.slots-1))
	}
	return l
}

// slotMap is the name of the map that the chain asks.
func (l *leaf) slotMap() string {
	return prefixOf(l.kind, l.outside) + string(l.way) + setEndpoints
}

const withPort = "port-"

// head returns the beginning of the chain's name, up to the numbers.
func (l *leaf) head() string {
	head := prefixOf(l.kind, l.outside) + string(l.way) + "-"
	if l.port {
		head += withPort
	}
	return head
}

// chain is the name of the chain, such as "service-mh-port-1021" or "service-rr-3-1017".
func (l *leaf) chain() string {
	name := l.head() + strconv.Itoa(l.slots)
	if l.way == inTurn {
		name += "-" + strconv.Itoa(l.id)
	}
	return name
}

// parseLeaf reads the name of a chain.
func parseLeaf(chain string) (l leaf, ok bool) {
	for _, k := range kinds {
		for _, outside := range []bool{false, true} {
			for _, w := range ways {
				l = leaf{kind: k, outside: outside, way: w}
				rest, ok := strings.CutPrefix(chain, l.head())
				if !ok {
					continue
				}
				rest, l.port = strings.CutPrefix(rest, withPort)
				size, id, _ := strings.Cut(rest, "-")
				l.slots, _ = strconv.Atoi(size)
				l.id, _ = strconv.Atoi(id)
				if l.slots > 0 && l.slots <= maxSlots && l.chain() == chain {
					return l, true
				}
			}
		}
	}
	return leaf{}, false
}

// Seeds of the hashes. All nodes have the same. A level of [builder.levels] adds its number.
const (
	seedMaglev = 0x6b6c6d68
	seedHash   = 0x6b6c0000
)

// attempts is how often a packet draws in a level that has not all of its slots. The share of a
// slot there is smaller by less than 2^-attempts of itself.
const attempts = 8

// leaves makes chains to which maps of verdicts lead.
func (b *builder) leaves(names []string) {
	for _, name := range names {
		if l, ok := parseLeaf(name); ok {
			b.leaf(&l)
		}
	}
}

// leaf makes the chain of a leaf, and the chains that it needs.
func (b *builder) leaf(l *leaf) {
	c := b.Chain(l.chain())
	client := nft.Concat{b.f.Saddr}
	if l.port {
		client = client.With(nft.SPort)
	}
	switch l.way {
	case inTurn:
		c.Add(b.slot(l, nft.NumgenInc(l.slots)))
	case byMaglev:
		c.Add(b.slot(l, nft.JHash(client, l.slots, seedMaglev)))
	default:
		for half := l.slots / 2; half > 0; half /= 2 {
			c.Add(nft.Jump(b.level(l, half, client)))
		}
		c.Add(b.slot(l, nft.NumgenRandom(1)))
	}
}

// level makes the chain that chooses among the slots from half to 2·half, unless there is one, and
// returns its name. A draw below half means that a slot below half is chosen: the chain returns,
// and the next level decides which. A draw of a slot that the pool does not have is repeated with
// another seed. So each slot has the same chance. A further slot takes 1/(n+1) of the clients, from
// all others alike. It moves no other client, even if it is the first one in its level.
func (b *builder) level(l *leaf, half int, client nft.Concat) string {
	name := l.head() + "level-" + strconv.Itoa(half)
	if b.Has(name) {
		return name
	}
	c := b.Chain(name)
	for i := range attempts {
		seed := uint32(seedHash + bits.Len(uint(half))<<8 + i)
		c.Add(nft.JHash(client, 2, seed).IsZero(), nft.Return)
		c.Add(b.slot(l, nft.JHash(client, 2*half, seed)))
	}
	return name
}

// lead counts an element that leads to a leaf, or that does so no longer.
func (t *tablePlan) lead(e nft.Elem, n int) {
	if e.Goto {
		if t.leads == nil {
			t.leads = map[string]int{}
		}
		t.leads[string(e.Data)] += n
	}
}

// leaves returns the leaves of the table after the plan. If other owners may need leaves, all stay.
// Otherwise unneeded leaves go: of inTurn always, the others only when the program is rewritten,
// because there are few of them.
func (pl *planner) leaves(p *plan, t *tablePlan) []string {
	if t.have.leads == nil && (t.have.shape.schedules() || t.leads != nil) {
		t.next.leads = map[string]int{}
		for fe := range frontendsOf(p.c.Old, t.f) {
			pl.w.frontend(p.c.Old, fe, func(_ string, e nft.Elem) {
				if e.Goto {
					t.next.leads[string(e.Data)]++
				}
			})
		}
	}
	if len(t.leads) == 0 {
		return t.have.shape.leaves
	}
	l := slices.Clone(t.have.shape.leaves)
	for name, n := range t.leads {
		if n > 0 {
			l = insert(l, name, strings.Compare)
		}
	}
	return slices.DeleteFunc(l, func(name string) bool {
		leaf, _ := parseLeaf(name)
		return leaf.way == inTurn && pl.owning == nil && !t.leadsTo(name)
	})
}

// leadsTo reports whether a frontend leads to a leaf after the plan.
func (t *tablePlan) leadsTo(name string) bool { return t.next.leads[name]+t.leads[name] > 0 }

// planAhead returns the plan that prepares the tables for a change set, or nil if none is needed. A
// packet that is under way meets the rules from before a commit, and the elements from after it. If
// these rules do not know the new way of a pool, the packet would find no endpoint. So a
// transaction of its own brings the rules.
func (pl *planner) planAhead(c *servicemodel.ChangeSet) *plan {
	needed := false
	for _, pc := range c.Pools {
		if pc.Old == nil || pc.New == nil || wayOfPool(pc.Old) == wayOfPool(pc.New) {
			continue
		}
		for _, t := range pl.tables {
			if used := waysOf(pc.New); t.f.Model == pc.New.ID.Family {
				t.ahead.add(used)
				needed = needed || t.exists && !t.broken && !t.shape.ways.covers(used)
			}
		}
	}
	var p *plan
	if needed {
		p = pl.plan(servicemodel.Diff(c.Old, c.Old))
	}
	for _, t := range pl.tables {
		t.ahead = waysUsed{}
	}
	return p
}

// releaf adds leaves to a program that is otherwise right, and removes others.
func (pl *planner) releaf(p *plan, t *tablePlan, leaves []string) {
	if slices.Equal(leaves, t.have.shape.leaves) {
		return
	}
	b := builder{f: t.f, rules: p.c.New.Rules(), shape: &t.have.shape}
	for _, name := range leaves {
		if _, has := slices.BinarySearch(t.have.shape.leaves, name); !has {
			b.leaves([]string{name})
		}
	}
	for _, name := range t.have.shape.leaves {
		if _, stays := slices.BinarySearch(leaves, name); !stays {
			t.goneChains = append(t.goneChains, name)
		}
	}
	t.program, t.next.shape.leaves = b.Program, leaves
}

// slot sends a packet to a slot in the map of a leaf.
func (b *builder) slot(l *leaf, slot nft.Selector) nft.Rule {
	return b.dnat(l.kind, prefixOf(l.kind, l.outside), l.way, slot)
}

// dnat sends a packet to a slot in the map of a way.
func (b *builder) dnat(k *kind, prefix string, w way, slot nft.Selector) nft.Rule {
	return b.f.DNAT(b.frontend(k).With(slot).Map(prefix + string(w) + setEndpoints))
}

// scheduled writes the element that leads packets to a frontend to the chain of its pool.
func (w *writer) scheduled(fe *servicemodel.Frontend, outside bool, p *servicemodel.Pool, to sink) {
	k := kindOf(fe.Key)
	l := leafOf(k, outside, p)
	w.data = append(w.data[:0], l.chain()...)
	to(w.names.get(prefixOf(k, outside), setScheduled, -1),
		nft.Elem{Key: nft.AppendFrontend(w.key[:0], fe.Key), Data: w.data, Goto: true})
}
