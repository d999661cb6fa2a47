package nftables

import (
	"hash/fnv"
	"math/bits"
	"strconv"
	"strings"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/servicemodel"
)

// setScheduled is the end of the name of a map from frontends to chains.
const setScheduled = "-scheduled"

// counters is how many chains of inTurn there can be for each number of slots. Each service port
// has its own chain and so its own counter, unless the hash of its name is the same as another's.
const counters = 1 << 10

// leaf is a chain that chooses an endpoint. The map of verdicts leads to it.
type leaf struct {
	kind    *kind
	outside bool // for clients outside only
	way     feature
	port    bool // the hash is also of the client's port
	slots   int  // how many there are, or for byHash the next power of two
	id      int  // for inTurn: the number of the counter
}

// leafOf returns the chain for the packets that a frontend of a kind sends to a pool.
func leafOf(k *kind, outside bool, p *servicemodel.Pool) leaf {
	l := leaf{kind: k, outside: outside, slots: entryCount(p)}
	l.way = wayOf(p)
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
func (l *leaf) slotMap() string { return l.kind.slotMap(l.outside, l.way) }

const withPort = "port-"

// head returns the beginning of the chain's name, up to the numbers.
func (l *leaf) head() string {
	head := prefixOf(l.kind, l.outside) + wayNames[l.way] + "-"
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
			for _, w := range []feature{inTurn, byHash, byMaglev} {
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

// slot sends a packet to a slot in the map of a leaf.
func (b *builder) slot(l *leaf, slot nft.Selector) nft.Rule {
	return b.dnat(l.kind, prefixOf(l.kind, l.outside), l.way, slot)
}

// dnat sends a packet to a slot in the map of a way.
func (b *builder) dnat(k *kind, prefix string, w feature, slot nft.Selector) nft.Rule {
	return b.f.DNAT(b.frontend(k).With(slot).Map(prefix + wayNames[w] + setEndpoints))
}
