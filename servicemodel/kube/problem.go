package kube

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"unicode"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kernlb/kernlb/servicemodel"
)

// Problem is a fault in one field of one object. Its Object is the kind and the name, such as
// "Service default/web". Its Field is the path in the object, such as "spec.ports[1].nodePort".
//
// Values are shortened, and quoted if they contain unprintable characters, so that every Problem is
// safe to print on a terminal.
type Problem struct {
	// Warning says that the tracker skipped the field, or a useless object, and used the rest.
	// Otherwise the object is invalid and left out of the state.
	Warning bool
	// File, Line and Document say where package manifest found the problem. Lines and documents are
	// counted from 1. Document is 0 if the problem concerns the whole file.
	File           string
	Line, Document int
	*servicemodel.FieldError
}

// Severity returns "error" or "warning".
func (p Problem) Severity() string {
	if p.Warning {
		return "warning"
	}
	return "error"
}

// Error returns "web.yaml:14: document 2: Service default/web: spec.ports[1].port: 0: reason". If
// the object is in no file, the text begins with the object.
func (p Problem) Error() string {
	var parts []string
	if p.File != "" {
		parts = append(parts, p.File+":"+strconv.Itoa(p.Line))
	}
	if p.Document > 0 {
		parts = append(parts, "document "+strconv.Itoa(p.Document))
	}
	for _, s := range []string{p.Object, p.Field, p.Value, p.Reason} {
		if s != "" {
			parts = append(parts, s)
		}
	}

	return strings.Join(parts, ": ")
}

// Unwrap returns the [servicemodel.FieldError], for errors.As.
func (p Problem) Unwrap() error { return p.FieldError }

// objectKey is the identity of a tracked object.
type objectKey struct {
	kind string
	name servicemodel.Name // no namespace for kinds without namespaces
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

// maxProblems limits the reported problems of one object, so that a large object full of faults
// does not fill memory.
const maxProblems = 100

// report collects the problems of one object.
type report struct {
	object   string
	strict   bool
	problems []Problem           // at most maxProblems
	more     int                 // the number of further problems
	wrong    map[string]struct{} // the fields with an error
}

func newReport(k objectKey, strict bool) *report {
	return &report{object: k.String(), strict: strict, wrong: map[string]struct{}{}}
}

func (r *report) add(warning bool, field, value, format string, args ...any) {
	if !warning {
		r.wrong[field] = struct{}{}
	}
	if len(r.problems) == maxProblems {
		r.more++
		return
	}

	r.problems = append(r.problems, Problem{Warning: warning, FieldError: &servicemodel.FieldError{
		Object: r.object, Field: field, Value: shorten(value, maxShown),
		Reason: fmt.Sprintf(format, args...),
	}})
}

// invalid reports a fault that makes the object invalid.
func (r *report) invalid(field, value, format string, args ...any) {
	r.add(false, field, value, format, args...)
}

// warn reports a value that the tracker skips, as kube-proxy does.
func (r *report) warn(field, value, format string, args ...any) {
	r.add(true, field, value, format, args...)
}

// skip reports a value that the tracker skips although an API server would have refused it.
func (r *report) skip(field, value, format string, args ...any) {
	r.add(!r.strict, field, value, format, args...)
}

func (r *report) failed() bool { return len(r.wrong) > 0 }

// mentions reports whether an error about a field was reported.
func (r *report) mentions(field string) bool {
	_, ok := r.wrong[field]
	return ok
}

// all returns the problems. If there are too many, the last problem states the number of omitted
// problems. This last problem is an error if the object is invalid, because the omitted problems
// may include an error.
func (r *report) all() []Problem {
	if r.more == 0 {
		return r.problems
	}
	return append(r.problems, Problem{Warning: !r.failed(), FieldError: &servicemodel.FieldError{
		Object: r.object, Reason: fmt.Sprintf("%d more problems", r.more)}})
}

// maxShown limits the bytes of a value that a problem shows.
const maxShown = 64

// shorten truncates s and quotes it if it is not plain text.
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
