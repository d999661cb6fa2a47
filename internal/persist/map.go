// Package persist is a persistent ordered map: an immutable value whose changed copies share all
// but a path with the original.
//
// A [Map] is a treap: a binary search tree by key that is at the same time a heap by a priority,
// here a hash of the key. The shape of such a tree depends on the keys in it alone, not on the
// order in which they came, so two maps with nearly the same contents have nearly the same shape
// however they were made, and [Diff] finds what they differ in by walking them side by side,
// skipping what they share.
package persist

import "iter"

// Ordering says how keys are ordered and hashed. It is implemented by an empty struct, so that the
// zero [Map] knows its ordering.
type Ordering[K any] interface {
	// Compare returns a negative number, zero or a positive number as a sorts before, with or after
	// b.
	Compare(a, b K) int
	// Hash returns a well mixed number that is the same for keys that compare equal. See [Mix] and
	// [MixString].
	Hash(k K) uint64
}

// Map is an immutable map from K to V in the order of its keys. The zero value is an empty map.
type Map[K, V any, O Ordering[K]] struct {
	root *node[K, V]
	size int
}

// node is one entry. Nodes are immutable once they can be reached from a Map.
type node[K, V any] struct {
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
	var o O
	for n := m.root; n != nil; {
		switch c := o.Compare(k, n.key); {
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
	root, added := insert[K, V, O](m.root, fresh)
	if added {
		m.size++
	}
	m.root = root
	return m
}

// Delete returns m without k.
func (m Map[K, V, O]) Delete(k K) Map[K, V, O] {
	root, found := remove[K, V, O](m.root, k)
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
	return func(yield func(K, V) bool) { walkFrom[K, V, O](m.root, k, yield) }
}

func (n *node[K, V]) walk(yield func(K, V) bool) bool {
	return n == nil || n.left.walk(yield) && yield(n.key, n.value) && n.right.walk(yield)
}

func walkFrom[K, V any, O Ordering[K]](n *node[K, V], k K, yield func(K, V) bool) bool {
	if n == nil {
		return true
	}
	var o O
	if o.Compare(n.key, k) < 0 {
		return walkFrom[K, V, O](n.right, k, yield)
	}
	return walkFrom[K, V, O](n.left, k, yield) && yield(n.key, n.value) && n.right.walk(yield)
}

// above reports whether a belongs nearer to the root than b. Equal hashes are told apart by key, so
// that the shape stays a matter of the keys alone.
func above[K, V any, O Ordering[K]](a, b *node[K, V]) bool {
	if a.priority != b.priority {
		return a.priority > b.priority
	}
	var o O
	return o.Compare(a.key, b.key) < 0
}

// insert puts fresh, which nobody else has yet, into n, and reports whether its key is new.
func insert[K, V any, O Ordering[K]](n, fresh *node[K, V]) (root *node[K, V], added bool) {
	if n == nil {
		return fresh, true
	}
	var o O
	c := o.Compare(fresh.key, n.key)
	if c == 0 {
		fresh.left, fresh.right = n.left, n.right
		return fresh, false
	}
	if above[K, V, O](fresh, n) {
		fresh.left, fresh.right = split[K, V, O](n, fresh.key)
		return fresh, true
	}
	own := *n
	if c < 0 {
		own.left, added = insert[K, V, O](n.left, fresh)
	} else {
		own.right, added = insert[K, V, O](n.right, fresh)
	}
	return &own, added
}

// remove takes k out of n, and reports whether it was there. If not, it returns n itself.
func remove[K, V any, O Ordering[K]](n *node[K, V], k K) (root *node[K, V], found bool) {
	if n == nil {
		return nil, false
	}
	var o O
	c := o.Compare(k, n.key)
	if c == 0 {
		return merge[K, V, O](n.left, n.right), true
	}
	own := n.left
	if c > 0 {
		own = n.right
	}
	own, found = remove[K, V, O](own, k)
	if !found {
		return n, false
	}
	changed := *n
	if c < 0 {
		changed.left = own
	} else {
		changed.right = own
	}
	return &changed, true
}

// split divides n, which does not hold k, into what is below and what is above it. It copies the
// path between the two only.
func split[K, V any, O Ordering[K]](n *node[K, V], k K) (below, beyond *node[K, V]) {
	if n == nil {
		return nil, nil
	}
	var o O
	if o.Compare(k, n.key) < 0 {
		below, rest := split[K, V, O](n.left, k)
		if below == nil {
			return nil, n
		}
		own := *n
		own.left = rest
		return below, &own
	}
	rest, beyond := split[K, V, O](n.right, k)
	if beyond == nil {
		return n, nil
	}
	own := *n
	own.right = rest
	return &own, beyond
}

// merge joins two trees, all keys of the first being below those of the second.
func merge[K, V any, O Ordering[K]](a, b *node[K, V]) *node[K, V] {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	case above[K, V, O](a, b):
		own := *a
		own.right = merge[K, V, O](a.right, b)
		return &own
	}
	own := *b
	own.left = merge[K, V, O](a, b.left)
	return &own
}
