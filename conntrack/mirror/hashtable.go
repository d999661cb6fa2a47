package mirror

// hashTable keeps many small items and finds them by hash. An item has a number, which stays the
// same; 0 is no number. The table adds no pointers for the collector to scan, and never moves
// items. Beside the item and a link, it needs four to eight bytes for each.
type hashTable[T any] struct {
	hash    func(*T) uint32
	chunks  []*[hashChunk]hashSlot[T]
	buckets []uint32 // the first number of each
	free    uint32   // the first number that is free again
	used    uint32   // the highest number ever used
	n       int
}

// hashSlot is an item and the number of the next one in its list: of the same bucket, or free.
type hashSlot[T any] struct {
	next uint32
	item T
}

const (
	hashChunk  = 1 << 10
	minBuckets = 1 << 8 // at least; a power of two
)

func (t *hashTable[T]) slot(i uint32) *hashSlot[T] { return &t.chunks[i/hashChunk][i%hashChunk] }

// at returns the item with a number.
func (t *hashTable[T]) at(i uint32) *T { return &t.slot(i).item }

// find returns the number of the first item with the hash for which isIt returns true, 0 if there
// is none.
func (t *hashTable[T]) find(hash uint32, isIt func(*T) bool) uint32 {
	if len(t.buckets) == 0 {
		return 0
	}
	i := t.buckets[int(hash)&(len(t.buckets)-1)]
	for i != 0 {
		slot := t.slot(i)
		if isIt(&slot.item) {
			return i
		}
		i = slot.next
	}
	return 0
}

// add adds an item and returns its number.
func (t *hashTable[T]) add(item T) uint32 {
	if t.n >= len(t.buckets) {
		t.grow()
	}
	i := t.free
	if i != 0 {
		t.free = t.slot(i).next
	} else {
		t.used++
		i = t.used
		if int(i/hashChunk) == len(t.chunks) {
			t.chunks = append(t.chunks, new([hashChunk]hashSlot[T]))
		}
	}
	slot := t.slot(i)
	slot.item = item
	t.link(i, slot)
	t.n++
	return i
}

// link puts a slot on the list of its hash.
func (t *hashTable[T]) link(i uint32, slot *hashSlot[T]) {
	head := &t.buckets[int(t.hash(&slot.item))&(len(t.buckets)-1)]
	slot.next, *head = *head, i
}

// remove removes the item with a number.
func (t *hashTable[T]) remove(i uint32) {
	slot := t.slot(i)
	link := &t.buckets[int(t.hash(&slot.item))&(len(t.buckets)-1)]
	for *link != i {
		link = &t.slot(*link).next
	}
	*link = slot.next
	var none T
	slot.item = none
	slot.next, t.free = t.free, i
	t.n--
}

// grow makes room for twice as many hashes.
func (t *hashTable[T]) grow() {
	old := t.buckets
	t.buckets = make([]uint32, max(minBuckets, 2*len(old)))
	if len(old) == 0 {
		t.chunks = append(t.chunks, new([hashChunk]hashSlot[T])) // its first slot stays empty
		return
	}
	for _, i := range old {
		for i != 0 {
			slot := t.slot(i)
			next := slot.next
			t.link(i, slot)
			i = next
		}
	}
}
