package page_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/test/growth"
)

// The time of an answer grows with the services and with the length of the query.
//
//nolint:paralleltest // it measures
func TestCostsAreLinear(t *testing.T) {
	get := func(path string) func(*shown) {
		return func(s *shown) {
			code, body := s.get(path)
			require.Equal(t, http.StatusOK, code, body)
		}
	}

	t.Run("the list of services", func(t *testing.T) {
		growth.Linear(t, 1<<12, func(n int) *shown { return holding(t, many(n, 1), nil) },
			get("/?q=app+10.96.0.7"))
	})

	t.Run("a service with many endpoints", func(t *testing.T) {
		growth.Linear(t, 1<<12, func(n int) *shown { return holding(t, many(1, n), nil) },
			get("/service.json?name=team-0/app-0"))
	})

	t.Run("a long search", func(t *testing.T) {
		s := holding(t, many(10, 1), nil)
		growth.Linear(t, 1<<14, func(n int) string { return "/?q=" + strings.Repeat("a+", n) },
			func(path string) { get(path)(s) })
	})
}
