package persist

import "iter"

// Change is a key whose value differs between two maps.
type Change[K, V any] struct {
	Key K
	// Old and New are the values in the first and the second map; the zero value where the key is
	// missing.
	Old, New V
	// InOld and InNew say which of the maps hold the key: at least one does.
	InOld, InNew bool
}

// Diff returns the keys that only one of the maps holds, or whose values same tells apart, in
// order. Parts that the maps share are skipped, so that the cost is that of the changes made
// between them, each times the logarithm of the size.
func Diff[K, V any, O Ordering[K]](a, b Map[K, V, O], same func(V, V) bool) iter.Seq[Change[K, V]] {
	return func(yield func(Change[K, V]) bool) {
		differ[K, V, O]{same: same, yield: yield}.walk(a.root, b.root)
	}
}

type differ[K, V any, O Ordering[K]] struct {
	same  func(V, V) bool
	yield func(Change[K, V]) bool
}

// walk compares two trees of one range of keys.
func (d differ[K, V, O]) walk(a, b *node[K, V]) bool {
	switch {
	case a == b:
		return true
	case a == nil:
		return d.walk(nil, b.left) && d.added(b) && d.walk(nil, b.right)
	case b == nil:
		return d.walk(a.left, nil) && d.removed(a) && d.walk(a.right, nil)
	}
	var o O
	if o.Compare(a.key, b.key) == 0 {
		return d.walk(a.left, b.left) && d.kept(a, b) && d.walk(a.right, b.right)
	}
	return d.walkApart(a, b)
}

// walkApart compares two trees whose roots hold different keys. The root that is above the other
// cannot occur in the other tree at all, for it would be its root: so it is a change, and the other
// tree is split around it.
func (d differ[K, V, O]) walkApart(a, b *node[K, V]) bool {
	if above[K, V, O](a, b) {
		below, beyond := split[K, V, O](b, a.key)
		return d.walk(a.left, below) && d.removed(a) && d.walk(a.right, beyond)
	}
	below, beyond := split[K, V, O](a, b.key)
	return d.walk(below, b.left) && d.added(b) && d.walk(beyond, b.right)
}

func (d differ[K, V, O]) added(n *node[K, V]) bool {
	return d.yield(Change[K, V]{Key: n.key, New: n.value, InNew: true})
}

func (d differ[K, V, O]) removed(n *node[K, V]) bool {
	return d.yield(Change[K, V]{Key: n.key, Old: n.value, InOld: true})
}

func (d differ[K, V, O]) kept(a, b *node[K, V]) bool {
	return d.same(a.value, b.value) ||
		d.yield(Change[K, V]{Key: a.key, Old: a.value, New: b.value, InOld: true, InNew: true})
}
