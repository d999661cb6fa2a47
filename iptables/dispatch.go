package iptables

import (
	"net/netip"
	"strconv"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/servicemodel"
)

// Dispatch in steps. The rules that lead packets to services form a tree of chains. A chain with
// more than stepSize rules is divided by leading bits of the address, then by protocol, then by
// leading bits of the port, until each part is small:
//
//	-A KUBE-SERVICES -d 10.96.0.0/20 -j KUBE-IP-10.96.0.0/20
//	-A KUBE-IP-10.96.0.0/20 -d 10.96.0.0/26 -g KUBE-IP-10.96.0.0/26
//	-A KUBE-IP-10.96.0.0/26 -d 10.96.0.10/32 -p tcp -m tcp --dport 80 … -j KUBE-SVC-…
//
// So the number of rules that a packet passes grows with the logarithm of the number of services.
// The shape depends only on the keys in the tree, not on their history. A change to one key alters
// only the chains on the way to it. With no more than stepSize rules, all of them are in the first
// chain, as in kube-proxy.
//
// A part is a prefix with at most stepSize^n keys. n is the greatest number that makes more than
// one part. Deeper steps are gotos: a packet that finds no rule is at once back in the first chain,
// and the kernel's jump stack (NFT_JUMP_STACK_SIZE, 16) does not grow.

const (
	// A chain with more rules than stepSize is divided.
	stepSize = 16
	// A part with fewer keys than stepMin gets no chain of its own.
	stepMin = 3
)

// Kinds of chains of a tree, the second part of their names.
const (
	stepService   = "IP"
	stepNodePort  = "NP"
	stepHairpin   = "HP"
	stepSources   = "PF"
	stepClusterIP = "CI"

	stepHealthCheck = "HC"
)

// dispatch describes a tree: its chains and its sort of keys.
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

// key returns the key of a frontend.
func (d *dispatch) key(k servicemodel.FrontendKey) string {
	b := make([]byte, 0, 19)
	if d.addr > 0 {
		b = append(b, k.Addr.AsSlice()...)
	}
	return string(append(b, byte(k.Protocol), byte(k.Port>>8), byte(k.Port)))
}

// matchBits returns how many of the first n bits of a key an iptables match can express.
func (d *dispatch) matchBits(n int) int {
	if a := d.addr * 8; n > a && n < a+8 { // within the protocol
		return a
	}
	return n
}

// parts calls fn for each part of the chain of t: a leaf, which has rules in this chain, or a part
// with a chain of its own.
func (d *dispatch) parts(t *tree, fn func(*tree)) {
	switch {
	case t == nil:
	case t.count <= stepSize:
		t.leaves(fn)
	default:
		size := stepSize // the greatest power of it below the number of keys
		for size*stepSize < t.count {
			size *= stepSize
		}
		d.divide(t.child[0], t.bits, size, fn)
		d.divide(t.child[1], t.bits, size, fn)
	}
}

// divide calls fn for each part of t, a child of a branch at bit parentBits. A part has a chain
// only if a match can distinguish it from its sibling.
func (d *dispatch) divide(t *tree, parentBits, size int, fn func(*tree)) {
	distinct := d.matchBits(t.bits) > parentBits
	switch {
	case t.leaf(), t.count <= size && t.count >= stepMin && distinct:
		fn(t)
	case t.count < stepMin:
		t.leaves(fn)
	default:
		d.divide(t.child[0], t.bits, size, fn)
		d.divide(t.child[1], t.bits, size, fn)
	}
}

// rules returns the rules of the chain of t. The first chain uses jumps, so that packets come back
// to its following rules. The other chains use gotos.
func (d *dispatch) rules(t *tree, first bool) []rule {
	var l []rule
	d.parts(t, func(p *tree) {
		if p.leaf() {
			l = append(l, p.rules...)
			return
		}
		r := d.match(p)
		r.target, r.chain = targetGoto, d.chainOf(p)
		if first {
			r.target = targetJump
		}
		l = append(l, r)
	})
	return l
}

// match returns a rule that matches the common bits of the keys below t.
func (d *dispatch) match(t *tree) rule {
	var r rule
	n := d.matchBits(t.bits)
	a := d.addr * 8
	if a > 0 {
		r.dst = prefixOf(t.key[:d.addr], min(n, a))
		if d.source {
			r.src = r.dst
		}
	}
	if n < a+8 {
		return r
	}
	r.proto = servicemodel.Protocol(t.key[d.addr])
	if free := a + 24 - n; free < 16 {
		port := uint16(t.key[d.addr+1])<<8 | uint16(t.key[d.addr+2])
		mask := uint16(1)<<free - 1
		r.ports = portRange{port &^ mask, port | mask}
	}
	return r
}

func prefixOf(addr string, bits int) netip.Prefix {
	a, _ := netip.AddrFromSlice([]byte(addr))
	p, _ := a.Prefix(bits)
	return p
}

// chainOf returns the name of the chain of t: "KUBE-IP-10.96.0.0/20", "KUBE-NP-tcp-30720-30783".
func (d *dispatch) chainOf(t *tree) string {
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

// changed calls fn for each chain, except the first, that differs between two trees. The trees
// differ at most in the given keys. A chain that does not exist has a nil tree.
func (d *dispatch) changed(before, after *tree, keys []string,
	fn func(name string, before, after *tree)) {
	seen := map[string]bool{}
	var visit func(p *tree)
	visit = func(p *tree) {
		name := d.chainOf(p)
		if seen[name] {
			return
		}
		seen[name] = true
		was, is := d.find(before, name, p.key), d.find(after, name, p.key)
		if was == is {
			return
		}
		fn(name, was, is)
		// If a chain is new or gone, another chain may lead to the same parts in the other tree.
		if was == nil || is == nil {
			d.steps(was, visit)
			d.steps(is, visit)
		}
	}
	for _, t := range [...]*tree{before, after} {
		for p := range d.around(t, keys) {
			visit(p)
		}
	}
}

// steps calls fn for each part of t with a chain of its own.
func (d *dispatch) steps(t *tree, fn func(*tree)) {
	d.parts(t, func(p *tree) {
		if !p.leaf() {
			fn(p)
		}
	})
}

// next returns the part of t for packets to the key, or nil if that has no chain.
func (d *dispatch) next(t *tree, key string) *tree {
	var next *tree
	d.steps(t, func(p *tree) {
		if commonBits(p.key, key, 0) >= d.matchBits(p.bits) {
			next = p
		}
	})
	return next
}

// find returns the tree of the chain of that name on the way to the key, or nil if there is none.
func (d *dispatch) find(t *tree, name, key string) *tree {
	for t = d.next(t, key); t != nil; t = d.next(t, key) {
		if d.chainOf(t) == name {
			return t
		}
	}
	return nil
}

// around returns the parts to which the chains on the way to the keys lead.
func (d *dispatch) around(t *tree, keys []string) map[*tree]bool {
	found, seen := map[*tree]bool{}, map[*tree]bool{}
	for _, key := range keys {
		for t := t; t != nil; t = d.next(t, key) {
			if !seen[t] {
				seen[t] = true
				d.steps(t, func(p *tree) { found[p] = true })
			}
		}
	}
	return found
}

// tree is an immutable set of keys. Each key has the rules for one destination of packets. It is a
// binary trie over the bits of the keys, and every branch counts the leaves below it. Trees share
// their common parts, so a change costs only what it changes. The nil *tree is empty. All keys of a
// tree have the same length.
type tree struct {
	key   string   // of a leaf; in a branch, any key below it
	bits  int      // how many leading bits the keys below have in common; all bits for a leaf
	count int      // number of leaves
	child [2]*tree // of a branch
	rules []rule   // of a leaf
	owner *edit
}

// edit allows a series of changes to reuse the nodes that it made itself.
type edit struct{ _ byte }

func (t *tree) leaf() bool { return t.child[0] == nil }

func bitAt(key string, i int) int { return int(key[i/8]>>(7-i%8)) & 1 }

// commonBits returns how many leading bits a and b have in common. They are known to be equal
// before bit start.
func commonBits(a, b string, start int) int {
	i := start / 8
	for i < len(a) && a[i] == b[i] {
		i++
	}
	if i == len(a) {
		return i * 8
	}
	n := i * 8
	for x := a[i] ^ b[i]; x&0x80 == 0; x <<= 1 {
		n++
	}
	return n
}

// writable returns t itself if e made it, or a copy.
func (t *tree) writable(e *edit) *tree {
	if t.owner == e {
		return t
	}
	c := *t
	c.owner = e
	return &c
}

// set returns t with the rules of a key set.
func (t *tree) set(e *edit, key string, rules []rule) *tree {
	if t == nil {
		return &tree{key: key, bits: len(key) * 8, count: 1, rules: rules, owner: e}
	}
	n := commonBits(t.key, key, 0)
	if n < t.bits {
		b := &tree{key: key, bits: n, count: t.count + 1, owner: e}
		i := bitAt(key, n)
		b.child[i] = (*tree)(nil).set(e, key, rules)
		b.child[1-i] = t
		return b
	}
	c := t.writable(e)
	if t.leaf() {
		c.rules = rules
		return c
	}
	i := bitAt(key, t.bits)
	c.child[i] = t.child[i].set(e, key, rules)
	c.count = c.child[0].count + c.child[1].count
	return c
}

// remove returns t without a key.
func (t *tree) remove(e *edit, key string) *tree {
	if _, there := t.get(key); !there {
		return t
	}
	return t.without(e, key)
}

// without is remove for a key that exists.
func (t *tree) without(e *edit, key string) *tree {
	if t.leaf() {
		return nil
	}
	i := bitAt(key, t.bits)
	n := t.child[i].without(e, key)
	if n == nil {
		return t.child[1-i]
	}
	c := t.writable(e)
	c.child[i] = n
	c.key = n.key // the old key may be the removed one
	c.count = c.child[0].count + c.child[1].count
	return c
}

// get returns the rules of a key.
func (t *tree) get(key string) ([]rule, bool) {
	for t != nil && commonBits(t.key, key, 0) >= t.bits {
		if t.leaf() {
			return t.rules, true
		}
		t = t.child[bitAt(key, t.bits)]
	}
	return nil, false
}

// leaves calls fn for each leaf in the order of the keys.
func (t *tree) leaves(fn func(*tree)) {
	if t == nil {
		return
	}
	if t.leaf() {
		fn(t)
		return
	}
	t.child[0].leaves(fn)
	t.child[1].leaves(fn)
}
