package pmap

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
// order. It skips parts that the maps share. Each change between the maps costs the logarithm of
// their size.
func Diff[K Key[K], V any, O Hasher[K]](a, b Map[K, V, O],
	same func(V, V) bool) iter.Seq[Change[K, V]] {
	return func(yield func(Change[K, V]) bool) { diff(a.root, b.root, same, yield) }
}

// diff compares two trees of one range of keys. If the roots hold different keys, the root that is
// above the other cannot occur in the other tree, because it would be the root there. So it is a
// change, and the other tree is split around it.
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
