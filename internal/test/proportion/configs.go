package proportion

import (
	"iter"
	"reflect"
	"slices"
	"testing"
)

// Configs yields a configuration for each field of values, in which only that field is set, with
// the field's name. Each field must be set, or be in without.
func Configs[C any](t *testing.T, values C, without ...string) iter.Seq2[string, C] {
	t.Helper()
	return func(yield func(string, C) bool) {
		all := reflect.ValueOf(values)
		for i := range all.NumField() {
			name := all.Type().Field(i).Name
			if slices.Contains(without, name) {
				continue
			}
			if all.Field(i).IsZero() {
				t.Errorf("no value for the field %s of %T", name, values)
				continue
			}

			var c C
			reflect.ValueOf(&c).Elem().Field(i).Set(all.Field(i))
			if !yield(name, c) {
				return
			}
		}
	}
}
