package dataplanetest

import (
	"slices"
	"testing"

	"github.com/kernlb/kernlb/dataplane/netnstest"
)

// kernelStories are about objects in the kernel that outlive a process.
var kernelStories = slices.Concat(restartStories, partStories, kernelFlowStories)

// Run runs the whole suite on a backend.
func Run(t *testing.T, under Backend) {
	RunScenarios(t, under, Scenarios()...)
	told := slices.Concat(stories, affinityStories, affinityKindStories, schedulerStories,
		flowStories)
	if !under.Proxy {
		told = slices.Concat(told, kernelStories, floodStories)
	}
	for _, s := range told {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			s.run(t, under.network(t))
		})
	}
}

// RunScenarios runs scenarios of the suite or of a test on a backend, each in a parallel subtest of
// its name. Every packet must meet the scenario's want, and also the oracle. Package netnstest
// makes the networks. Every host serves on ports [PortA] and [PortB], over TCP, UDP and SCTP, and
// answers as "pod1/8080".
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

// Scenarios returns all scenarios of the suite.
func Scenarios() []Scenario { return slices.Concat(matrix(), written()) }
