package dataplanetest

import (
	"slices"
	"testing"

	"github.com/kernlb/kernlb/internal/netnstest"
)

// Run runs the whole suite on a backend.
func Run(t *testing.T, open Open) {
	netnstest.Require(t)
	ws := newWorlds(t, open)
	for _, s := range Scenarios() {
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			s.run(t, ws)
		})
	}
}

// Scenarios returns all scenarios of the suite.
func Scenarios() []Scenario {
	return slices.Concat(matrix(), endpointScenarios(), addressScenarios(), sourceScenarios(), changeScenarios())
}
