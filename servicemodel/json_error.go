package servicemodel

import (
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// jsonProblems reads a JSON value again, field by field, and returns the reasons why it cannot be a
// t. Each problem has the path of its field in the value, and no object.
func jsonProblems(data []byte, t reflect.Type) (l []*FieldError) {
	value := reflect.New(t)
	switch value.Interface().(type) {
	case json.Unmarshaler, encoding.TextUnmarshaler:
		return readJSON(data, value.Interface())
	}

	switch t.Kind() {
	case reflect.Pointer:
		return jsonProblems(data, t.Elem())
	case reflect.Struct:
		var fields map[string]json.RawMessage
		l = readJSON(data, &fields)
		for _, name := range slices.Sorted(maps.Keys(fields)) {
			l = append(l, within(plain(name), fieldProblems(fields[name], t, name))...)
		}
	case reflect.Map:
		var entries map[string]json.RawMessage
		l = readJSON(data, &entries)
		for _, key := range slices.Sorted(maps.Keys(entries)) {
			text, _ := json.Marshal(key) // text never fails
			found := append(jsonProblems(text, t.Key()), jsonProblems(entries[key], t.Elem())...)
			l = append(l, within("["+plain(key)+"]", found)...)
		}
	case reflect.Slice:
		var elements []json.RawMessage
		l = readJSON(data, &elements)
		for i, e := range elements {
			l = append(l, within(fmt.Sprintf("[%d]", i), jsonProblems(e, t.Elem()))...)
		}
	default:
		return readJSON(data, value.Interface())
	}

	return l
}

// fieldProblems returns the problems of a field of t.
func fieldProblems(data []byte, t reflect.Type, name string) []*FieldError {
	of := jsonField(t, name)
	if of == nil {
		return []*FieldError{{Reason: "unknown field"}}
	}
	return jsonProblems(data, of)
}

// within puts a field, or an element of a list or map, before the path of each problem.
func within(at string, l []*FieldError) []*FieldError {
	for _, p := range l {
		if p.Field != "" && p.Field[0] != '[' {
			p.Field = "." + p.Field
		}
		p.Field = at + p.Field
	}
	return l
}

// plain returns a name or key of the input, quoted if it is empty or has special characters.
func plain(s string) string {
	if q := quote(s); s == "" || q != `"`+s+`"` {
		return q
	}
	return s
}

// readJSON reads a value, and returns its problems.
func readJSON(data []byte, into any) (l []*FieldError) {
	err := json.Unmarshal(data, into)
	if err == nil {
		return nil
	}
	if joined, ok := errors.AsType[interface {
		error
		Unwrap() []error
	}](err); ok { // of a type that reads itself strictly
		for _, e := range joined.Unwrap() {
			if p, ok := errors.AsType[*FieldError](e); ok {
				l = append(l, p)
			}
		}
		return l
	}

	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return []*FieldError{{Value: wrong.Value, Reason: "must be " + jsonWord(wrong.Type)}}
	}
	value, reason := string(data), err.Error()
	if short, ok := strings.CutPrefix(reason, value+": "); ok {
		return []*FieldError{{Value: value, Reason: short}}
	}
	return []*FieldError{{Reason: reason}}
}

// jsonWord describes in words the values that a field accepts.
func jsonWord(t reflect.Type) string {
	text := reflect.TypeFor[encoding.TextUnmarshaler]()
	if t.Implements(text) || reflect.PointerTo(t).Implements(text) {
		return "a text"
	}
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a text"
	case reflect.Slice:
		return "a list"
	case reflect.Struct, reflect.Map:
		return "an object"
	case reflect.Uint8, reflect.Uint16, reflect.Uint32:
		return fmt.Sprintf("a number from 0 to %d", uint64(1)<<t.Bits()-1)
	}

	return "a number"
}

// jsonField returns the type of a field of a struct, or of a struct that it embeds.
func jsonField(t reflect.Type, name string) reflect.Type {
	for i := range t.NumField() {
		f := t.Field(i)
		tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous:
			embedded := f.Type
			if embedded.Kind() == reflect.Pointer {
				embedded = embedded.Elem()
			}
			if of := jsonField(embedded, name); of != nil {
				return of
			}
		case strings.EqualFold(tag, name) && tag != "-":
			return f.Type
		}
	}

	return nil
}
