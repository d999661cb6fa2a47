package manifest

import (
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/kernlb/kernlb/servicemodel/kube"
)

// Problem is something wrong in a manifest.
type Problem struct {
	File     string // as it was given to [Loader.Read]
	Line     int    // from 1; of the field, or of what should hold it
	Document int    // from 1; empty documents do not count; 0 if it is about the whole file
	Severity kube.Severity

	Object string // such as "Service default/web"; empty if the document holds no object
	Field  string // its path in the object; empty if it is about the whole object
	Value  string // the offending value
	Reason string
}

// Error returns "web.yaml:14: document 2: Service default/web: spec.ports[1].port: 0: reason".
func (p Problem) Error() string {
	var b strings.Builder
	b.WriteString(p.File + ":" + strconv.Itoa(p.Line))
	if p.Document > 0 {
		b.WriteString(": document " + strconv.Itoa(p.Document))
	}
	for _, s := range []string{p.Object, p.Field, p.Value, p.Reason} {
		if s != "" {
			b.WriteString(": " + s)
		}
	}
	return b.String()
}

// Result is what was read.
type Result struct {
	Objects  int            // objects the tracker was given
	Skipped  map[string]int // objects of other kinds, by kind, such as "apps/v1 Deployment"
	Problems []Problem      // in the order of the files
}

// Err returns the problems of severity error, joined; nil if there is none. What was read is then
// not what was meant and should not be used at all.
func (r Result) Err() error {
	var errs []error
	for _, p := range r.Problems {
		if p.Severity == kube.Error {
			errs = append(errs, p)
		}
	}
	return errors.Join(errs...)
}

// Warnings returns the other problems.
func (r Result) Warnings() []Problem {
	return slices.DeleteFunc(slices.Clone(r.Problems), func(p Problem) bool {
		return p.Severity == kube.Error
	})
}

// SkippedKinds returns a line such as "2 apps/v1 Deployment, 1 v1 Namespace"; empty if nothing was
// skipped.
func (r Result) SkippedKinds() string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(r.Skipped)) {
		parts = append(parts, strconv.Itoa(r.Skipped[k])+" "+k)
	}
	return strings.Join(parts, ", ")
}

// show makes a value fit for a message on a terminal.
func show(s string) string { return shorten(s, 64) }

func shorten(s string, most int) string {
	tail := ""
	if len(s) > most {
		s, tail = strings.ToValidUTF8(s[:most], ""), "…"
	}
	if strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		s = strconv.Quote(s)
	}
	return s + tail
}
