package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
)

// parseJSON reads the JSON values of a document, one after another.
func parseJSON(d document) ([]*value, error) {
	dec := json.NewDecoder(bytes.NewReader(d.text))
	dec.UseNumber()
	p := &jsonParser{dec: dec, text: d.text, line: d.line}
	var values []*value
	for {
		t, err := dec.Token()
		if errors.Is(err, io.EOF) {
			return values, nil
		}
		var v *value
		if err == nil {
			v, err = p.value(t, 0)
		}
		if err != nil {
			return nil, p.explain(err)
		}
		values = append(values, v)
	}
}

// jsonParser builds values from the tokens of a decoder.
type jsonParser struct {
	dec  *json.Decoder
	text []byte
	pos  int // up to which lines were counted
	line int
}

// here returns the line of the token read last.
func (p *jsonParser) here() int { return p.lineAt(int(p.dec.InputOffset())) }

func (p *jsonParser) lineAt(pos int) int {
	if pos = min(pos, len(p.text)); pos > p.pos {
		p.line += bytes.Count(p.text[p.pos:pos], []byte("\n"))
		p.pos = pos
	}
	return p.line
}

func (p *jsonParser) value(t json.Token, depth int) (*value, error) {
	v := &value{line: p.here()}
	if depth > maxDepth {
		return nil, syntaxErrorf(v.line, "nested more than %d deep", maxDepth)
	}
	var err error
	switch t := t.(type) {
	case nil:
	case bool:
		v.kind, v.text = boolValue, "false"
		if t {
			v.text = "true"
		}
	case json.Number:
		v.kind, v.text = numberValue, t.String()
	case string:
		v.kind, v.text = textValue, t
	case json.Delim:
		if t == '[' {
			v.kind = listValue
			err = p.list(v, depth)
		} else {
			v.kind = objectValue
			err = p.object(v, depth)
		}
	}
	if err != nil {
		return nil, err
	}
	return v, v.finish()
}

func (p *jsonParser) list(v *value, depth int) error {
	for {
		t, err := p.dec.Token()
		if err != nil {
			return err
		}
		if t == json.Delim(']') {
			return nil
		}
		item, err := p.value(t, depth+1)
		if err != nil {
			return err
		}
		v.items = append(v.items, item)
	}
}

func (p *jsonParser) object(v *value, depth int) error {
	for {
		t, err := p.dec.Token()
		if err != nil {
			return err
		}
		name, ok := t.(string)
		if !ok { // '}'
			return nil
		}
		if t, err = p.dec.Token(); err != nil {
			return err
		}
		m, err := p.value(t, depth+1)
		if err != nil {
			return err
		}
		v.members = append(v.members, member{name, m})
	}
}

// explain gives an error of the decoder its line.
func (p *jsonParser) explain(err error) error {
	var known *syntaxError
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &known):
		return known
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return syntaxErrorf(p.lineAt(len(p.text)),
			"not JSON: the text ends in the middle of a value")
	case errors.As(err, &syntax):
		return syntaxErrorf(p.lineAt(int(syntax.Offset)), "not JSON: %v", err)
	}
	return syntaxErrorf(p.here(), "not JSON: %v", err)
}
