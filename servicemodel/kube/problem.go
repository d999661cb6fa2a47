package kube

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kernlb/kernlb/servicemodel"
)

// Severity says what became of an object with a problem.
type Severity uint8

const (
	// Error says that the object is invalid and keeps out of the state.
	Error Severity = iota
	// Warning says that the field, or an object of no use, was skipped. The rest is used.
	Warning
)

// String returns "error" or "warning".
func (s Severity) String() string {
	if s == Warning {
		return "warning"
	}
	return "error"
}

// Problem is something wrong with one field of one object. Its Object is the kind and the name,
// such as "Service default/web", its Field the path in the object, such as
// "spec.ports[1].nodePort".
//
// Values are shortened, and quoted where they hold unprintable characters, so that a Problem can be
// printed on a terminal whatever the object holds.
type Problem struct {
	Severity Severity
	*servicemodel.FieldError
}

// Unwrap returns the [servicemodel.FieldError], for errors.As.
func (p Problem) Unwrap() error { return p.FieldError }

// objectKey is the identity of a tracked object.
type objectKey struct {
	kind string
	name servicemodel.Name // no namespace for kinds that have none
}

func (k objectKey) compare(o objectKey) int {
	return cmp.Or(cmp.Compare(k.kind, o.kind), k.name.Compare(o.name))
}

// String returns "Service default/web", or "Node a" for kinds without namespaces.
func (k objectKey) String() string {
	s := k.kind + " "
	if k.name.Namespace != "" {
		s += shorten(k.name.Namespace, validation.DNS1123SubdomainMaxLength) + "/"
	}
	return s + shorten(k.name.Name, validation.DNS1123SubdomainMaxLength)
}

// report collects the problems of one object.
type report struct {
	object   string
	strict   bool
	problems []Problem
}

func newReport(k objectKey, strict bool) *report {
	return &report{object: k.String(), strict: strict}
}

func (r *report) add(s Severity, field, value, format string, args ...any) {
	r.problems = append(r.problems, Problem{s, &servicemodel.FieldError{
		Object: r.object, Field: field, Value: shorten(value, maxShown),
		Reason: fmt.Sprintf(format, args...),
	}})
}

// invalid reports what makes the object invalid.
func (r *report) invalid(field, value, format string, args ...any) {
	r.add(Error, field, value, format, args...)
}

// warn reports what is skipped and may be.
func (r *report) warn(field, value, format string, args ...any) {
	r.add(Warning, field, value, format, args...)
}

// skip reports what is skipped although the API server would have refused it.
func (r *report) skip(field, value, format string, args ...any) {
	if r.strict {
		r.add(Error, field, value, format, args...)
		return
	}
	r.add(Warning, field, value, format, args...)
}

// failed reports whether the object is invalid.
func (r *report) failed() bool {
	return slices.ContainsFunc(r.problems, func(p Problem) bool { return p.Severity == Error })
}

// maxShown is how many bytes of a value a problem shows.
const maxShown = 64

// shorten cuts s at a length and quotes it where it is not plain text.
func shorten(s string, most int) string {
	tail := ""
	if len(s) > most {
		s, tail = strings.ToValidUTF8(s[:most], ""), "…"
	}
	if strings.ContainsFunc(s, func(r rune) bool {
		return !unicode.IsPrint(r) || r == unicode.ReplacementChar
	}) {
		s = strconv.Quote(s)
	}
	return s + tail
}
