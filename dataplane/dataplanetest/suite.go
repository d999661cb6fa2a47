package dataplanetest

import (
	"testing"

	"github.com/kernlb/kernlb/dataplane/dataplanetest/scenario"
	"github.com/kernlb/kernlb/internal/test/dataplanetest"
)

// Run tests a backend with the whole suite.
func Run(t *testing.T, under scenario.Backend) {
	dataplanetest.Run(t, dataplanetest.Backend(under))
}

// RunScenarios runs scenarios against a backend, each in a parallel subtest with the scenario's
// name. The fate of every packet must match both the scenario and the oracle. Package netnstest
// builds the networks. Every host serves on ports [scenario.PortA] and [scenario.PortB], over TCP,
// UDP and SCTP, and answers as "pod1/8080".
func RunScenarios(t *testing.T, under scenario.Backend, scenarios ...scenario.Scenario) {
	dataplanetest.RunScenarios(t, dataplanetest.Backend(under), scenarios...)
}

// Random applies random states, each a random change of the previous state, and sends random
// packets: 10,000 if packets is 0. It compares the fate of each packet with the oracle and with the
// text of the packet's trace. If they differ, it reduces the state while they still differ, and
// reports the smallest such state. KERNLB_RANDOM_PACKETS overrides the number of packets, and
// KERNLB_RANDOM_SEED is the first seed.
func Random(t *testing.T, under scenario.Backend, packets int) {
	dataplanetest.Random(t, dataplanetest.Backend(under), packets)
}
