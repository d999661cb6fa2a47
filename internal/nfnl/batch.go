package nfnl

// Object says what a message is about, for errors. Making one is free when the strings exist already: nothing
// is put together before the kernel has refused the message. The text of an error reads
//
//	Verb [Part] in Kind Name of Within
//
// as in "add element 10.0.0.1 . tcp . 80 in map endpoints-3 of table ip kernlb".
type Object struct {
	Verb   string // "add", "delete"
	Kind   string // "map", "chain", "table"
	Name   string // "endpoints-3"
	Within string // "table ip kernlb"; may be empty
	// Part, if not nil, finds the part of the message that the kernel pointed at.
	Part Describer
}

// Describer names a part of a message, for messages that carry many things: elements of a set above all.
type Describer interface {
	// DescribePart names the part of msg at offset, for example "element 10.0.0.1 . tcp . 80", or
	// returns "" if it cannot tell. msg is a whole message with its headers, and msg[offset:] begins
	// with the attribute that the kernel complained about; [AttrPath] finds the attributes around it.
	DescribePart(msg []byte, offset int) string
}

// DescribeFunc is a function that is a [Describer]. A function that captures nothing costs no allocation.
type DescribeFunc func(msg []byte, offset int) string

// DescribePart calls f.
func (f DescribeFunc) DescribePart(msg []byte, offset int) string { return f(msg, offset) }

// String returns what an error calls the object, without a part.
func (o Object) String() string { return "" }

// PathStep is one attribute on the way from a message to an attribute deep inside it.
type PathStep struct {
	Type uint16 // without flags
	Data []byte
}

// AttrPath returns the attributes of the message msg (headers included) that enclose offset, the
// outermost first; the last one begins at offset, if offset is right. It returns nil if offset lies outside
// of all attributes.
func AttrPath(msg []byte, offset int) []PathStep { return nil }

// Batch is an append-only buffer of messages. The zero value is ready for use. Reset empties it and
// keeps the memory. A Batch must not be used by two goroutines at once.
type Batch struct{ _ struct{} }

// Reset makes the batch empty and keeps its memory.
func (b *Batch) Reset() {}

// Message ends the message before it, if any, and begins a new one. FlagRequest is added to flags. The
// sequence number is filled in when the batch is sent.
func (b *Batch) Message(subsys, msgType uint8, flags uint16, family uint8, resID uint16, obj Object) {}

// Len returns the number of messages.
func (b *Batch) Len() int { return 0 }

// Size returns the number of bytes that a Commit of the batch sends, begin and end messages included.
func (b *Batch) Size() int { return 0 }

// MessageLen returns the present length of the last message, headers included.
func (b *Batch) MessageLen() int { return 0 }

// Bytes returns the messages as they are, without the begin and end messages of a transaction. It is
// valid until the batch is changed. The sequence numbers are zero until the batch has been sent.
func (b *Batch) Bytes() []byte { return nil }

// Err returns the first mistake made in writing the batch: an attribute that is too long, an attribute that
// was not closed.
func (b *Batch) Err() error { return nil }
