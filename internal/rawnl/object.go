package rawnl

import (
	"fmt"
	"strings"
	"syscall"
)

// Object is the subject of a message, for errors. Building an Object costs nothing if its strings
// exist: the text is composed only after the kernel has refused the message. The text of an error
// reads
//
//	Verb [Part in] Kind Name [of Within]
//
// as in "add element 10.0.0.1 . tcp . 80 in map endpoints-3 of table ip kernlb".
type Object struct {
	Verb   string // "add", "delete"
	Kind   string // "map", "chain", "table"
	Name   string // "endpoints-3"
	Within string // "table ip kernlb"; may be empty
	// Part, if not nil, names the part of the message that the kernel pointed at.
	Part Describer
}

// Describer names a part of a message, for messages with many parts, above all elements of a set.
type Describer interface {
	// DescribePart names the part of msg at offset, for example "element 10.0.0.1 . tcp . 80", or
	// returns "" if it finds no part. msg is a whole message with its headers. msg[offset:] begins
	// with the attribute that the kernel complained about; [AttrPath] finds the attributes around
	// it. The offset is 0 if the kernel reports none: Linux 5.10 reports no offset for the elements
	// of a set, but 6.1 does.
	DescribePart(msg []byte, offset int) string
}

// Explainer is a [Describer] that knows the meaning of an errno.
type Explainer interface {
	Describer
	// Explain returns the sentinel that the errno stands for, or nil.
	Explain(errno syscall.Errno) error
}

// DescribeFunc is a function that is a [Describer]. A function that captures nothing costs no
// allocation.
type DescribeFunc func(msg []byte, offset int) string

// DescribePart calls f.
func (f DescribeFunc) DescribePart(msg []byte, offset int) string { return f(msg, offset) }

// String returns the object without the verb. Errors that blame no part of the object use this
// text.
func (o Object) String() string { return o.text("") }

// text returns the object without its verb.
func (o Object) text(part string) string {
	var s strings.Builder
	add := func(link, word string) {
		if word == "" {
			return
		}
		if s.Len() > 0 {
			s.WriteString(link)
		}
		s.WriteString(word)
	}

	add("", part)
	whole := strings.TrimSpace(o.Kind + " " + o.Name)
	add(" in ", whole)
	add(" of ", o.Within)
	return s.String()
}

// label names the object of message i, even if the message was written without names.
func (o Object) label(i int) string {
	if s := strings.TrimSpace(o.Verb + " " + o.text("")); s != "" {
		return s
	}
	return fmt.Sprintf("message %d", i)
}

// blame names the part of the object at offset of its message. Offset 0 means that the kernel
// reported no offset.
func (o Object) blame(msg []byte, offset int) string {
	if o.Part == nil {
		return o.text("")
	}
	if offset < frameLen || offset >= len(msg) {
		offset = 0
	}
	return o.text(o.Part.DescribePart(msg, offset))
}

// PathStep is one attribute on the path from a message down to a nested attribute.
type PathStep struct {
	Type uint16 // without flags
	Data []byte
}

// AttrPath returns the attributes of the message msg (headers included) that enclose offset, the
// outermost first; the last attribute begins at offset. It returns nil if no attribute begins
// there.
func AttrPath(msg []byte, offset int) []PathStep {
	if offset < frameLen || offset > len(msg)-attrHeaderLen {
		return nil
	}
	var path []PathStep
	at, level := frameLen, msg[frameLen:]
	for {
		it := Attrs(level)
		begin := at
		for {
			begin = at + it.offset()
			if !it.Next() {
				return nil
			}
			if offset < begin+attrHeaderLen+len(it.Data()) {
				break
			}
		}

		path = append(path, PathStep{it.Type(), it.Data()})
		switch {
		case offset == begin:
			return path
		case offset < begin+attrHeaderLen:
			return nil
		}

		at, level = begin+attrHeaderLen, it.Data()
	}
}
