package page

import (
	"testing"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/health"
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/internal/test/proportion"
	"github.com/kernlb/kernlb/servicemodel"
)

// The page and the health of an engine follow a change at a cost that does not grow with the number
// of services.
func TestEventsCostTheSameBesideManyServices(t *testing.T) {
	proportion.Calls(t, proportion.Cost{Bytes: 1000}, func(n int) func() {
		states := [2]servicemodel.State{proportion.Many(n, func(*servicemodel.Service) {})}
		states[1] = proportion.Replace(states[0])
		e := dataplane.New(memory.New(nil), nil)
		p, h, at := New(e, nil), health.NewProxy(e, nil), 1
		t.Cleanup(func() { p.Close() })
		return func() {
			at = 1 - at
			if _, err := e.Apply(t.Context(), states[at]); err != nil {
				t.Error(err)
			}
			h.Healthy()
			e.Status()
		}
	})
}
