package dataplanetest

import (
	"slices"
	"testing"

	"github.com/kernlb/kernlb/dataplane/netnstest"
)

// kernelStories are about what outlives a process or is no part of one.
var kernelStories = slices.Concat(restartStories, partStories, kernelFlowStories)

// Run runs the whole suite on a backend.
func Run(t *testing.T, under Backend) {
	RunScenarios(t, under, Scenarios()...)
	told := slices.Concat(stories, affinityStories, flowStories)
	if !under.Proxy {
		told = slices.Concat(told, kernelStories)
	}
	for _, s := range told {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			tellStory(t, under, s)
		})
	}
}

// RunScenarios runs scenarios on a backend, those of the suite or one's own, each in a parallel
// subtest of its name. Besides what a scenario wants, every packet must meet what the oracle says.
// The networks are those of package netnstest; every host serves on ports [PortA] and [PortB], over
// TCP, UDP and SCTP, and answers as "pod1/8080".
func RunScenarios(t *testing.T, under Backend, scenarios ...Scenario) {
	under.need(t)
	netnstest.Require(t)
	ws := newWorlds(t, under)
	for _, s := range scenarios {
		if !under.asks(&s) {
			continue
		}
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			s.run(t, ws)
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
		publishedScenarios(), changeScenarios())
}
