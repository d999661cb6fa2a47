package counters

import (
	"testing"

	"github.com/kernlb/kernlb/dataplane/netnstest"
)

func TestMain(m *testing.M) { netnstest.Main(m) }
