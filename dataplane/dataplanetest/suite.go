package dataplanetest

import (
	"slices"
	"testing"

	"github.com/kernlb/kernlb/dataplane/netnstest"
)

// Run runs the whole suite on a backend.
func Run(t *testing.T, under Backend) {
	under.need(t)
	netnstest.Require(t)
	ws := newWorlds(t, under)
	for _, s := range Scenarios() {
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			s.run(t, ws)
		})
	}
	for _, s := range slices.Concat(stories, affinityStories, flowStories) {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			tellStory(t, under, s)
		})
	}
}

// tellStory runs a story in a network of its own.
func tellStory(t *testing.T, under Backend, s story) {
	w, err := newWorld(t.Context(), under, Options{})
	if err != nil {
		t.Fatalf("build the network: %v", err)
	}
	defer w.close()
	s.run(t, w)
}

// Scenarios returns all scenarios of the suite.
func Scenarios() []Scenario {
	return slices.Concat(matrix(), endpointScenarios(), addressScenarios(), sourceScenarios(),
		changeScenarios())
}
