package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"slices"
)

// parseJSON reads the JSON values of a document, one after another.
func parseJSON(d document) ([]*value, error) {
	p := &jsonParser{text: d.text, line: d.line, names: map[string]string{}}
	var values []*value
	for p.next() != 0 {
		begin := *p
		v, err := p.value(0)
		if errors.Is(err, errNotJSON) {
			err = begin.explain()
		}
		if err != nil {
			return nil, err
		}
		values = append(values, v)
	}
	return values, nil
}

// jsonParser builds values from JSON. encoding/json's decoder of tokens took four times as long,
// and only explains text that is not JSON.
type jsonParser struct {
	text  []byte
	pos   int
	line  int               // of the file, at pos
	names map[string]string // names of fields so far, so that equal ones share memory
	// items and members belong to the lists and objects that are being read.
	items   []*value
	members []member
	free    []value // allocated together
}

// errNotJSON says that the text is not JSON.
var errNotJSON = errors.New("not JSON")

// next skips white space, and returns the byte after it, 0 at the end.
func (p *jsonParser) next() byte {
	for ; p.pos < len(p.text); p.pos++ {
		switch c := p.text[p.pos]; c {
		case '\n':
			p.line++
		case ' ', '\t', '\r':
		default:
			return c
		}
	}
	return 0
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
	var err error
	switch c {
	case '{':
		v.kind = objectValue
		err = p.object(v, depth)
	case '[':
		v.kind = listValue
		err = p.list(v, depth)
	case '"':
		v.kind = textValue
		v.text, err = p.textValue(false)
	default:
		err = p.plain(v)
	}
	if err != nil {
		return nil, err
	}
	return v, v.finish()
}

// plain reads a number, true, false or null.
func (p *jsonParser) plain(v *value) error {
	rest := p.text[p.pos:]
	n := bytes.IndexFunc(rest, func(r rune) bool {
		return r != '+' && r != '-' && r != '.' && (r < '0' || r > '9') && (r < 'a' || r > 'z') &&
			r != 'E'
	})
	if n >= 0 {
		rest = rest[:n]
	}
	switch v.text = string(rest); v.text {
	case "true", "false":
		v.kind = boolValue
	case "null":
		v.text = ""
	default:
		v.kind = numberValue
		if !json.Valid(rest) {
			return errNotJSON
		}
	}
	p.pos += len(rest)
	return nil
}

// textValue reads a string. Names of fields share memory.
func (p *jsonParser) textValue(isName bool) (string, error) {
	begin, escaped := p.pos, false
	for p.pos++; p.pos < len(p.text); p.pos++ {
		switch c := p.text[p.pos]; {
		case c < ' ':
			return "", errNotJSON
		case c == '\\':
			escaped = true
			p.pos++
		case c == '"':
			p.pos++
			if escaped {
				var s string
				if json.Unmarshal(p.text[begin:p.pos], &s) != nil {
					return "", errNotJSON
				}
				return s, nil
			}
			text := p.text[begin+1 : p.pos-1]
			if !isName {
				return string(text), nil
			}
			name, known := p.names[string(text)]
			if !known {
				name = string(text)
				p.names[name] = name
			}
			return name, nil
		}
	}
	return "", errNotJSON
}

// more goes to the next item of a list or an object, after n items. It returns false at the end.
func (p *jsonParser) more(n int, end byte) (bool, error) {
	c := p.next()
	switch {
	case c == end:
		p.pos++
		return false, nil
	case n == 0:
		return true, nil
	case c != ',':
		return false, errNotJSON
	}
	p.pos++
	return true, nil
}

func (p *jsonParser) list(v *value, depth int) error {
	first := len(p.items)
	for p.pos++; ; {
		more, err := p.more(len(p.items)-first, ']')
		if err != nil {
			return err
		}
		if !more {
			v.items = slices.Clone(p.items[first:])
			p.items = p.items[:first]
			return nil
		}
		item, err := p.value(depth + 1)
		if err != nil {
			return err
		}
		p.items = append(p.items, item)
	}
}

func (p *jsonParser) object(v *value, depth int) error {
	first := len(p.members)
	for p.pos++; ; {
		more, err := p.more(len(p.members)-first, '}')
		if err != nil {
			return err
		}
		if !more {
			v.members = slices.Clone(p.members[first:])
			p.members = p.members[:first]
			return nil
		}
		if p.next() != '"' {
			return errNotJSON
		}
		name, err := p.textValue(true)
		if err != nil {
			return err
		}
		if p.next() != ':' {
			return errNotJSON
		}
		p.pos++
		m, err := p.value(depth + 1)
		if err != nil {
			return err
		}
		p.members = append(p.members, member{name, m})
	}
}

// explain returns the error of a value that begins here and is not JSON.
func (p *jsonParser) explain() error {
	rest, syntax := p.text[p.pos:], new(json.SyntaxError)
	err := json.NewDecoder(bytes.NewReader(rest)).Decode(new(json.RawMessage))
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return syntaxErrorf(p.line+bytes.Count(rest, []byte("\n")),
			"not JSON: the text ends in the middle of a value")
	case errors.As(err, &syntax):
		rest = rest[:min(int(syntax.Offset)-1, len(rest))]
	default: // text after a whole value
		return syntaxErrorf(p.line, "%v", errNotJSON)
	}
	return syntaxErrorf(p.line+bytes.Count(rest, []byte("\n")), "not JSON: %v", err)
}
