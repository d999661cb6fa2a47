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

// jsonErrors are the errors in a JSON value, with the path of each field.
type jsonErrors []jsonError

type jsonError struct {
	path string
	err  error
}

// Error returns one line for each field, such as "ports[0].port: number 70000: must be a number
// from 0 to 65535".
func (l jsonErrors) Error() string {
	var lines []string
	for _, e := range l {
		lines = append(lines, strings.TrimPrefix(e.path+": "+e.err.Error(), ": "))
	}
	return strings.Join(lines, "\n")
}

// Unwrap returns the errors without their paths.
func (l jsonErrors) Unwrap() (all []error) {
	for _, e := range l {
		all = append(all, e.err)
	}
	return all
}

// at puts an element of a list, or a field, before each path.
func (l jsonErrors) at(path string) jsonErrors {
	for i, e := range l {
		switch {
		case e.path == "" || strings.HasPrefix(e.path, "["):
			l[i].path = path + e.path
		default:
			l[i].path = path + "." + e.path
		}
	}
	return l
}

// problemsOf reads a JSON value again, field by field, and returns the reasons why it cannot be a
// t.
func problemsOf(data []byte, t reflect.Type) (l jsonErrors) {
	value := reflect.New(t)
	switch value.Interface().(type) {
	case json.Unmarshaler, encoding.TextUnmarshaler:
		return asProblems(json.Unmarshal(data, value.Interface()))
	}

	switch t.Kind() {
	case reflect.Pointer:
		return problemsOf(data, t.Elem())
	case reflect.Struct:
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(data, &fields); err != nil {
			return asProblems(err)
		}
		for _, name := range slices.Sorted(maps.Keys(fields)) {
			if of := jsonField(t, name); of == nil {
				l = append(l, jsonError{err: fmt.Errorf("unknown field %q", name)})
			} else {
				l = append(l, problemsOf(fields[name], of).at(name)...)
			}
		}
	case reflect.Slice:
		var elements []json.RawMessage
		if err := json.Unmarshal(data, &elements); err != nil {
			return asProblems(err)
		}
		for i, e := range elements {
			l = append(l, problemsOf(e, t.Elem()).at(fmt.Sprintf("[%d]", i))...)
		}
	default:
		return asProblems(json.Unmarshal(data, value.Interface()))
	}

	return l
}

// asProblems returns the problems in an error, or the error as a single problem.
func asProblems(err error) jsonErrors {
	var l jsonErrors
	var wrong *json.UnmarshalTypeError
	switch {
	case err == nil || errors.As(err, &l):
		return l
	case errors.As(err, &wrong):
		return jsonErrors{{err: fmt.Errorf("%s: must be %s", wrong.Value, jsonWord(wrong.Type))}}
	}

	return jsonErrors{{err: err}}
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
