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

// Result counts the objects that a loader read, and lists the problems.
type Result struct {
	Objects  int            // objects given to the tracker
	Skipped  map[string]int // objects of other kinds, by kind, such as "apps/v1 Deployment"
	Problems []kube.Problem // in the order of the files
}

// Err returns all problems except warnings, joined, or nil if there are none. If there are errors,
// the objects may not be what their author intended, and should not be used.
func (r Result) Err() error {
	var errs []error
	for _, p := range r.Problems {
		if !p.Warning {
			errs = append(errs, p)
		}
	}

	return errors.Join(errs...)
}

// Warnings returns the problems that are warnings.
func (r Result) Warnings() []kube.Problem {
	return slices.DeleteFunc(slices.Clone(r.Problems), func(p kube.Problem) bool {
		return !p.Warning
	})
}

// SkippedKinds returns a line such as "2 apps/v1 Deployment, 1 v1 Namespace", or "" if nothing was
// skipped.
func (r Result) SkippedKinds() string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(r.Skipped)) {
		parts = append(parts, strconv.Itoa(r.Skipped[k])+" "+k)
	}
	return strings.Join(parts, ", ")
}

// show makes a value safe to print on a terminal.
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
