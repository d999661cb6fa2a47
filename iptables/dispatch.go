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

// part reports whether t, a child of a branch at the given bit, can have a chain: a match must
// distinguish it from its sibling.
func (d *dispatch) part(t *tree, parentBits int) bool { return d.matchBits(t.bits) > parentBits }

// partSize returns the size of the parts into which n keys are divided: the greatest power of
// stepSize below n.
func partSize(n int) int {
	size := stepSize
	for size*stepSize < n {
		size *= stepSize
	}
	return size
}

// parts calls fn for each part of the chain of t: a leaf, which has rules in this chain, or a part
// with a chain of its own.
func (d *dispatch) parts(t *tree, fn func(*tree)) {
	switch {
	case t == nil:
	case t.count <= stepSize:
		t.leaves(fn)
	default:
		size := partSize(t.count)
		d.divide(t.child[0], t.bits, size, fn)
		d.divide(t.child[1], t.bits, size, fn)
	}
}

func (d *dispatch) divide(t *tree, parentBits, size int, fn func(*tree)) {
	switch {
	case t.leaf(), t.count <= size && t.count >= stepMin && d.part(t, parentBits):
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
