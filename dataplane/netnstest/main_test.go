package netnstest

import (
	"testing"

	"github.com/kernlb/kernlb/internal/test/must"
)

func TestMain(m *testing.M) { Main(runner{m}) }

// runner runs the tests, or the task of a test that needs its own process.
type runner struct{ m *testing.M }

func (r runner) Run() int {
	if code, ok := playRole(); ok {
		return code
	}
	return r.m.Run()
}

func ok[T any](v T, err error) func(testing.TB) T { return must.OK(v, err) }
