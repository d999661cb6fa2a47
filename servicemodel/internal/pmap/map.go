// Package pmap is a persistent ordered map: an immutable value whose changed copies share all
// but a path with the original.
//
// A [Map] is a treap: a binary search tree by key that is also a heap by a priority, here a hash of
// the key. The shape of such a tree depends only on its keys, not on the order in which they came.
// So two maps with nearly the same contents have nearly the same shape. [Diff] walks them side by
// side, and skips the parts that they share.
package pmap

import "iter"

// Key is a type whose values have an order: Compare returns a negative number, zero or a positive
// number if the key sorts before, with or after another.
type Key[K any] interface{ Compare(K) int }

// Hasher hashes keys. It is implemented by an empty struct, so that the zero [Map] has its hasher.
type Hasher[K any] interface {
	// Hash returns a well mixed number that is the same for keys that compare equal. See [Mix] and
	// [MixString].
	Hash(k K) uint64
}

// Map is an immutable map from K to V in the order of its keys. The zero value is an empty map.
type Map[K Key[K], V any, O Hasher[K]] struct {
	root *node[K, V]
	size int
}

// node is one entry. Nodes are immutable once they can be reached from a Map.
type node[K Key[K], V any] struct {
	left, right *node[K, V]
	priority    uint64
	key         K
	value       V
}

// Len returns the number of entries.
func (m Map[K, V, O]) Len() int { return m.size }

// Same reports whether m and o are one and the same map, which costs nothing to find out. Maps that
// are not the same may still hold the same entries.
func (m Map[K, V, O]) Same(o Map[K, V, O]) bool { return m.root == o.root }

// Get returns the value of k, and whether there is one.
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
	return func(yield func(K, V) bool) { m.root.walk(yield) }
}

// From returns the entries from key k on, in the order of their keys. The key itself need not be in
// m.
func (m Map[K, V, O]) From(k K) iter.Seq2[K, V] {
	return func(yield func(K, V) bool) { m.root.walkFrom(k, yield) }
}

func (n *node[K, V]) walk(yield func(K, V) bool) bool {
	return n == nil || n.left.walk(yield) && yield(n.key, n.value) && n.right.walk(yield)
}

func (n *node[K, V]) walkFrom(k K, yield func(K, V) bool) bool {
	switch {
	case n == nil:
		return true
	case n.key.Compare(k) < 0:
		return n.right.walkFrom(k, yield)
	}
	return n.left.walkFrom(k, yield) && yield(n.key, n.value) && n.right.walk(yield)
}

// above reports whether n belongs nearer to the root than o. Between equal hashes the key decides,
// so that the shape depends only on the keys.
func (n *node[K, V]) above(o *node[K, V]) bool {
	return n.priority > o.priority || n.priority == o.priority && n.key.Compare(o.key) < 0
}

// insert returns n with fresh, and whether its key is new. No other map holds fresh yet.
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

// remove returns n without k, and whether k was there. If it was not, remove returns n itself.
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
