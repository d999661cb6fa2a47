package nft

import (
	"fmt"
	"strings"
)

// Text writes the changes of one table as commands of nft. It decodes elements from the bytes that
// an [Encoder] would send.
type Text struct {
	b     *strings.Builder
	table string // "ip kernlb"
}

var _ Writer = (*Text)(nil)

// NewText returns a writer for a table of a family.
func NewText(b *strings.Builder, f *Family, table string) *Text {
	return &Text{b: b, table: f.Name + " " + table}
}

// AddTable writes the command that creates the table.
func (t *Text) AddTable() { t.b.WriteString("add table " + t.table + "\n") }

// DeleteTable writes the command that deletes the table.
func (t *Text) DeleteTable() { t.b.WriteString("delete table " + t.table + "\n") }

// line writes a command about an object of the table.
func (t *Text) line(command, object string) {
	t.b.WriteString(command + " " + t.table + " " + object + "\n")
}

// AddSet writes the command that creates a set.
func (t *Text) AddSet(s *Set) {
	spec := "type " + typeNames(s.Key)
	switch {
	case s.Typeof:
		spec = "typeof " + typeofNames(s.Key) + " : " + typeofNames(s.Data)
	case s.Data != nil:
		spec += " : " + typeNames(s.Data)
	}

	spec += ";"
	switch {
	case s.Flags&SetInterval != 0:
		spec += " flags interval;"
	case s.Flags&SetEval != 0:
		spec += " flags dynamic,timeout;"
	}

	if s.Size > 0 {
		spec += fmt.Sprintf(" size %d;", s.Size)
	}
	if s.Comment != "" {
		spec += fmt.Sprintf(" comment %q;", s.Comment)
	}
	t.line("add "+s.kind(), s.Name+" { "+spec+" }")
}

// DeleteSet writes the command that deletes a set.
func (t *Text) DeleteSet(s *Set) { t.line("delete "+s.kind(), s.Name) }

func typeNames(fs []Field) string {
	return joinFields(fs, func(f Field) string { return fieldTypes[f].name })
}

func typeofNames(fs []Field) string {
	return joinFields(fs, func(f Field) string { return fieldTypes[f].typeof })
}

func joinFields(fs []Field, text func(Field) string) string {
	l := make([]string, len(fs))
	for i, f := range fs {
		l[i] = text(f)
	}
	return strings.Join(l, " . ")
}

// Elements writes the commands that add or delete elements, one line for each element.
func (t *Text) Elements(op Op, s *Set, l *ElemList) {
	l.Each(func(e Elem) { t.line(string(op)+" element", s.Name+" { "+s.ElemText(e)+" }") })
}

// FlushSet writes the command that deletes all elements of a set.
func (t *Text) FlushSet(s *Set) { t.line("flush "+s.kind(), s.Name) }

// ElemText writes an element as nft does.
func (s *Set) ElemText(e Elem) string {
	text := fieldsText(s.Key, e.Key, e.KeyEnd)
	if c := CommentOf(e.UserData); c != "" {
		text += fmt.Sprintf(" comment %q", c)
	}
	switch {
	case e.Goto:
		text += " : goto " + string(e.Data)
	case s.Data != nil && e.Data != nil:
		text += " : " + fieldsText(s.Data, e.Data, nil)
	}

	return text
}

// fieldsText writes the fields of a key or data; end is the end of a range.
func fieldsText(fs []Field, b, end []byte) string {
	first, last := Reader{Bytes: b}, Reader{Bytes: end}
	return joinFields(fs, func(f Field) string {
		s := f.text(&first)
		if end != nil {
			if e := f.text(&last); e != s {
				s += "-" + e
			}
		}

		return s
	})
}

// text reads a field, and returns its text.
func (f Field) text(r *Reader) string {
	switch f {
	case FieldProto:
		return r.Proto().String()
	case FieldPort:
		return fmt.Sprint(r.Port())
	case FieldSlot:
		return fmt.Sprint(r.Native())
	case FieldMark:
		return fmt.Sprintf("0x%08x", r.Native())
	}

	return r.Addr(fieldTypes[f].len).String()
}

// AddChain writes the command that creates a chain.
func (t *Text) AddChain(c *Chain) {
	spec := c.Name
	if c.Type != "" {
		spec += fmt.Sprintf(" { type %s hook %s priority %d; policy accept; }", c.Type,
			hookNames[c.Hook], c.Prio)
	}

	t.line("add chain", spec)
}

// FlushChain writes the command that deletes the rules of a chain.
func (t *Text) FlushChain(name string) { t.line("flush chain", name) }

// DeleteChain writes the command that deletes a chain.
func (t *Text) DeleteChain(name string) { t.line("delete chain", name) }

// AddRule writes the command that adds a rule to a chain.
func (t *Text) AddRule(chain string, r Rule) { t.line("add rule", chain+" "+r.Text()) }
