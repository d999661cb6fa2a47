package manifest

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// decoder fills the Go types of the Kubernetes API by their json tags, and reports values that do
// not fit.
type decoder struct {
	names  map[reflect.Type]map[string][]int // the index of each field, by its name in JSON
	report func(line int, field, given, reason string)
}

// path is the path to a value. Only problems need its text.
type path struct {
	up   *path // nil for the path of the object
	step byte  // '.' to a field, '[' to the value of a key, '#' to an item of a list
	name string
	item int
}

// String returns a text like "spec.ports[1].port".
func (p *path) String() string {
	if p == nil {
		return ""
	}
	switch p.step {
	case '[':
		return p.up.String() + "[" + show(p.name) + "]"
	case '#':
		return p.up.String() + "[" + strconv.Itoa(p.item) + "]"
	}

	return strings.TrimPrefix(p.up.String()+"."+show(p.name), ".")
}

func (d *decoder) wrong(v *value, at *path, format string, args ...any) {
	d.report(v.line, at.String(), v.text, fmt.Sprintf(format, args...))
}

// fill sets dst from v. As in JSON, null changes nothing.
func (d *decoder) fill(v *value, dst reflect.Value, at *path) {
	if v.kind == nullValue {
		return
	}
	if dst.Kind() == reflect.Pointer {
		dst.Set(reflect.New(dst.Type().Elem()))
		d.fill(v, dst.Elem(), at)
		return
	}

	if u, ok := dst.Addr().Interface().(json.Unmarshaler); ok {
		d.unmarshal(v, u, at)
		return
	}

	switch want, known := kindOf[dst.Kind()]; {
	case !known: // the kinds that the loader reads have no such field
		d.wrong(v, at, "cannot be read")
		return
	case want == textValue && (v.kind == numberValue || v.kind == boolValue):
		d.wrong(v, at, "is %s, must be %s; write it in quotes", v.kind, want)
		return
	case want != v.kind:
		d.wrong(v, at, "is %s, must be %s", v.kind, want)
		return
	}

	switch t := dst.Type(); dst.Kind() {
	case reflect.Struct:
		d.object(v, dst, at)
	case reflect.Map:
		dst.Set(reflect.MakeMapWithSize(t, len(v.members)))
		to := path{up: at, step: '['}
		for _, m := range v.members {
			to.name = m.name
			e := reflect.New(t.Elem()).Elem()
			d.fill(m.value, e, &to)
			dst.SetMapIndex(reflect.ValueOf(m.name).Convert(t.Key()), e)
		}
	case reflect.Slice:
		dst.Set(reflect.MakeSlice(t, len(v.items), len(v.items)))
		to := path{up: at, step: '#'}
		for to.item = range v.items {
			d.fill(v.items[to.item], dst.Index(to.item), &to)
		}
	case reflect.String:
		dst.SetString(v.text)
	case reflect.Bool:
		dst.SetBool(v.text == "true")
	default:
		n, err := strconv.ParseInt(v.text, 10, t.Bits())
		if err != nil {
			d.wrong(v, at, "must be an integer of %d bits", t.Bits())
		}
		dst.SetInt(n)
	}
}

// kindOf has, for each kind of Go field, the kind of value that sets the field.
var kindOf = map[reflect.Kind]kind{
	reflect.Struct: objectValue, reflect.Map: objectValue, reflect.Slice: listValue,
	reflect.String: textValue, reflect.Bool: boolValue,
	reflect.Int32: numberValue, reflect.Int64: numberValue,
}

func (d *decoder) object(v *value, dst reflect.Value, up *path) {
	names := d.fields(dst.Type())
	at := path{up: up, step: '.'}
	for _, m := range v.members {
		at.name = m.name
		if index, ok := names[m.name]; ok {
			d.fill(m.value, dst.FieldByIndex(index), &at)
			continue
		}

		reason := "unknown field"
		for name := range names {
			if strings.EqualFold(name, m.name) {
				reason = "unknown field, did you mean " + name + "?"
			}
		}

		d.report(m.value.line, at.String(), "", reason)
	}
}

// unmarshal fills a type that has its own JSON decoder. In JSON, all these types are scalars,
// except some that the tracker never reads.
func (d *decoder) unmarshal(v *value, u json.Unmarshaler, at *path) {
	switch u.(type) {
	case *metav1.FieldsV1, *resource.Quantity:
		return
	}

	text := []byte(v.text)
	switch v.kind {
	case textValue:
		text, _ = json.Marshal(v.text) // a string cannot fail
	case listValue, objectValue:
		d.wrong(v, at, "is %s, must be a single value", v.kind)
		return
	}

	if err := u.UnmarshalJSON(text); err != nil {
		d.wrong(v, at, "is not a valid %s", reflect.TypeOf(u).Elem().Name())
	}
}

// fields returns the fields of a struct, including those of embedded structs, by their names in
// JSON.
func (d *decoder) fields(t reflect.Type) map[string][]int {
	if names, ok := d.names[t]; ok {
		return names
	}
	names := map[string][]int{}
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name != "" && name != "-" && f.IsExported() {
			names[name] = f.Index
		}
	}

	d.names[t] = names
	return names
}
