package servicemodel_test

import (
	"encoding"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	sm "github.com/kernlb/kernlb/servicemodel"
)

// jsonForms are types whose JSON has other fields than the Go type, as docs/json.md lists them.
var jsonForms = map[reflect.Type]reflect.Type{
	reflect.TypeFor[sm.State](): reflect.TypeFor[struct {
		Node      sm.Node                   `json:"node"`
		Services  []sm.Service              `json:"services"`
		Endpoints map[sm.Name][]sm.Endpoint `json:"endpoints"`
	}](),
	reflect.TypeFor[sm.Table](): reflect.TypeFor[struct {
		sm.Contents
		HealthChecks []sm.HealthCheck `json:"healthChecks"`
	}](),
	reflect.TypeFor[time.Duration](): reflect.TypeFor[string](),
}

// jsonFields returns the fields of an object in JSON, or nil for any other value.
func jsonFields(t reflect.Type) map[string]reflect.Type {
	if t.Kind() != reflect.Struct || isText(t) {
		return nil
	}
	fields := map[string]reflect.Type{}
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Type == reflect.TypeFor[time.Duration]() {
			name = strings.ToLower(f.Name[:1]) + f.Name[1:]
		}
		if name != "" && name != "-" {
			fields[name] = f.Type
		}
	}

	return fields
}

func isText(t reflect.Type) bool {
	p := reflect.PointerTo(t)
	return p.Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) &&
		!p.Implements(reflect.TypeFor[json.Unmarshaler]())
}

// wrongValue returns a value that a t can never be.
func wrongValue(r *rand.Rand, t reflect.Type) any {
	text, number, list, object := any("x"), any(-1.5), any([]int{}), any(map[string]int{})
	wrong := []any{text, number, list, object}
	switch k := t.Kind(); {
	case k == reflect.String || isText(t):
		wrong = []any{true, number, list, object}
	case k == reflect.Slice:
		wrong[2] = false
	case k == reflect.Struct, k == reflect.Map:
		wrong[3] = true
	case k != reflect.Bool && t.Bits() < 64:
		wrong = append(wrong, uint64(1)<<t.Bits())
	}
	return wrong[r.IntN(len(wrong))]
}

// wrongJSON returns a value of type t with wrong values in it, and their paths. Without a wrong
// value in it, it is itself wrong. alone allows only one.
func wrongJSON(r *rand.Rand, t reflect.Type, path string, alone bool) (v any, paths []string) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if form, ok := jsonForms[t]; ok {
		t = form
	}
	fields := jsonFields(t)
	switch {
	case r.IntN(5) == 0:
	case len(fields) > 0:
		object := map[string]any{}
		for name, of := range fields { // in a random order
			if len(paths) == 0 || !alone && r.IntN(4) == 0 {
				at := strings.TrimPrefix(path+"."+name, ".")
				object[name], paths = add(paths)(wrongJSON(r, of, at, alone))
			}
		}
		return object, paths
	case t.Kind() == reflect.Map:
		object := map[string]any{}
		for i := range 1 + r.IntN(3) {
			key := fmt.Sprintf("default/web-%d", i)
			if object[key] = []any{}; len(paths) == 0 || !alone {
				object[key], paths = add(paths)(wrongJSON(r, t.Elem(), path+"["+key+"]", alone))
			}
		}
		return object, paths
	case t.Kind() == reflect.Slice:
		list := make([]any, 1+r.IntN(3)) // null is valid
		for i := range list {
			if len(paths) == 0 && i == len(list)-1 || !alone && r.IntN(2) == 0 {
				list[i], paths = add(paths)(wrongJSON(r, t.Elem(), fmt.Sprintf("%s[%d]", path, i),
					alone))
			}
		}
		return list, paths
	}

	return wrongValue(r, t), []string{path}
}

func add(paths []string) func(any, []string) (any, []string) {
	return func(v any, more []string) (any, []string) { return v, append(paths, more...) }
}

// A wrong kind of value in JSON is reported with the path of its field, whatever the type, the
// field and the depth, alone or together with others.
func TestEachWrongFieldOfJSONIsNamed(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	named := map[string]bool{}
	for _, typ := range []reflect.Type{reflect.TypeFor[sm.State](), reflect.TypeFor[sm.Service](),
		reflect.TypeFor[sm.ServicePort](), reflect.TypeFor[sm.Endpoint](),
		reflect.TypeFor[sm.EndpointPort](), reflect.TypeFor[sm.Node](),
		reflect.TypeFor[sm.NodePortAddresses](), reflect.TypeFor[sm.PodDetector](),
		reflect.TypeFor[sm.Masquerade](), reflect.TypeFor[sm.LoadBalancerIP](),
		reflect.TypeFor[sm.ClientRule](), reflect.TypeFor[sm.HealthCheck](),
		reflect.TypeFor[sm.Rules](), reflect.TypeFor[sm.Frontend](), reflect.TypeFor[sm.Pool](),
		reflect.TypeFor[sm.Slot](), reflect.TypeFor[sm.PortName](), reflect.TypeFor[sm.Table](),
		reflect.TypeFor[sm.AddrChange](), reflect.TypeFor[sm.ChangeSet]()} {
		for i := range 400 {
			v, paths := wrongJSON(r, typ, "", i%2 == 0)
			text := ok(json.Marshal(v))(t)
			err := json.Unmarshal(text, reflect.New(typ).Interface())
			require.Error(t, err, "%s", text)
			var fields []string
			for _, e := range err.(interface{ Unwrap() []error }).Unwrap() {
				fields = append(fields, e.(*sm.FieldError).Field)
			}
			require.ElementsMatch(t, paths, fields, "%v: %s: %v", typ, text, err)
			for _, p := range paths {
				named[typ.Name()+"."+p] = true
			}
		}
		for name := range jsonFields(typ) {
			require.Contains(t, named, typ.Name()+"."+name)
		}
	}
}
