// Package must has calls whose errors end a test.
package must

import (
	"net/netip"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"
)

// OK returns a function that returns v. The test ends there if err is not nil, or if v is a
// *dataplane.Result and says that later work failed:
//
//	table := must.OK(servicemodel.Resolve(nil, state))(t)
func OK[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		require.NoError(t, err)

		// Package dataplane imports packages whose tests import this one.
		if r := reflect.Indirect(reflect.ValueOf(v)); r.Kind() == reflect.Struct {
			if u := r.FieldByName("Unsettled"); u.IsValid() {
				require.Nil(t, u.Interface(), "later work")
			}
		}

		return v
	}
}

// Addrs parses addresses. It panics if one of them is wrong.
func Addrs(texts ...string) []netip.Addr { return parsed(texts, netip.MustParseAddr) }

// Prefixes parses prefixes. It panics if one of them is wrong.
func Prefixes(texts ...string) []netip.Prefix { return parsed(texts, netip.MustParsePrefix) }

func parsed[T any](texts []string, parse func(string) T) (l []T) {
	for _, text := range texts {
		l = append(l, parse(text))
	}
	return l
}
