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
// failed. It also returns one for a backend that contains another one and does not say so: the
// optional interfaces of the inner one would be lost in silence. Embedded types are no problem,
// since their methods are those of the outer one.
func unusable(b backends.Backend) error {
	v := reflect.ValueOf(b)
	if b == nil || v.Kind() == reflect.Pointer && v.IsNil() {
		return errNoBackend
	}
	if _, wraps := b.(interface{ Unwrap() backends.Backend }); wraps {
		return nil
	}
	t := v.Type()
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return nil
	}
	for _, f := range reflect.VisibleFields(t) {
		inner := f.Type.Implements(reflect.TypeFor[backends.Backend]())
		if inner && (f.Type.Kind() == reflect.Interface || !f.Anonymous) {
			return fmt.Errorf("%s wraps the backend in its field %s, and needs a method "+
				"Unwrap() backends.Backend", t, f.Name)
		}
	}
	return nil
}
