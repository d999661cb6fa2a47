// Package must lets tests call functions whose errors end the test.
package must

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// OK returns a function that returns v. The test ends there if err is not nil:
//
//	table := must.OK(servicemodel.Resolve(nil, state))(t)
func OK[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		require.NoError(t, err)
		return v
	}
}
