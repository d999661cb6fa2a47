package docs_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/counters"
	"github.com/kernlb/kernlb/dataplane/diagnose"
	"github.com/kernlb/kernlb/dataplane/livetrace"
	"github.com/kernlb/kernlb/servicemodel"
)

// Every field that is written as JSON is in json.md.
func TestFieldsOfJSONAreDocumented(t *testing.T) {
	t.Parallel()
	text := source(t, "../../../docs/json.md")
	fields := 0
	seen := map[reflect.Type]bool{}
	var walk func(reflect.Type)
	walk = func(v reflect.Type) {
		for v.Kind() == reflect.Pointer || v.Kind() == reflect.Slice {
			v = v.Elem()
		}
		if v.Kind() != reflect.Struct || seen[v] || !strings.Contains(v.PkgPath(), "kernlb") {
			return
		}
		seen[v] = true
		for i := range v.NumField() {
			f := v.Field(i)
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if name == "" || name == "-" {
				continue
			}
			fields++
			require.Contains(t, text, "`"+name+"`", "%v.%s", v, f.Name)
			walk(f.Type)
		}
	}

	for _, v := range []any{servicemodel.Node{}, servicemodel.Service{}, servicemodel.Endpoint{},
		servicemodel.Rules{}, servicemodel.Frontend{}, servicemodel.Pool{},
		servicemodel.HealthCheck{}, servicemodel.Conflict{},
		servicemodel.Change[servicemodel.Rules]{}, servicemodel.AddrChange{},
		servicemodel.Decision{}, servicemodel.Trace{}, backends.Observation{}, dataplane.Totals{},
		livetrace.Trace{}, diagnose.Report{}, counters.Values{}} {
		walk(reflect.TypeOf(v))
	}

	require.Greater(t, fields, 80)
}
