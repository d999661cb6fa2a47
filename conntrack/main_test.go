package conntrack_test

import (
	"testing"

	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/test/must"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

func ok[T any](v T, err error) func(testing.TB) T { return must.OK(v, err) }
