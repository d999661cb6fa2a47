package rawnl

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
)

// lookupWindow is the number of entries that one datagram asks for. A larger window saves nothing:
// a datagram and its answers should fit into the processor's caches.
const lookupWindow = 256

// Lookup asks for entries of lists, such as elements of sets (NFT_MSG_GETSETELEM). Each message of
// b ends with a nested attribute; each attribute inside it is an entry to ask for. Lookup calls fn
// once for every entry, and keeps the order within a message. The arguments are the position of the
// message in b, the position of the entry in the message, the kernel's reply, and whether there is
// a reply. Without a reply, the entry or the list itself does not exist. The reply is valid until
// fn returns. fn must not use the connection. If fn returns an error, Lookup stops.
//
// The kernel answers each entry with a separate datagram and stops at the first missing entry
// (nf_tables_getsetelem in net/netfilter/nf_tables_api.c). Lookup then asks for the entries after
// the missing one. If the receive queue had no room for answers, Lookup asks for those entries
// again, fewer at a time.
func (c *Conn) Lookup(ctx context.Context, b *Batch,
	fn func(i, entry int, m Message, found bool) error) error {
	return c.work(ctx, "look up", "lookup", b, func() (error, error) {
		var lists []entryList // lists with entries to ask for, in the order of their messages
		for i := range b.msgs {
			list, err := listOf(b, i)
			if err != nil {
				return nil, err
			}
			if list.next < list.end {
				lists = append(lists, list)
			}
		}

		return c.lookup(ctx, b, lists, fn)
	})
}

// errAnswered ends an exchange in which the kernel has answered all entries.
var errAnswered = errors.New("all entries are answered")

// lookup asks for the entries of lists, in as many datagrams as necessary.
func (c *Conn) lookup(ctx context.Context, b *Batch, lists []entryList,
	fn func(i, entry int, m Message, found bool) error) (refused, err error) {
	var told, open int // entries that were passed to fn, and lists without a complete answer
	var lost bool      // some answers had no room in the receive queue

	// tell passes the next entry of a list to fn. end says that the kernel sends no more answers
	// for the list.
	tell := func(l *entryList, m Message, found, end bool) error {
		entry := l.entry
		l.next += entryLen(b.At(l.msg)[l.next:])
		l.entry++
		told++
		if end || l.next >= l.until {
			l.until = 0
			open--
		}

		return fn(l.msg, entry, m, found)
	}

	reply := func(i int, m Message) error {
		if l := &lists[i]; l.next < l.until {
			refused = tell(l, m, true, false)
		}
		return answered(refused, open)
	}

	// An error ends a list: the next entry does not exist, or its answer had no room.
	ended := func(i int, v verdict) error {
		switch l := &lists[i]; {
		case l.next >= l.until, v.errno == 0:
			return nil
		case v.errno == syscall.ENOENT:
			refused = tell(l, Message{}, false, true)
		case v.errno == syscall.EAGAIN, v.errno == syscall.ENOBUFS:
			lost, l.until = true, 0
			open--
		default:
			refused = messageError(b, l.msg, v)
		}

		return answered(refused, open)
	}

	for window := max(1, min(lookupWindow, c.queue/ackSize)); len(lists) > 0; {
		if err := c.proceed(ctx); err != nil {
			return nil, err
		}
		told, open, lost = 0, c.fillPart(b, lists, window), false
		r := request{b: &c.part, end: open, many: true, reply: reply, ended: ended}
		err := c.exchange(context.Background(), &r)
		switch {
		case refused != nil:
			return refused, nil
		case err == nil, err == ErrAnswersLost, err == errAnswered:
			lost = lost || err != errAnswered
		default:
			return nil, err
		}

		if lost && window == 1 && told == 0 {
			return nil, ErrAnswersLost
		}
		if lost {
			window = max(1, window/2)
		}
		lists = slices.DeleteFunc(lists, func(l entryList) bool { return l.next >= l.end })
	}

	return nil, nil
}

// answered ends an exchange with an error, or when no list is open.
func answered(err error, open int) error {
	if err == nil && open == 0 {
		return errAnswered
	}
	return err
}

// fillPart builds a datagram that asks for at most window entries. The datagram does not exceed the
// limit of a send, unless one entry is larger. fillPart returns the number of lists in the
// datagram.
func (c *Conn) fillPart(b *Batch, lists []entryList, window int) int {
	part := &c.part
	part.Reset()
	for i := range lists {
		l := &lists[i]
		msg := b.At(l.msg)
		l.until = l.next
		for ; window > 0 && l.until < l.end; window-- {
			to := min(l.until+entryLen(msg[l.until:]), l.end)
			full := len(part.Bytes())+l.head+to-l.next > c.limit
			if full && (l.until > l.next || i > 0) {
				break
			}
			l.until = to
		}

		if l.until == l.next {
			break
		}
		part.Message(0, 0, 0, 0, 0, Object{})
		copy(part.buf[len(part.buf)-frameLen:], msg[:frameLen])
		part.Raw(msg[frameLen:l.head])
		at := len(part.buf) - attrHeaderLen
		part.Raw(msg[l.next:l.until])
		native.PutUint16(part.buf[at:], uint16(len(part.buf)-at))
	}

	_ = part.seal() // its messages come from b
	return part.Len()
}

// entryList is the list of one message.
type entryList struct {
	msg   int // position in the batch
	head  int // length of the message without the entries
	next  int // offset of the next entry to ask for in the message
	until int // end of the entries that the kernel has yet to answer
	end   int // end of the last entry
	entry int // the number of the next entry
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
