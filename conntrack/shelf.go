package conntrack

// shelf keeps many small items and finds them by hash. An item has a number, which stays the same;
// 0 is no number. Nothing in it is a pointer if nothing in T is, it never moves items, and takes
// four to eight bytes for each beside the item and a link.
type shelf[T any] struct {
	hash   func(*T) uint32
	chunks []*[shelfChunk]shelfSlot[T]
	heads  []uint32 // the first number of each hash
	free   uint32   // the first number that is free again
	used   uint32   // the highest number ever used
	n      int
}

// shelfSlot is an item and the number of the next one in its list: of the same hash, or free.
type shelfSlot[T any] struct {
	next uint32
	item T
}

const (
	shelfChunk = 1 << 10
	shelfHeads = 1 << 8 // at least; a power of two
)

func (s *shelf[T]) slot(i uint32) *shelfSlot[T] { return &s.chunks[i/shelfChunk][i%shelfChunk] }

// at returns the item with a number.
func (s *shelf[T]) at(i uint32) *T { return &s.slot(i).item }

// find returns the number of the first item with the hash that is the one, 0 if there is none.
func (s *shelf[T]) find(hash uint32, isIt func(*T) bool) uint32 {
	if len(s.heads) == 0 {
		return 0
	}
	i := s.heads[int(hash)&(len(s.heads)-1)]
	for i != 0 {
		slot := s.slot(i)
		if isIt(&slot.item) {
			return i
		}
		i = slot.next
	}
	return 0
}

// add adds an item and returns its number.
func (s *shelf[T]) add(item T) uint32 {
	if s.n >= len(s.heads) {
		s.grow()
	}
	i := s.free
	if i != 0 {
		s.free = s.slot(i).next
	} else {
		s.used++
		i = s.used
		if int(i/shelfChunk) == len(s.chunks) {
			s.chunks = append(s.chunks, new([shelfChunk]shelfSlot[T]))
		}
	}
	slot := s.slot(i)
	slot.item = item
	s.link(i, slot)
	s.n++
	return i
}

// link puts a slot on the list of its hash.
func (s *shelf[T]) link(i uint32, slot *shelfSlot[T]) {
	head := &s.heads[int(s.hash(&slot.item))&(len(s.heads)-1)]
	slot.next, *head = *head, i
}

// remove removes the item with a number.
func (s *shelf[T]) remove(i uint32) {
	slot := s.slot(i)
	link := &s.heads[int(s.hash(&slot.item))&(len(s.heads)-1)]
	for *link != i {
		link = &s.slot(*link).next
	}
	*link = slot.next
	var none T
	slot.item = none
	slot.next, s.free = s.free, i
	s.n--
}

// grow makes room for twice as many hashes.
func (s *shelf[T]) grow() {
	old := s.heads
	s.heads = make([]uint32, max(shelfHeads, 2*len(old)))
	if len(old) == 0 {
		s.chunks = append(s.chunks, new([shelfChunk]shelfSlot[T])) // its first slot stays empty
		return
	}
	for _, i := range old {
		for i != 0 {
			slot := s.slot(i)
			next := slot.next
			s.link(i, slot)
			i = next
		}
	}
}
