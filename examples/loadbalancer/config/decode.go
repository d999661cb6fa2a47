package config

import (
	"cmp"
	"encoding"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// FieldError is a fault at a place in a file.
type FieldError struct {
	File string
	Line int    // 0 if it is not known
	Path string // such as services[0].backends[1].weight; empty for the whole file
	Err  error
}

// Error returns "lb.yaml:7: services[0].port: must be a number".
func (e *FieldError) Error() string {
	s := e.File
	if e.Line > 0 {
		s += ":" + strconv.Itoa(e.Line)
	}
	if e.Path != "" {
		s += ": " + e.Path
	}
	return s + ": " + e.Err.Error()
}

// Unwrap returns the reason.
func (e *FieldError) Unwrap() error { return e.Err }

// source knows the lines of a file's fields, and collects their faults.
type source struct {
	file  string
	lines map[string]int // by path
	errs  []*FieldError

	services map[string]int // their numbers, by name
	left     int            // how many more values may be decoded
}

// maxAliased is how many values aliases may add to the file. Lists of aliases to lists of aliases
// would fill memory.
const maxAliased = 1 << 16

// maxErrors is how many errors of a file are reported.
const maxErrors = 100

// joined returns all faults, in the order of the lines.
func (s *source) joined() error {
	slices.SortStableFunc(s.errs, func(a, b *FieldError) int { return cmp.Compare(a.Line, b.Line) })
	out := make([]error, min(len(s.errs), maxErrors))
	for i := range out {
		out[i] = s.errs[i]
	}
	if more := len(s.errs) - len(out); more > 0 {
		out = append(out, &FieldError{s.file, 0, "", fmt.Errorf("%d more errors", more)})
	}
	return errors.Join(out...)
}

// fail notes a fault of a field. If the file does not have the field, the fault gets the line of
// the nearest field around it.
func (s *source) fail(path, format string, args ...any) {
	s.errs = append(s.errs, s.at(path, fmt.Errorf(format, args...)))
}

// at returns an error with the line of a field.
func (s *source) at(path string, err error) *FieldError {
	line := 0
	for p := path; ; p = p[:strings.LastIndexAny(p, ".[")] {
		if l, ok := s.lines[p]; ok {
			line = l
			break
		}
		if !strings.ContainsAny(p, ".[") {
			break
		}
	}
	return &FieldError{s.file, line, path, err}
}

// decode reads a node into a value. path is the path of the value, for errors.
func (s *source) decode(n *yaml.Node, v reflect.Value, path string) {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if s.left--; s.left < 0 {
		if s.left == -1 {
			s.fail("", "aliases make it more than %d values longer than it is", maxAliased)
		}
		return
	}
	if n.Tag == "!!null" {
		return
	}
	switch {
	case v.CanAddr() && isText(v.Addr()):
		s.text(n, v, path)
	case v.Kind() == reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		s.decode(n, v.Elem(), path)
	case v.Kind() == reflect.Struct:
		s.fields(n, v, path)
	case v.Kind() == reflect.Slice:
		s.elements(n, v, path)
	default:
		if n.Kind != yaml.ScalarNode {
			s.fail(path, "must be a single value")
		} else if err := scalar(n, v); err != nil {
			s.fail(path, "%q: %w", n.Value, err)
		}
	}
}

func isText(v reflect.Value) bool { _, ok := v.Interface().(encoding.TextUnmarshaler); return ok }

// text reads a value that has an UnmarshalText.
func (s *source) text(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind != yaml.ScalarNode {
		s.fail(path, "must be a single value")
		return
	}
	into := v.Addr().Interface().(encoding.TextUnmarshaler)
	if err := into.UnmarshalText([]byte(n.Value)); err != nil {
		s.fail(path, "%w", err)
	}
}

// elements reads a list.
func (s *source) elements(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind != yaml.SequenceNode {
		s.fail(path, "must be a list")
		return
	}
	v.Set(reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content)))
	for i, e := range n.Content {
		at := fmt.Sprintf("%s[%d]", path, i)
		s.lines[at] = e.Line
		s.decode(e, v.Index(i), at)
	}
}

// fields reads a mapping.
func (s *source) fields(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind != yaml.MappingNode {
		s.fail(path, "must be a mapping of fields to values")
		return
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		at := strings.TrimPrefix(path+"."+key.Value, ".")
		s.lines[at] = key.Line
		field := fieldOf(v, key.Value)
		switch {
		case !field.IsValid():
			s.fail(at, "no such field: there are %s", strings.Join(names(v.Type()), ", "))
		case seen[key.Value]:
			s.fail(at, "stands here a second time")
		default:
			seen[key.Value] = true
			s.decode(n.Content[i+1], field, at)
		}
	}
}

// Name returns the name of a field in YAML; it is empty if the field is not in files.
func Name(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
	return name
}

// fieldOf returns the field with a name in YAML; the zero Value if there is none.
func fieldOf(v reflect.Value, name string) reflect.Value {
	for i := range v.NumField() {
		if n := Name(v.Type().Field(i)); n != "" && n == name {
			return v.Field(i)
		}
	}
	return reflect.Value{}
}

// names returns the names of the fields of a type.
func names(t reflect.Type) (out []string) {
	for i := range t.NumField() {
		if name := Name(t.Field(i)); name != "" {
			out = append(out, name)
		}
	}
	return out
}

// scalar reads a single value.
func scalar(n *yaml.Node, v reflect.Value) error {
	if v.Type() == reflect.TypeFor[time.Duration]() {
		d, err := time.ParseDuration(n.Value)
		if err != nil || d < 0 {
			return errors.New("must be a time such as 500ms or 2s")
		}
		v.SetInt(int64(d))
		return nil
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(n.Value)
	case reflect.Bool:
		b, err := strconv.ParseBool(n.Value)
		if err != nil {
			return errors.New("must be true or false")
		}
		v.SetBool(b)
	case reflect.Int:
		i, err := strconv.ParseInt(n.Value, 10, 32)
		if err != nil || i < 0 {
			return fmt.Errorf("must be a number from 0 to %d", math.MaxInt32)
		}
		v.SetInt(i)
	case reflect.Uint16:
		u, err := strconv.ParseUint(n.Value, 10, 16)
		if err != nil {
			return fmt.Errorf("must be a number from 0 to %d", math.MaxUint16)
		}
		v.SetUint(u)
	default:
		return fmt.Errorf("cannot be a %s", v.Type())
	}
	return nil
}
