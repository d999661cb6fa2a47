package iptables

import (
	"maps"
	"math/bits"
	"net/netip"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/servicemodel"
)

// Dispatch in steps. The rules that send packets to services form a tree of chains. A chain with
// more than stepSize rules is split by leading bits of the address, then by protocol, then by
// leading bits of the port, until each part is small:
//
//	-A KUBE-SERVICES -d 10.96.0.0/20 -j KUBE-IP-10.96.0.0/20
//	-A KUBE-IP-10.96.0.0/20 -d 10.96.0.0/26 -g KUBE-IP-10.96.0.0/26
//	-A KUBE-IP-10.96.0.0/26 -d 10.96.0.10/32 -p tcp -m tcp --dport 80 … -j KUBE-SVC-…
//
// So the number of rules that a packet passes grows with the logarithm of the number of services.
// The shape depends only on the keys in the tree, not on their history. A change to one key alters
// only the chains on the path to this key. Up to stepSize rules are all in the first chain, as in
// kube-proxy.
//
// A part is a prefix with at most stepSize^n keys, where n is the greatest number that results in
// more than one part. Deeper steps are gotos: a packet that matches no rule returns straight to the
// first chain, and the kernel's jump stack (NFT_JUMP_STACK_SIZE, 16) does not grow.

const (
	// A chain with more rules than stepSize is split.
	stepSize = 16
	// A part with fewer keys than stepMin has no chain of its own.
	stepMin = 3
)

// Kinds of chains of a tree, which are the second part of their names.
const (
	stepService   = "IP"
	stepNodePort  = "NP"
	stepHairpin   = "HP"
	stepSources   = "PF"
	stepClusterIP = "CI"

	stepHealthCheck = "HC"
	stepRange       = "PR"
)

// dispatch describes a tree: its chains and the kind of its keys.
type dispatch struct {
	names  names
	f      *nft.Family
	kind   treeKind
	place  int // index in layout.trees and state.trees
	table  table
	root   string // the first chain
	step   string // the kind of the other chains
	addr   int    // bytes of the address in a key, 0 for node ports
	source bool   // whether the rules match the source address too: hairpins
}

func (d *dispatch) key(k servicemodel.FrontendKey) string {
	b := make([]byte, 0, 21)
	if d.addr > 0 {
		b = append(b, k.Addr.AsSlice()...)
	}
	b = append(b, byte(k.Protocol))
	if d.step == stepRange {
		b = appendWidth(b, k)
	}
	return string(append(b, byte(k.Port>>8), byte(k.Port)))
}

// matchBits returns the number of the first n bits of a key that an iptables match can express.
func (d *dispatch) matchBits(n int) int {
	a := d.addr * 8
	switch {
	case n > a && n < a+8: // within the protocol
		return a
	case d.step == stepRange: // ranges are not in the order of ports
		return min(n, a+8)
	}

	return n
}

// parts returns the parts of the chain of t: single keys, whose rules are in this chain, or several
// keys, which have their own chain.
func (d *dispatch) parts(t tree) (l []tree) {
	size := stepSize // the greatest power of stepSize below the number of keys
	for size*stepSize < len(t) {
		size *= stepSize
	}
	var divide func(p tree, above int)
	divide = func(p tree, above int) {
		switch common := p.bits(); {
		case len(t) <= stepSize, len(p) < stepMin, d.alike(t):
			for i := range p {
				l = append(l, p[i:i+1])
			}

		// only if a match can distinguish it from its sibling
		case (len(p) <= size || d.alike(p)) && d.matchBits(common) > above:
			l = append(l, p)
		default:
			i := sort.Search(len(p), func(i int) bool { return bitAt(p[i].key, common) })
			divide(p[:i], common)
			divide(p[i:], common)
		}
	}

	divide(t, 0)
	return l
}

// rules returns the rules of the chain of t. The first chain uses jumps, so that packets return to
// its following rules. The other chains use gotos.
func (d *dispatch) rules(t tree, first bool) (l []rule) {
	for _, p := range d.parts(t) {
		if len(p) == 1 {
			l = append(l, p[0].rules...)
			continue
		}

		r := d.match(p)
		r.target, r.chain = targetGoto, d.chainOf(p)
		if first {
			r.target = targetJump
		}
		l = append(l, r)
	}

	return l
}

// match returns a rule that matches the common bits of the keys below t.
func (d *dispatch) match(t tree) (r rule) {
	n, a, key := d.matchBits(t.bits()), d.addr*8, t[0].key
	if a > 0 {
		addr, _ := netip.AddrFromSlice([]byte(key[:d.addr]))
		r.dst, _ = addr.Prefix(min(n, a))
		if d.source {
			r.src = r.dst
		}
	}

	if n < a+8 {
		return r
	}
	r.proto = servicemodel.Protocol(key[d.addr])
	if free := a + 24 - n; free < 16 {
		port := uint16(key[d.addr+1])<<8 | uint16(key[d.addr+2])
		mask := uint16(1)<<free - 1
		r.ports = portRange{port &^ mask, port | mask}
	}

	return r
}

// chainOf returns the name of the chain of t: "KUBE-IP-10.96.0.0/20", "KUBE-NP-tcp-30720-30783".
func (d *dispatch) chainOf(t tree) string {
	r := d.match(t)
	of := ""
	if r.dst.IsValid() {
		of = r.dst.String()
	}
	if r.proto != 0 {
		if of != "" {
			of = r.dst.Addr().String() + "-"
		}
		of += r.proto.String()
		if !r.ports.any() {
			of += "-" + strconv.Itoa(int(r.ports.from)) + "-" + strconv.Itoa(int(r.ports.to))
		}
	}

	return d.names.step(d.step, of)
}

// differing calls fn for each chain, except the first chain, that t has and other lacks, or that
// has different rules in the two trees. It may also call fn for a chain that both trees have; then
// differing(other, t) calls fn for that chain, too.
func (d *dispatch) differing(t, other tree, fn func(chainID, []rule)) {
	steps, others := d.steps(t), d.steps(other)
	for name, p := range steps {
		o := others[name]
		if p.same(o) {
			continue
		}
		fn(d.table.chain(name), d.rules(p, false))
		if o == nil { // perhaps it has a new name, because a key was added or removed
			if q := p.counterpart(others, steps); q != nil &&
				p.same(q.counterpart(steps, others)) {
				o = q
			}
		}

		d.differing(p, o, fn)
	}
}

// counterpart returns the tree that has the middle key of t and a name that others lacks, or nil.
func (t tree) counterpart(in, others map[string]tree) tree {
	for name, p := range in {
		if _, has := p.find(t[len(t)/2].key); has && others[name] == nil {
			return p
		}
	}

	return nil
}

// steps returns the parts of t that have their own chain, by the names of the chains.
func (d *dispatch) steps(t tree) map[string]tree {
	m := map[string]tree{}
	for _, p := range d.parts(t) {
		if len(p) > 1 {
			m[d.chainOf(p)] = p
		}
	}

	return m
}

// tree is a sorted list of keys. Each key has the rules for one destination of packets. Neither
// trees nor their rules are ever changed. All keys have the same length.
type tree []destination

type destination struct {
	key   string
	rules []rule
}

// bits returns the number of leading bits that all keys have in common.
func (t tree) bits() int {
	if len(t) == 0 {
		return 0
	}
	a, b := t[0].key, t[len(t)-1].key
	for i := range len(a) {
		if a[i] != b[i] {
			return i*8 + bits.LeadingZeros8(a[i]^b[i])
		}
	}

	return len(a) * 8
}

// bitAt reports whether a bit of a key is set.
func bitAt(key string, i int) bool { return key[i/8]<<(i%8)&0x80 != 0 }

// same reports whether one tree is an unchanged copy of the other, sharing the memory of its rules.
func (t tree) same(o tree) bool {
	if len(t) != len(o) {
		return false
	}
	for i := range t {
		if &t[i].rules[0] != &o[i].rules[0] {
			return false
		}
	}

	return true
}

// find returns the place of a key, and whether t has the key.
func (t tree) find(key string) (int, bool) {
	return slices.BinarySearchFunc(t, key, func(l destination, key string) int {
		return strings.Compare(l.key, key)
	})
}

// with returns t with new rules for some keys. A key without rules is removed.
func (t tree) with(edits map[string][]rule) tree {
	if len(edits) == 0 {
		return t
	}
	next := make(tree, 0, len(t)+len(edits))
	for _, key := range slices.Sorted(maps.Keys(edits)) {
		i, there := t.find(key)
		next = append(next, t[:i]...)
		if rules := edits[key]; rules != nil {
			next = append(next, destination{key, rules})
		}
		if there {
			i++
		}
		t = t[i:]
	}

	return append(next, t...)
}
