package form

import (
	"hash/fnv"
	"math/bits"
	"strconv"
	"strings"

	"github.com/kernlb/kernlb/servicemodel"
)

// SetScheduled is the end of the name of a map from frontends to chains.
const SetScheduled = "-scheduled"

// counters is the number of possible chains of InTurn for each number of slots. Each service port
// has its own chain and so its own counter, unless the hashes of two names are equal.
const counters = 1 << 10

// Leaf is a chain that chooses an endpoint. Packets reach it through the map of verdicts.
type Leaf struct {
	Kind    *Kind
	Outside bool // for clients outside only
	Way     Feature
	port    bool // the hash includes the client's port
	Slots   int  // the number of slots; for ByHash rounded up to a power of two
	id      int  // for InTurn: the number of the counter
}

// leafOf returns the chain for the packets that a frontend of a kind sends to a pool.
func leafOf(k *Kind, outside bool, p *servicemodel.Pool) Leaf {
	l := Leaf{Kind: k, Outside: outside, Slots: EntryCount(p)}
	l.Way = WayOf(p)
	_, l.port, _ = p.Scheduler.Split()
	switch l.Way {
	case InTurn:
		h := fnv.New32a()
		h.Write([]byte(p.ID.String()))
		l.id = int(h.Sum32() % counters)
	case ByHash:
		l.Slots = 1 << bits.Len(uint(l.Slots-1))
	}

	return l
}

// SlotMap is the name of the map that the chain uses.
func (l *Leaf) SlotMap() string { return l.Kind.SlotMap(l.Outside, l.Way) }

const withPort = "port-"

// head returns the beginning of the chain's name, up to the numbers.
func (l *Leaf) head() string {
	head := PrefixOf(l.Kind, l.Outside) + WayNames[l.Way] + "-"
	if l.port {
		head += withPort
	}
	return head
}

// chain is the name of the chain, such as "service-mh-port-1021" or "service-rr-3-1017".
func (l *Leaf) chain() string {
	name := l.head() + strconv.Itoa(l.Slots)
	if l.Way == InTurn {
		name += "-" + strconv.Itoa(l.id)
	}
	return name
}

// ParseLeaf reads the name of a chain.
func ParseLeaf(chain string) (l Leaf, ok bool) {
	for _, k := range Kinds {
		for _, outside := range []bool{false, true} {
			for _, w := range []Feature{InTurn, ByHash, ByMaglev} {
				l = Leaf{Kind: k, Outside: outside, Way: w}
				rest, ok := strings.CutPrefix(chain, l.head())
				if !ok {
					continue
				}
				rest, l.port = strings.CutPrefix(rest, withPort)
				size, id, _ := strings.Cut(rest, "-")
				l.Slots, _ = strconv.Atoi(size)
				l.id, _ = strconv.Atoi(id)
				if l.Slots > 0 && l.Slots <= MaxSlots && l.chain() == chain {
					return l, true
				}
			}
		}
	}

	return Leaf{}, false
}

// Seeds of the hashes, the same on all nodes. A level of [builder.level] adds its number.
const (
	SeedMaglev = 0x6b6c6d68
	SeedHash   = 0x6b6c0000
)

// Attempts is the number of draws of a packet in an incomplete level. The share of a slot in such a
// level is too small by less than 2^-Attempts of the share.
const Attempts = 8
