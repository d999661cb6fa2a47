package ipvs

import (
	"testing"

	"github.com/kernlb/kernlb/dataplane/dataplanetest"
)

// The kernel tells who undoes what the backend has.
func TestWhoUndoesItIsTold(t *testing.T) {
	t.Parallel()
	dataplanetest.Witnessed(t, onFake().Backend,
		"nft flush ruleset", "nft delete table ip "+DefaultTable)
}
