//go:build sharecheck

package servicemodel

import (
	"fmt"
	"hash/maphash"
	"sync"
	"weak"
)

// lent has the hash of each object that a table lent out, by its weak pointer.
var (
	lent sync.Map
	seed = maphash.MakeSeed()
)

// lend returns an object that the caller of the package must not modify. If a caller has modified
// the object since it was lent before, lend panics: only tests are built with this tag.
func lend[T any](object *T) *T {
	if object == nil {
		return nil
	}
	is := maphash.String(seed, fmt.Sprintf("%+v", *object))
	was, known := lent.LoadOrStore(weak.Make(object), is)
	if known && was != is {
		panic(fmt.Sprintf("a caller modified a shared %T, which is now %+v", object, *object))
	}
	return object
}

func lendAll[T any](objects []*T) []*T {
	for _, o := range objects {
		lend(o)
	}
	return objects
}
