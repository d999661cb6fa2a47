package iptables

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
