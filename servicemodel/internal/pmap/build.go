package pmap

// Builder makes a [Map] of entries given in the order of their keys, in linear time. The zero value
// is ready to use.
type Builder[K Key[K], V any, O Hasher[K]] struct {
	// spine is the path from the root to the last entry, always to the right.
	spine []*node[K, V]
	slab  []node[K, V]
	size  int
}

// slabSize is how many nodes are allocated at once. A slab lives as long as any of its nodes: small
// enough to go away some time, large enough to be cheap.
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
