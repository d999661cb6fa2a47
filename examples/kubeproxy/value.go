package main

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// fieldAt returns the field of a configuration by its path in the file, such as
// "iptables.masqueradeBit". It returns the zero Value if there is no such field.
func fieldAt(c *config, path string) reflect.Value {
	v := reflect.ValueOf(c).Elem()
	for name := range strings.SplitSeq(path, ".") {
		if v = fieldNamed(v, name); !v.IsValid() {
			break
		}
	}
	return v
}

// fieldNamed returns the field of a struct, or of a struct inlined in it, by its name in JSON.
func fieldNamed(v reflect.Value, name string) reflect.Value {
	if v.Kind() != reflect.Struct {
		return reflect.Value{}
	}
	for i := range v.NumField() {
		tag, inline := jsonName(v.Type().Field(i))
		if inline {
			if f := fieldNamed(v.Field(i), name); f.IsValid() {
				return f
			}
		} else if tag == name {
			return v.Field(i)
		}
	}
	return reflect.Value{}
}

// jsonName returns the name of a field in JSON, and whether the field is inlined.
func jsonName(f reflect.StructField) (name string, inline bool) {
	name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name, name == "" && strings.Contains(options, "inline")
}

// flagValue is a flag (pflag.Value) that sets fields of a configuration.
type flagValue struct {
	fields []reflect.Value
	given  bool // the flag occurred before: lists then grow
}

var duration = reflect.TypeFor[metav1.Duration]()

// target returns the value of a field, without the pointer that some have.
func (f *flagValue) target(i int) reflect.Value {
	v := f.fields[i]
	if v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem())) // defaults must not be shared
		v = v.Elem()
	}
	return v
}

// Set parses the value of the flag. An empty value leaves the default, as in kube-proxy.
func (f *flagValue) Set(text string) error {
	if text == "" {
		return nil
	}
	for i := range f.fields {
		v := f.target(i)
		if v.Kind() == reflect.Slice && !f.given {
			v.SetZero()
		}
		if err := setText(v, text); err != nil {
			return err
		}
	}
	f.given = true
	return nil
}

// setText parses a text into a field.
func setText(v reflect.Value, text string) error {
	var err error
	switch {
	case v.Type() == duration:
		var d time.Duration
		d, err = time.ParseDuration(text)
		v.Set(reflect.ValueOf(metav1.Duration{Duration: d}))
	case v.Kind() == reflect.String:
		v.SetString(text)
	case v.Kind() == reflect.Bool:
		var b bool
		b, err = strconv.ParseBool(text)
		v.SetBool(b)
	case v.Kind() == reflect.Int32:
		var n int64
		n, err = strconv.ParseInt(text, 0, 32)
		v.SetInt(n)
	case v.Kind() == reflect.Float32:
		var n float64
		n, err = strconv.ParseFloat(text, 32)
		v.SetFloat(n)
	case v.Kind() == reflect.Slice:
		v.Set(reflect.AppendSlice(v, reflect.ValueOf(strings.Split(text, ","))))
	case v.Kind() == reflect.Map:
		err = setGates(v.Interface().(map[string]bool), text)
	default:
		err = fmt.Errorf("no flag sets a %s", v.Type())
	}
	return err
}

// setGates adds feature gates from NAME=BOOL,…
func setGates(gates map[string]bool, text string) error {
	for pair := range strings.SplitSeq(text, ",") {
		if strings.TrimSpace(pair) == "" {
			continue
		}
		name, value, _ := strings.Cut(pair, "=")
		on, err := strconv.ParseBool(strings.TrimSpace(value))
		if err != nil {
			return fmt.Errorf("%q: want NAME=true or NAME=false", pair)
		}
		gates[strings.TrimSpace(name)] = on
	}
	return nil
}

// String returns the value of the first field.
func (f *flagValue) String() string {
	if len(f.fields) == 0 || !f.fields[0].IsValid() {
		return ""
	}
	v := reflect.Indirect(f.fields[0])
	switch {
	case !v.IsValid() || v.Kind() == reflect.Slice && v.Len() == 0:
		return ""
	case v.Type() == duration:
		return v.Interface().(metav1.Duration).Duration.String()
	case v.Kind() == reflect.Slice:
		return strings.Join(v.Interface().([]string), ",")
	}
	return fmt.Sprint(v.Interface())
}

// Type returns the name of the value in the help.
func (f *flagValue) Type() string {
	t := f.fields[0].Type()
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case t == duration:
		return "duration"
	case t.Kind() == reflect.Slice:
		return "strings"
	case t.Kind() == reflect.Map:
		return "mapStringBool"
	}
	return t.Kind().String()
}
