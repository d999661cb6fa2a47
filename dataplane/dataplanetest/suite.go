package dataplanetest

import (
	"testing"

	"github.com/kernlb/kernlb/internal/test/dataplanetest"
)

// Ports on which every host serves every protocol. A server's name is its host's and the port:
// "pod1/8080".
const (
	PortA = dataplanetest.PortA
	PortB = dataplanetest.PortB
)

// The sources that a server may see ([Want].Masquerade).
const (
	OwnSource  = dataplanetest.OwnSource  // the client's own address
	NodeSource = dataplanetest.NodeSource // an address of the node
	AnySource  = dataplanetest.AnySource  // either
)

type (
	// Backend is a backend under test.
	Backend = dataplanetest.Backend
	// Scenario is one story: states that are applied one after the other, and packets after each.
	Scenario = dataplanetest.Scenario
	// Step is a state, and the fate of packets once it is applied.
	Step = dataplanetest.Step
	// Check is one question: packets from here to there.
	Check = dataplanetest.Check
	// Want is the fate that a packet must have.
	Want = dataplanetest.Want
	// Options shape the network of a scenario.
	Options = dataplanetest.Options
	// RandomOptions tunes [Random].
	RandomOptions = dataplanetest.RandomOptions
)

// Run runs the whole suite on a backend.
func Run(t *testing.T, under Backend) { dataplanetest.Run(t, under) }

// RunScenarios runs scenarios on a backend, each in a parallel subtest of its name. Every packet
// must meet the scenario's want, and also the oracle. Package netnstest makes the networks. Every
// host serves on ports [PortA] and [PortB], over TCP, UDP and SCTP, and answers as "pod1/8080".
func RunScenarios(t *testing.T, under Backend, scenarios ...Scenario) {
	dataplanetest.RunScenarios(t, under, scenarios...)
}

// Random applies random states, one random change after the other, and sends random packets. It
// compares the fate of each packet with the oracle, and with the words of its trace. If they
// differ, it makes the state as small as it can while they still differ, and reports that state.
func Random(t *testing.T, under Backend, o RandomOptions) { dataplanetest.Random(t, under, o) }
