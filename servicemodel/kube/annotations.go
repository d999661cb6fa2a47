package kube

import (
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/kernlb/kernlb/internal/spell"
	"github.com/kernlb/kernlb/servicemodel"
)

// annotations are those that count, by the part of their name behind the prefix, in the order in
// which they are reported.
var annotations = []struct {
	name string
	set  func(s *servicemodel.Service, value string) error
}{
	{"connections", func(s *servicemodel.Service, value string) (err error) {
		s.Connections, err = servicemodel.ParseConnectionPolicy(value)
		return err
	}},
	{"forwarding", func(s *servicemodel.Service, value string) (err error) {
		s.Forwarding, err = servicemodel.ParseForwarding(value)
		return err
	}},
	{"masquerade", func(s *servicemodel.Service, value string) error {
		p, err := servicemodel.ParseMasqueradePolicy(value)
		s.Masquerade = servicemodel.MasqueradeAt(p)
		return err
	}},
	{"scheduler", func(s *servicemodel.Service, value string) (err error) {
		s.Scheduler, err = servicemodel.ParseScheduler(value)
		return err
	}},
}

// annotate takes into s, which may be nil, what its annotations say.
func annotate(s *servicemodel.Service, values map[string]string, prefix string, r *report) {
	if s == nil || prefix == "" {
		return
	}
	for _, a := range annotations {
		key := prefix + "/" + a.name
		value, ok := values[key]
		if !ok {
			continue
		}
		if err := a.set(s, value); err != nil {
			r.skip("metadata.annotations["+key+"]", value, "%v", err)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(values)) {
		name, ours := strings.CutPrefix(key, prefix+"/")
		if !ours || slices.Contains(slices.Collect(annotationNames()), name) {
			continue
		}
		hint := ""
		if meant, ok := spell.Nearest(name, annotationNames()); ok {
			hint = "; did you mean " + prefix + "/" + meant + "?"
		}
		r.warn("metadata.annotations["+shorten(key, maxShown)+"]", values[key],
			"means nothing%s", hint)
	}
}

// annotationNames yields the names of annotations behind the prefix.
func annotationNames() iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, a := range annotations {
			if !yield(a.name) {
				return
			}
		}
	}
}
