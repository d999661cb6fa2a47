package ipvs

import (
	"testing"

	"github.com/kernlb/kernlb/internal/test/dataplanetest"
)

// The kernel says which program undoes the backend's work.
func TestWhoUndoesItIsTold(t *testing.T) {
	t.Parallel()
	dataplanetest.Witnessed(t, onFake().Backend,
		"nft flush ruleset", "nft delete table ip "+DefaultTable)
}
