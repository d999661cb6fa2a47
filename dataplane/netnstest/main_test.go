package netnstest

import "testing"

func TestMain(m *testing.M) { Main(runner{m}) }

// runner runs the tests, or the task of a test that needs a process of its own.
type runner struct{ m *testing.M }

func (r runner) Run() int {
	if code, ok := playRole(); ok {
		return code
	}
	return r.m.Run()
}
