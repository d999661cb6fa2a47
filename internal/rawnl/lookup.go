package rawnl

import (
	"context"
	"fmt"
	"slices"
	"syscall"
)

// lookupWindow is how many entries one datagram asks for. A larger window saves nothing: a datagram
// and its answers should fit into the processor's caches.
const lookupWindow = 256

// Lookup asks for entries of lists, such as elements of sets (NFT_MSG_GETSETELEM). Each message of
// b ends with a nested attribute; each attribute inside it is an entry to ask for. Lookup calls fn
// once for every entry, and keeps the order within a message. The arguments are the position of the
// message in b, the position of the entry in the message, the kernel's reply, and whether there is
// one. Without a reply, the entry or the list itself does not exist. The reply is valid until fn
// returns. fn must not use the connection, and its error ends the work.
//
// The kernel answers each entry with a datagram of its own and stops at the first entry that it
// does not have (nf_tables_getsetelem in net/netfilter/nf_tables_api.c). Lookup then asks for the
// entries after it. If the receive queue had no room for answers, Lookup asks for those entries
// again, fewer at a time.
func (c *Conn) Lookup(ctx context.Context, b *Batch,
	fn func(i, entry int, m Message, found bool) error) error {
	return c.work(ctx, "look up", "lookup", b, func() error { return c.lookup(ctx, b, fn) })
}

// lookup does the work of Lookup. The caller holds the connection.
func (c *Conn) lookup(ctx context.Context, b *Batch,
	fn func(i, entry int, m Message, found bool) error) error {
	l := lookup{b: b, fn: fn, wire: c.wire}
	defer func() { c.wire = l.wire }()
	window := max(1, min(lookupWindow, c.queue/ackSize))
	for i := range b.msgs {
		list, err := listOf(b, i)
		if err != nil {
			return fmt.Errorf("look up: %w", err)
		}
		if list.next < list.end {
			l.lists = append(l.lists, list)
		}
	}
	for len(l.lists) > 0 {
		if err := c.proceed(ctx); err != nil {
			return fmt.Errorf("look up: %w", err)
		}
		l.fill(window, c.limit)
		first := c.reserve(len(l.parts))
		for i, p := range l.parts {
			native.PutUint32(l.wire[p.at+8:], first+uint32(i))
		}
		if err := c.send(l.wire, l.wire, 0); err != nil {
			return fmt.Errorf("look up: %w", err)
		}
		if err := c.replies(&l, first); err != nil {
			return err
		}
		if l.lost {
			if window == 1 && l.told == 0 {
				return fmt.Errorf("look up: %w", ErrAnswersLost)
			}
			window = max(1, window/2)
		}
		open := slices.DeleteFunc(l.lists[:len(l.parts)], func(e entryList) bool {
			return e.next >= e.end
		})
		l.lists = append(open, l.lists[len(l.parts):]...)
	}
	return nil
}

// lookup is the work of one Lookup.
type lookup struct {
	b     *Batch
	fn    func(i, entry int, m Message, found bool) error
	lists []entryList // those with entries to ask for, in the order of their messages
	wire  []byte      // the datagram under way
	parts []part      // its messages, about the first lists
	open  int         // how many of them are not yet answered in full
	told  int         // how many entries of the datagram fn was told of
	lost  bool        // some answers had no room in the receive queue
}

// entryList is the list of one message.
type entryList struct {
	msg   int // position in the batch
	head  int // length of the message without the entries
	next  int // where the next entry to ask for begins in the message
	end   int // where the last one ends
	entry int // the number of the next one
}

// part is a message of a datagram.
type part struct {
	at   int // where it begins in the datagram
	left int // entries that are not answered
	done bool
}

// listOf finds the list of message i: its last attribute.
func listOf(b *Batch, i int) (entryList, error) {
	msg := b.At(i)
	it := Attrs(msg[frameLen:])
	at := -1
	for begin := frameLen; it.Next(); begin = frameLen + it.offset() {
		at = begin
	}
	if at < 0 || it.typ&AttrNested == 0 {
		return entryList{}, fmt.Errorf("%w: %s: no list at its end", ErrBadBatch,
			b.msgs[i].obj.label(i))
	}
	head := at + attrHeaderLen
	return entryList{msg: i, head: head, next: head, end: at + attrHeaderLen + len(it.Data())}, nil
}

// entryLen returns the length of the entry at the beginning of p.
func entryLen(p []byte) int { return max(attrHeaderLen, align(int(native.Uint16(p)))) }

// fill makes a datagram of at most window entries and, unless one is larger, of at most size bytes.
func (l *lookup) fill(window, size int) {
	l.wire, l.parts, l.told, l.lost = l.wire[:0], l.parts[:0], 0, false
	for i := range l.lists {
		list := &l.lists[i]
		msg := l.b.At(list.msg)
		end, n := list.next, 0
		for end < list.end && n < window {
			to := min(end+entryLen(msg[end:]), list.end)
			full := len(l.wire)+list.head+to-list.next > size
			if full && (n > 0 || len(l.parts) > 0) {
				break
			}
			end, n = to, n+1
		}
		if n == 0 {
			break
		}
		window -= n
		at := len(l.wire)
		l.wire = append(l.wire, msg[:list.head]...)
		l.wire = append(l.wire, msg[list.next:end]...)
		native.PutUint32(l.wire[at:], uint32(len(l.wire)-at))
		native.PutUint16(l.wire[at+list.head-attrHeaderLen:], uint16(attrHeaderLen+end-list.next))
		l.parts = append(l.parts, part{at: at, left: n})
	}
	l.open = len(l.parts)
}

// replies reads the answers to a datagram, until every part is answered or the queue is empty.
func (c *Conn) replies(l *lookup, first uint32) error {
	for l.open > 0 {
		n, err := c.sock.ReceiveMany(c.rx, c.sizes[:])
		if err == errOverrun {
			l.lost = true
			continue
		}
		if err == errEmpty {
			l.lost = true
			return nil
		}
		if err != nil {
			return fmt.Errorf("look up: %w", err)
		}
		for i, size := range c.sizes[:n] {
			slot := c.rx[i*manySize : (i+1)*manySize]
			if size > len(slot) {
				return fmt.Errorf("look up: %w: a datagram of %d bytes, more than %d",
					ErrMalformed, size, len(slot))
			}
			if err := l.take(slot[:size], first); err != nil {
				return err
			}
		}
	}
	return nil
}

// take handles one datagram of the kernel. A reply is about the next entry of a part. An error ends
// a part: the next entry does not exist, or its answer had no room.
func (l *lookup) take(data []byte, first uint32) error {
	for len(data) > 0 {
		p, rest, err := nextPacket(data)
		if err != nil {
			return fmt.Errorf("look up: %w", err)
		}
		data = rest
		i := int(p.seq - first)
		if i < 0 || i >= len(l.parts) || l.parts[i].done || p.typ < minType && p.typ != msgError {
			continue
		}
		if p.typ != msgError {
			m, err := p.message()
			if err != nil {
				return fmt.Errorf("look up: %w", err)
			}
			if err := l.tell(i, m, true); err != nil {
				return err
			}
			continue
		}
		v, err := p.verdict()
		if err != nil {
			return fmt.Errorf("look up: %w", err)
		}
		switch v.errno {
		case syscall.ENOENT:
			err = l.tell(i, Message{}, false)
		case syscall.EAGAIN, syscall.ENOBUFS:
			l.lost = true
		default:
			err = messageError(l.b, l.lists[i].msg, v)
		}
		if !l.parts[i].done {
			l.parts[i].done = true
			l.open--
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// tell tells fn of the next entry of a part.
func (l *lookup) tell(i int, m Message, found bool) error {
	list, part := &l.lists[i], &l.parts[i]
	entry := list.entry
	list.next += entryLen(l.b.At(list.msg)[list.next:])
	list.entry++
	l.told++
	if part.left--; part.left == 0 {
		part.done = true
		l.open--
	}
	return l.fn(list.msg, entry, m, found)
}
