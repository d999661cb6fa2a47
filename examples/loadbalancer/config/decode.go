package config

import (
	"cmp"
	"encoding"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/kernlb/kernlb/examples/command/suggest"
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

// TwiceError says that the file defines an object at two places.
type TwiceError struct {
	What string // such as 203.0.113.10:80/tcp
	Path string // the first place
	Line int
}

// Error returns "203.0.113.10:80/tcp is already defined at line 4".
func (e *TwiceError) Error() string {
	return fmt.Sprintf("%s is already defined at line %d", e.What, e.Line)
}

// twice notes that the field at a path defines an object that the field at first already defines.
func (s *source) twice(path, what, first string) {
	s.fail(path, "%w", &TwiceError{what, first, s.at(first, nil).Line})
}

// source knows the lines of a file's fields, and collects their faults.
type source struct {
	file  string
	lines map[string]int // by path
	errs  []*FieldError

	services map[string]int // their numbers, by name
	left     int            // how many more values may be decoded
}

// maxAliased is the maximum number of values that aliases may add to the file. Without it, lists of
// aliases to lists of aliases would fill memory.
const maxAliased = 1 << 16

// maxErrors is the maximum number of errors reported for a file.
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
	for p := path; ; p = p[:max(0, strings.LastIndexAny(p, ".["))] {
		if line, ok := s.lines[p]; ok || p == "" {
			return &FieldError{s.file, line, path, err}
		}
	}
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
	_, isText := v.Addr().Interface().(encoding.TextUnmarshaler)
	switch {
	case isText: // whatever its kind
		s.scalar(n, v, path)
	case v.Kind() == reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		s.decode(n, v.Elem(), path)
	case v.Kind() == reflect.Struct:
		s.fields(n, v, path)
	case v.Kind() == reflect.Slice:
		s.elements(n, v, path)
	default:
		s.scalar(n, v, path)
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
		all := names(v.Type())
		field := slices.Index(all, key.Value)
		switch {
		case key.Value == "" || field < 0:
			all = slices.DeleteFunc(all, func(name string) bool { return name == "" })
			if k, ok := suggest.Nearest(key.Value, all); ok {
				s.fail(at, "no such field; did you mean %s?", k)
			} else {
				s.fail(at, "no such field: there are %s", strings.Join(all, ", "))
			}
		case seen[key.Value]:
			s.fail(at, "is defined here a second time")
		default:
			seen[key.Value] = true
			s.decode(n.Content[i+1], v.Field(field), at)
		}
	}
}

// Name returns the name of a field in YAML; it is empty if the field is not in files.
func Name(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
	return name
}

// names returns the name of each field of a type.
func names(t reflect.Type) []string {
	out := make([]string, t.NumField())
	for i := range out {
		out[i] = Name(t.Field(i))
	}
	return out
}

// expected says how values are written whose types read themselves.
var expected = map[reflect.Type]string{
	reflect.TypeFor[netip.Addr](): "must be an IP address, without a port or prefix length",
	reflect.TypeFor[Addr]():       "must be an IP address, without a port or prefix length",
	reflect.TypeFor[netip.AddrPort](): "must be an IP address and the number of a port, such as " +
		"10.0.0.1:80 or [fd00::1]:80; names are not resolved",
	reflect.TypeFor[netip.Prefix](): "must be a CIDR, such as 10.0.0.0/24, or 10.0.0.1/32 for " +
		"one address",
	reflect.TypeFor[Bytes](): "must be text, or 0x and pairs of hexadecimal digits",
}

// scalar reads a single value.
func (s *source) scalar(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind != yaml.ScalarNode {
		s.fail(path, "must be a single value")
		return
	}

	var err error
	wrong := func(format string, args ...any) {
		s.fail(path, "%q: "+format, append([]any{n.Value}, args...)...)
	}
	switch into := v.Addr().Interface().(type) {
	case encoding.TextUnmarshaler:
		if into.UnmarshalText([]byte(n.Value)) != nil {
			wrong("%s", expected[v.Type()])
		}
	case *time.Duration:
		if *into, err = time.ParseDuration(n.Value); err != nil || *into < 0 {
			wrong("must be a time such as 500ms or 2s")
		}
	case *string:
		*into = n.Value
	case *bool:
		if *into, err = strconv.ParseBool(n.Value); err != nil {
			wrong("must be true or false")
		}
	case *int:
		if i, err := strconv.ParseInt(n.Value, 10, 32); err != nil || i < 0 {
			wrong("must be a number from 0 to %d", math.MaxInt32)
		} else {
			*into = int(i)
		}
	case *uint16:
		if u, err := strconv.ParseUint(n.Value, 10, 16); err != nil {
			what, least := "number", 0
			if strings.HasSuffix(strings.ToLower(path), "port") {
				what, least = "port", 1
			}
			wrong("must be a %s from %d to %d", what, least, math.MaxUint16)
		} else {
			*into = uint16(u)
		}
	default:
		wrong("cannot be a %s", v.Type())
	}
}
