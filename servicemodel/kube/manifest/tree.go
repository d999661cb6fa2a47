package manifest

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// kind is a kind of value in JSON.
type kind uint8

const (
	nullValue kind = iota
	boolValue
	numberValue
	textValue
	listValue
	objectValue
)

// String returns the kind in words for people.
func (k kind) String() string {
	return [...]string{"nothing", "true or false", "a number", "text", "a list", "an object"}[k]
}

// value is a node of a parsed document, in either syntax. YAML aliases share values.
type value struct {
	kind    kind
	line    int      // the line in the file
	text    string   // of a scalar, as in JSON; of text, without quotes
	items   []*value // of a list
	members []member // of an object, in their order
	size    int      // in bytes, with aliases written out; at most sizeCap
}

// member is a named value of an object.
type member struct {
	name  string
	value *value
}

// Limits that keep hostile documents cheap.
const (
	maxDepth   = 1000    // of nesting
	maxAliased = 1 << 20 // limit for the growth of a document by aliases
	sizeCap    = 1 << 40
	nodeSize   = 16 // size of a value without its text
	// manyMembers limits the number of members of an object that are compared with one another.
	manyMembers = 8
)

// syntaxError is the reason why a document cannot be read.
type syntaxError struct {
	line   int
	reason string
}

func (e *syntaxError) Error() string { return e.reason }

func syntaxErrorf(line int, format string, args ...any) *syntaxError {
	return &syntaxError{line, fmt.Sprintf(format, args...)}
}

// get returns the named member, or nil if there is none.
func (v *value) get(name string) *value {
	if v == nil {
		return nil
	}
	for i := range v.members {
		if v.members[i].name == name {
			return v.members[i].value
		}
	}

	return nil
}

// textOf returns the text of the named member, or "" if there is none or it is not text.
func (v *value) textOf(name string) string {
	if m := v.get(name); m != nil && m.kind == textValue {
		return m.text
	}
	return ""
}

// pathStep matches a step of a path: the name of a field, or a key or index in brackets.
var pathStep = regexp.MustCompile(`[^.\[]+|\[[^\]]*\]?`)

// lineOf returns the line of the field at path, such as "spec.ports[1].port", or of the innermost
// enclosing value that exists.
func (v *value) lineOf(path string) int {
	line := v.line
	for _, step := range pathStep.FindAllString(path, -1) {
		if v = v.index(strings.Trim(step, "[]")); v == nil {
			break
		}
		line = v.line
	}

	return line
}

// index returns an item of a list by its number, or a member of an object by its name.
func (v *value) index(key string) *value {
	if v.kind == objectValue {
		return v.get(key)
	}
	if i, err := strconv.Atoi(key); err == nil && 0 <= i && i < len(v.items) {
		return v.items[i]
	}
	return nil
}

// finish checks the names of an object's members, and adds up the size of v.
func (v *value) finish() error {
	var seen map[string]struct{}
	if len(v.members) > manyMembers {
		seen = make(map[string]struct{}, len(v.members))
	}
	for i, m := range v.members {
		_, twice := seen[m.name]
		if seen != nil {
			seen[m.name] = struct{}{}
		} else {
			twice = slices.ContainsFunc(v.members[:i],
				func(o member) bool { return o.name == m.name })
		}

		if twice {
			return syntaxErrorf(m.value.line, "field %s is given twice", show(m.name))
		}
	}

	v.size = nodeSize + len(v.text)
	for _, i := range v.items {
		v.size += i.size
	}
	for _, m := range v.members {
		v.size += len(m.name) + m.value.size
	}
	v.size = min(v.size, sizeCap)
	return nil
}
