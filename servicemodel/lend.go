//go:build !sharecheck

package servicemodel

// lend returns an object that the caller of the package must not modify.
func lend[T any](object *T) *T { return object }

func lendAll[T any](objects []*T) []*T { return objects }
