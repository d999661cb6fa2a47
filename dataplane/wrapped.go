package dataplane

import (
	"errors"
	"fmt"
	"reflect"

	"github.com/kernlb/kernlb/dataplane/backends"
)

// errNoBackend says that an engine or parts have no backend.
var errNoBackend = errors.New("there is no backend")

// as returns the first T among b and the backends that it wraps.
func as[T any](b backends.Backend) (t T, ok bool) {
	for b != nil {
		if t, ok = b.(T); ok {
			return t, true
		}
		w, wraps := b.(interface{ Unwrap() backends.Backend })
		if !wraps {
			break
		}
		b = w.Unwrap()
	}

	return t, false
}

// unusable returns an error if b is nil, or a nil pointer such as the result of a constructor that
// failed. It also returns an error for a backend that contains another backend without an Unwrap
// method, because the optional interfaces of the inner backend would be lost silently. The backends
// that b wraps are checked in the same way.
func unusable(b backends.Backend) error {
	v := reflect.ValueOf(b)
	if b == nil || v.Kind() == reflect.Pointer && v.IsNil() {
		return errNoBackend
	}
	if w, says := b.(interface{ Unwrap() backends.Backend }); says {
		if inner := w.Unwrap(); inner != nil {
			return unusable(inner)
		}
		return nil
	}

	if field, hidden := hides(v); hidden {
		return fmt.Errorf("%T wraps the backend in its field %s, and needs a method "+
			"Unwrap() backends.Backend", b, field)
	}

	return nil
}

// hides returns a field of the struct v, or of the struct that v points to, if the field has a
// backend whose optional interfaces the struct lacks.
func hides(v reflect.Value) (field string, hidden bool) {
	if v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	if v.Kind() != reflect.Struct {
		return "", false
	}
	for i := range v.NumField() {
		f, value := v.Type().Field(i), v.Field(i)
		k := value.Kind()
		if !f.Type.Implements(reflect.TypeFor[backends.Backend]()) ||
			(k == reflect.Interface || k == reflect.Pointer) && value.IsNil() {
			continue
		}

		if k == reflect.Interface || !f.Anonymous {
			return f.Name, true
		}
		if field, hidden = hides(value); hidden {
			return field, true
		}
	}

	return "", false
}
