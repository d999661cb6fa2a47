package config

import (
	"encoding"
	"fmt"
	"reflect"
	"time"

	"go.yaml.in/yaml/v3"
)

// Encode returns the text of a file, for [Parse]. It leaves out fields with their zero value.
func (f *File) Encode() ([]byte, error) { return yaml.Marshal(encode(reflect.ValueOf(*f))) }

// encode makes a node of a value, or nil of a zero value.
func encode(v reflect.Value) *yaml.Node {
	if v.Kind() == reflect.Pointer && !v.IsNil() { // a zero is written if nil means another value
		return &yaml.Node{Kind: yaml.ScalarNode, Value: fmt.Sprint(v.Elem())}
	}
	if v.IsZero() {
		return nil
	}
	n := &yaml.Node{Kind: yaml.ScalarNode}
	switch value := v.Interface().(type) {
	case time.Duration:
		n.Value = value.String()
		return n
	case encoding.TextMarshaler:
		text, _ := value.MarshalText() // of addresses, which cannot fail
		n.SetString(string(text))
		return n
	}
	switch v.Kind() {
	case reflect.Struct:
		encodeFields(v, n)
	case reflect.Slice:
		encodeElements(v, n)
	case reflect.String:
		n.SetString(v.String())
	default:
		n.Value = fmt.Sprint(v)
	}
	return n
}

func encodeFields(v reflect.Value, n *yaml.Node) {
	n.Kind = yaml.MappingNode
	for i := range v.NumField() {
		name := v.Type().Field(i).Tag.Get("yaml")
		if name == "" {
			continue
		}
		if value := encode(v.Field(i)); value != nil {
			n.Content = append(n.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: name}, value)
		}
	}
}

func encodeElements(v reflect.Value, n *yaml.Node) {
	n.Kind = yaml.SequenceNode
	for i := range v.Len() {
		e := encode(v.Index(i))
		if e == nil {
			continue
		}
		n.Content = append(n.Content, e)
		if e.Kind == yaml.ScalarNode {
			n.Style = yaml.FlowStyle // a short list stands in its line
		}
	}
}
