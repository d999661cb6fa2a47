// Package pmap is a persistent ordered map: an immutable value whose changed copies share all
// but a path with the original.
//
// A [Map] is a treap: a binary search tree by key that is also a heap by a priority, here a hash of
// the key. The shape of such a tree depends only on its keys, not on the order of their insertion.
// So two maps with nearly the same contents have nearly the same shape. [Diff] walks them side by
// side, and skips the parts that they share.
package pmap

import (
	"hash/maphash"
	"iter"
)

// Key is a type whose values have an order: Compare returns a negative number, zero or a positive
// number if the key sorts before, with or after another.
type Key[K any] interface{ Compare(K) int }

// Hasher hashes keys. An empty struct implements it, so that the zero [Map] has its hasher.
type Hasher[K any] interface {
	// Hash returns a well mixed number that is the same for keys that compare equal, such as
	// [Hash].
	Hash(k K) uint64
}

// Plain is the [Hasher] of keys that contain no pointers except those of strings.
type Plain[K comparable] struct{}

// Hash returns [Hash].
func (Plain[K]) Hash(k K) uint64 { return Hash(k) }

// seed is the same for all maps of a process, so that equal keys give trees of the same shape.
var seed = maphash.MakeSeed()

// Hash returns a hash of k, which differs from process to process. It allocates memory if k
// contains pointers other than those of strings.
func Hash[K comparable](k K) uint64 { return maphash.Comparable(seed, k) }

// Map is an immutable map from K to V in the order of its keys. The zero value is an empty map.
type Map[K Key[K], V any, O Hasher[K]] struct {
	root *node[K, V]
	size int
}

// node is one entry of a tree. A node is immutable once a Map can reach it.
type node[K Key[K], V any] struct {
	left, right *node[K, V]
	priority    uint64
	key         K
	value       V
}

// Len returns the number of entries.
func (m Map[K, V, O]) Len() int { return m.size }

// Same reports in constant time whether m and o are the same map. Maps that are not the same may
// still hold the same entries.
func (m Map[K, V, O]) Same(o Map[K, V, O]) bool { return m.root == o.root }

// Get returns the value of k, and whether m has one.
func (m Map[K, V, O]) Get(k K) (v V, ok bool) {
	for n := m.root; n != nil; {
		switch c := k.Compare(n.key); {
		case c < 0:
			n = n.left
		case c > 0:
			n = n.right
		default:
			return n.value, true
		}
	}

	return v, false
}

// At returns the value of k, or the zero value if m has none.
func (m Map[K, V, O]) At(k K) V {
	v, _ := m.Get(k)
	return v
}

// Set returns m with the value of k set to v.
func (m Map[K, V, O]) Set(k K, v V) Map[K, V, O] {
	var o O
	fresh := &node[K, V]{key: k, value: v, priority: o.Hash(k)}
	root, added := m.root.insert(fresh)
	if added {
		m.size++
	}
	m.root = root
	return m
}

// Delete returns m without k.
func (m Map[K, V, O]) Delete(k K) Map[K, V, O] {
	root, found := m.root.remove(k)
	if found {
		m.root = root
		m.size--
	}

	return m
}

// All returns the entries in the order of their keys.
func (m Map[K, V, O]) All() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) { m.root.walk(nil, yield) }
}

// From returns the entries from key k on, in the order of their keys, up to the first key that is
// not in the wanted range. The key k itself need not be in m.
func (m Map[K, V, O]) From(k K, in func(K) bool) iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		m.root.walk(&k, func(n K, v V) bool { return in(n) && yield(n, v) })
	}
}

// walk yields the entries of n from a key on, or all if from is nil.
func (n *node[K, V]) walk(from *K, yield func(K, V) bool) bool {
	switch {
	case n == nil:
		return true
	case from != nil && n.key.Compare(*from) < 0:
		return n.right.walk(from, yield)
	}

	return n.left.walk(from, yield) && yield(n.key, n.value) && n.right.walk(nil, yield)
}

// above reports whether n belongs nearer to the root than o. If the hashes are equal, the key
// decides, so that the shape depends only on the keys.
func (n *node[K, V]) above(o *node[K, V]) bool {
	return n.priority > o.priority || n.priority == o.priority && n.key.Compare(o.key) < 0
}

// insert returns n with fresh, and whether the key is new. No other map has fresh yet.
func (n *node[K, V]) insert(fresh *node[K, V]) (root *node[K, V], added bool) {
	if n == nil {
		return fresh, true
	}
	c := fresh.key.Compare(n.key)
	if c == 0 {
		fresh.left, fresh.right = n.left, n.right
		return fresh, false
	}

	if fresh.above(n) {
		fresh.left, fresh.right = n.split(fresh.key)
		return fresh, true
	}

	own := *n
	if c < 0 {
		own.left, added = n.left.insert(fresh)
	} else {
		own.right, added = n.right.insert(fresh)
	}

	return &own, added
}

// remove returns n without k, and whether n had k. If it did not, remove returns n itself.
func (n *node[K, V]) remove(k K) (root *node[K, V], found bool) {
	if n == nil {
		return nil, false
	}
	c := k.Compare(n.key)
	if c == 0 {
		return n.left.merge(n.right), true
	}
	below := n.left
	if c > 0 {
		below = n.right
	}
	if below, found = below.remove(k); !found {
		return n, false
	}
	own := *n
	if c < 0 {
		own.left = below
	} else {
		own.right = below
	}

	return &own, true
}

// split divides n, which does not hold k, into the entries before and after k. It copies only the
// path between the two.
func (n *node[K, V]) split(k K) (before, after *node[K, V]) {
	if n == nil {
		return nil, nil
	}
	if k.Compare(n.key) < 0 {
		before, rest := n.left.split(k)
		if before == nil {
			return nil, n
		}
		own := *n
		own.left = rest
		return before, &own
	}

	rest, after := n.right.split(k)
	if after == nil {
		return n, nil
	}
	own := *n
	own.right = rest
	return &own, after
}

// merge joins two trees. All keys of n sort before all keys of o.
func (n *node[K, V]) merge(o *node[K, V]) *node[K, V] {
	switch {
	case n == nil:
		return o
	case o == nil:
		return n
	case n.above(o):
		own := *n
		own.right = n.right.merge(o)
		return &own
	}

	own := *o
	own.left = n.merge(o.left)
	return &own
}

// Change is a key whose value differs between two maps.
type Change[K, V any] struct {
	Key K
	// Old and New are the values in the first and the second map; the zero value where the key is
	// missing.
	Old, New V
	// InOld and InNew say which of the maps hold the key: at least one of them does.
	InOld, InNew bool
}

// Diff returns, in order, the keys that only one of the maps holds, or whose values differ
// according to same. It skips parts that the maps share. Each change between the maps costs the
// logarithm of their size.
func Diff[K Key[K], V any, O Hasher[K]](a, b Map[K, V, O],
	same func(V, V) bool) iter.Seq[Change[K, V]] {
	return func(yield func(Change[K, V]) bool) { diff(a.root, b.root, same, yield) }
}

// diff compares two trees of the same range of keys. If the roots hold different keys, the root
// that is above the other cannot occur in the other tree, because it would be the root there. So
// this root is a change, and the other tree is split around it.
func diff[K Key[K], V any](a, b *node[K, V], same func(V, V) bool,
	yield func(Change[K, V]) bool) bool {
	switch {
	case a == b:
		return true
	case a != nil && b != nil && a.key.Compare(b.key) == 0:
		return diff(a.left, b.left, same, yield) &&
			(same(a.value, b.value) || yield(Change[K, V]{Key: a.key, Old: a.value, New: b.value,
				InOld: true, InNew: true})) &&
			diff(a.right, b.right, same, yield)
	case b == nil || a != nil && a.above(b):
		before, after := b.split(a.key)
		return diff(a.left, before, same, yield) &&
			yield(Change[K, V]{Key: a.key, Old: a.value, InOld: true}) &&
			diff(a.right, after, same, yield)
	}

	before, after := a.split(b.key)
	return diff(before, b.left, same, yield) &&
		yield(Change[K, V]{Key: b.key, New: b.value, InNew: true}) &&
		diff(after, b.right, same, yield)
}

// Builder builds a [Map] from entries in the order of their keys, in linear time. The zero value is
// ready to use.
type Builder[K Key[K], V any, O Hasher[K]] struct {
	// spine is the path from the root to the last entry, always to the right.
	spine []*node[K, V]
	slab  []node[K, V]
	size  int
}

// slabSize is the number of nodes that are allocated at once. A slab lives as long as any of its
// nodes: small enough to be freed eventually, large enough to be cheap.
const slabSize = 32

// Append adds an entry whose key must be above all keys so far. If it is not, Append adds nothing
// and returns false.
func (b *Builder[K, V, O]) Append(k K, v V) bool {
	var o O
	if n := len(b.spine); n > 0 && b.spine[n-1].key.Compare(k) >= 0 {
		return false
	}
	if len(b.slab) == 0 {
		b.slab = make([]node[K, V], slabSize)
	}
	fresh := &b.slab[0]
	b.slab = b.slab[1:]
	fresh.key, fresh.value, fresh.priority = k, v, o.Hash(k)

	top := len(b.spine)
	for top > 0 && fresh.above(b.spine[top-1]) {
		top--
		fresh.left = b.spine[top]
	}

	b.spine = b.spine[:top]
	if top > 0 {
		b.spine[top-1].right = fresh
	}
	b.spine = append(b.spine, fresh)
	b.size++
	return true
}

// Map returns the map of all entries appended, and resets the builder.
func (b *Builder[K, V, O]) Map() Map[K, V, O] {
	var m Map[K, V, O]
	if len(b.spine) > 0 {
		m.root, m.size = b.spine[0], b.size
	}
	*b = Builder[K, V, O]{}
	return m
}
