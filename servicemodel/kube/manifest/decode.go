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

// fieldProblem is something wrong with one field.
type fieldProblem struct {
	line                 int
	field, given, reason string
}

// decoder fills the Go types of the Kubernetes API by their json tags, and collects values that do
// not fit.
type decoder struct {
	names    map[reflect.Type]map[string][]int // the index of each field, by its name in JSON
	problems []fieldProblem                    // at most maxProblems
	more     int                               // problems beyond those
}

// maxProblems is how many problems of one object are reported.
const maxProblems = 100

// decode fills *into, which is a struct, from v. It returns problems of values that do not fit, and
// how many more there are.
func (d *decoder) decode(v *value, into any) (problems []fieldProblem, more int) {
	d.problems, d.more = nil, 0
	d.fill(v, reflect.ValueOf(into).Elem(), nil)
	return d.problems, d.more
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
	given := v.text
	if v.kind == listValue || v.kind == objectValue || v.kind == nullValue {
		given = ""
	}
	d.add(fieldProblem{v.line, at.String(), given, fmt.Sprintf(format, args...)})
}

func (d *decoder) add(p fieldProblem) {
	if len(d.problems) == maxProblems {
		d.more++
		return
	}
	d.problems = append(d.problems, p)
}

// fill sets dst from v. As in JSON, null changes nothing.
func (d *decoder) fill(v *value, dst reflect.Value, at *path) {
	if v.kind == nullValue {
		return
	}
	if dst.Kind() == reflect.Pointer {
		p := reflect.New(dst.Type().Elem())
		d.fill(v, p.Elem(), at)
		dst.Set(p)
		return
	}
	if u, ok := dst.Addr().Interface().(json.Unmarshaler); ok {
		d.unmarshal(v, u, at)
		return
	}
	want, ok := kindOf[dst.Kind()]
	if !ok { // the kinds that the loader reads have no such field
		d.wrong(v, at, "cannot be read")
		return
	}
	if d.want(v, want, at) {
		d.set(v, dst, at)
	}
}

// kindOf has, for each kind of Go field, the kind of value that sets it.
var kindOf = map[reflect.Kind]kind{
	reflect.Struct: objectValue, reflect.Map: objectValue, reflect.Slice: listValue,
	reflect.String: textValue, reflect.Bool: boolValue,
	reflect.Int32: numberValue, reflect.Int64: numberValue,
}

// set sets dst from v, whose kind fits.
func (d *decoder) set(v *value, dst reflect.Value, at *path) {
	switch dst.Kind() {
	case reflect.Struct:
		d.object(v, dst, at)
	case reflect.Map:
		d.entries(v, dst, at)
	case reflect.Slice:
		dst.Set(reflect.MakeSlice(dst.Type(), len(v.items), len(v.items)))
		to := path{up: at, step: '#'}
		for to.item = range v.items {
			d.fill(v.items[to.item], dst.Index(to.item), &to)
		}
	case reflect.String:
		dst.SetString(v.text)
	case reflect.Bool:
		dst.SetBool(v.text == "true")
	default:
		d.integer(v, dst, at)
	}
}

// want reports whether v is of kind k. If it is not, want adds a problem.
func (d *decoder) want(v *value, k kind, at *path) bool {
	if v.kind == k {
		return true
	}
	hint := ""
	if k == textValue && (v.kind == numberValue || v.kind == boolValue) {
		hint = "; write it in quotes"
	}
	d.wrong(v, at, "is %s, must be %s%s", v.kind, k, hint)
	return false
}

func (d *decoder) integer(v *value, dst reflect.Value, at *path) {
	bits := dst.Type().Bits()
	n, err := strconv.ParseInt(v.text, 10, bits)
	if err != nil {
		d.wrong(v, at, "must be an integer of %d bits", bits)
		return
	}
	dst.SetInt(n)
}

func (d *decoder) object(v *value, dst reflect.Value, up *path) {
	names := d.fields(dst.Type())
	at := path{up: up, step: '.'}
	for _, m := range v.members {
		at.name = m.name
		index, ok := names[m.name]
		if !ok {
			hint := ""
			for name := range names {
				if strings.EqualFold(name, m.name) {
					hint = ", did you mean " + name + "?"
				}
			}
			d.add(fieldProblem{m.value.line, at.String(), "", "unknown field" + hint})
			continue
		}
		d.fill(m.value, dst.FieldByIndex(index), &at)
	}
}

func (d *decoder) entries(v *value, dst reflect.Value, at *path) {
	t := dst.Type()
	dst.Set(reflect.MakeMapWithSize(t, len(v.members)))
	to := path{up: at, step: '['}
	for _, m := range v.members {
		to.name = m.name
		e := reflect.New(t.Elem()).Elem()
		d.fill(m.value, e, &to)
		dst.SetMapIndex(reflect.ValueOf(m.name).Convert(t.Key()), e)
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
