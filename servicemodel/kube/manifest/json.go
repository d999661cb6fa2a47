package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"slices"
)

// parseJSON reads the JSON values of a document, one after another. The standard library checks
// each value before it is read.
func parseJSON(d document) ([]*value, error) {
	check := json.NewDecoder(bytes.NewReader(d.text))
	p := &jsonParser{line: d.line, names: map[string]string{}}
	var values []*value
	for {
		err := check.Decode(new(skipped))
		if errors.Is(err, io.EOF) {
			return values, nil
		} else if err != nil {
			return nil, notJSON(d, err)
		}

		p.text = d.text[:check.InputOffset()]
		v, err := p.value(0)
		if err != nil {
			return nil, err
		}
		values = append(values, v)
	}
}

// skipped is a value that is only checked.
type skipped struct{}

// UnmarshalJSON implements [json.Unmarshaler].
func (*skipped) UnmarshalJSON([]byte) error { return nil }

// notJSON returns an error of the standard library with the line in the file.
func notJSON(d document, err error) error {
	reason, before := "the text ends in the middle of a value", len(d.text)
	if wrong, ok := errors.AsType[*json.SyntaxError](err); ok {
		reason, before = wrong.Error(), int(wrong.Offset)-1
	}
	return syntaxErrorf(d.line+bytes.Count(d.text[:before], []byte("\n")), "not JSON: %s", reason)
}

// jsonParser builds values from text that is JSON. encoding/json has no fast way to get values with
// their lines: its token decoder took four times as long.
type jsonParser struct {
	text  []byte // up to the end of the present value
	pos   int
	line  int               // in the file, at pos
	names map[string]string // names of fields so far, so that equal names share memory
	// items and members belong to the lists and objects that are being read.
	items   []*value
	members []member
	free    []value // values that were allocated together
}

// next skips white space, and returns the byte after it.
func (p *jsonParser) next() byte {
	for {
		switch c := p.text[p.pos]; c {
		case '\n':
			p.line++
		case ' ', '\t', '\r':
		default:
			return c
		}

		p.pos++
	}
}

func (p *jsonParser) value(depth int) (*value, error) {
	c := p.next()
	if len(p.free) == 0 {
		p.free = make([]value, 64)
	}
	v := &p.free[0]
	p.free = p.free[1:]
	v.line = p.line
	if depth > maxDepth {
		return nil, syntaxErrorf(v.line, "nested more than %d deep", maxDepth)
	}
	switch c {
	case '{':
		v.kind = objectValue
		first := len(p.members)
		for p.more('}') {
			quoted := p.quoted()
			name, known := p.names[string(quoted)]
			if !known {
				name = unquote(quoted)
				p.names[string(quoted)] = name
			}

			p.next()
			p.pos++ // the colon
			m, err := p.value(depth + 1)
			if err != nil {
				return nil, err
			}
			p.members = append(p.members, member{name, m})
		}

		v.members = slices.Clone(p.members[first:])
		p.members = p.members[:first]
	case '[':
		v.kind = listValue
		first := len(p.items)
		for p.more(']') {
			item, err := p.value(depth + 1)
			if err != nil {
				return nil, err
			}
			p.items = append(p.items, item)
		}

		v.items = slices.Clone(p.items[first:])
		p.items = p.items[:first]
	case '"':
		v.kind, v.text = textValue, unquote(p.quoted())
	case 't', 'f':
		v.kind, v.text = boolValue, string(p.plain())
	case 'n':
		p.plain()
	default:
		v.kind, v.text = numberValue, string(p.plain())
	}

	return v, v.finish()
}

// more skips the bracket or comma before an item, and reports whether the list has another item.
func (p *jsonParser) more(end byte) bool {
	if p.next() != end {
		p.pos++
	}
	if p.next() != end {
		return true
	}
	p.pos++
	return false
}

// plain skips a number, true, false or null.
func (p *jsonParser) plain() []byte {
	rest := p.text[p.pos:]
	if n := bytes.IndexAny(rest, ",]} \t\r\n"); n >= 0 {
		rest = rest[:n]
	}
	p.pos += len(rest)
	return rest
}

// quoted skips a string, and returns it with its quotes.
func (p *jsonParser) quoted() []byte {
	begin := p.pos
	for p.pos++; p.text[p.pos] != '"'; p.pos++ {
		if p.text[p.pos] == '\\' {
			p.pos++
		}
	}

	p.pos++
	return p.text[begin:p.pos]
}

// unquote returns the text of a string.
func unquote(quoted []byte) string {
	if bytes.IndexByte(quoted, '\\') < 0 {
		return string(quoted[1 : len(quoted)-1])
	}
	var text string
	_ = json.Unmarshal(quoted, &text) // it is JSON
	return text
}
