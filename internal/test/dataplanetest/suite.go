package dataplanetest

import (
	"slices"
	"testing"
	"time"

	"github.com/kernlb/kernlb/dataplane/dataplanetest/scenario"
	"github.com/kernlb/kernlb/servicemodel"
)

// story is a test that needs more than packets and outcomes. It has a network of its own.
type story struct {
	name string
	run  func(t *testing.T, w *world)
}

var stories = []story{
	{"each endpoint gets its share", fairShares},
	{"each endpoint gets its share by weight", weightedShares},
	{"each of many clients is refused at once", eachRefused},
	{"a client stays with its endpoint", clientStays},
	{"a client is given another endpoint when its own leaves", clientMoves},
	{"a client is forgotten after the timeout", clientForgotten},
	{"affinity ends with the setting", affinityEnds},
	{"cleaning up leaves nothing", cleansUp},
	{"connections survive what does not concern them", connectionsSurvive},

	// clients that must not be sent back to an endpoint that was removed
	{"a client does not go back to a silent endpoint that is gone", silentEndpointGoes(false)},
	{"a client does not go back to a silent endpoint that is gone, flows being kept",
		silentEndpointGoes(true)},
	{"no new connection reaches an endpoint that was taken away, affinity of a second",
		neverBack(time.Second, inTurn)},
	{"no new connection reaches an endpoint that was taken away, affinity of two seconds",
		neverBack(2*time.Second, inTurn)},
	{"no new connection reaches an endpoint that was taken away, affinity of an hour",
		neverBack(time.Hour, inTurn)},
	{"no new connection reaches an endpoint that was taken away, beside commits",
		neverBack(time.Hour, besideCommits)},

	// clients of one prefix, and whole services: a backend without this affinity refuses it, by
	// field, and is not tested with it
	{"clients of a prefix stay together", prefixStays},
	{"clients of a prefix inside and outside have endpoints of their own", prefixInsideAndOutside},
	{"a client has one endpoint at all ports of a service", wholeServiceStays(0, 0)},
	{"clients of a prefix have one endpoint at all ports of a service", wholeServiceStays(24, 64)},
	{"a client moves only at ports without its endpoint", partlyServing},
	{"a client has one endpoint at all ports of a range", rangeStays(keptPorts)},
	{"a client has one endpoint at all ports of a range, which go to one port",
		rangeStays(onePort)},
	{"a client has one endpoint at 10,000 ports, also when its endpoint is replaced", callsStay},

	// sources that services give: a backend without this feature refuses it
	{"masqueraded connections come from the address that the service gives", givesSource},

	// schedulers: a backend must refuse by name a scheduler that it lacks
	{"each endpoint gets its share from each scheduler", schedulerShares},
	{"a hash of the client keeps it on its endpoint", hashedClientsStay},
	{"near endpoints get what they can take, and others the rest", nearShares},
	{"an endpoint that becomes ready grows to its share", growingShares},
	{"a change of the scheduler disturbs no connection", schedulerChanges},

	// existing flows while services change
	{"a UDP client is answered throughout while its endpoint is replaced", endpointReplaced},
	{"a UDP client loses no more than what was on its way when its endpoint dies", endpointDies},
	{"a UDP client that was refused is answered when the first endpoint comes", firstEndpoint},
	{"a UDP client follows a node port that moves", nodePortMoves},
	{"a UDP client stays with an endpoint that terminates until it ends", endpointTerminates},
	{"connections to an endpoint that goes are left, drained or cut",
		connectionsOfEndpointThatGoes},
	{"endpoints are replaced all the time, connections being left",
		rolling(servicemodel.ConnectionPolicy{})},
	{"endpoints are replaced all the time, connections being drained", rolling(drained)},
	{"endpoints are replaced all the time, connections being cut",
		rolling(servicemodel.ConnectionPolicy{Mode: servicemodel.CutConnections})},
}

// kernelStories are about objects in the kernel that outlive a process, and flows that exist
// without the backend.
var kernelStories = []story{
	{"a new process adopts what the old one left", adopts},
	{"a new process lets endpoints grow on", growsOn},
	{"a flush is noticed and repaired", repairsFlush},
	{"no new connection reaches an endpoint that another process took away",
		neverBack(time.Hour, byProcesses)},
	{"a new program cleans up what the last one left", cleansAfterRestart},

	// programs that share an instance
	{"programs that share an instance leave each other alone", sharedInstance},
	{"programs change parts of an instance at once", programsAtOnce},
	{"a part comes while the last one goes", lastPartGoes},
	{"flows of a part end with it", sharedFlows},

	{"a UDP client that sent before there was a service reaches it", serviceComes},
	{"a UDP client of a service that goes is not held by it", serviceGoes},
}

// Run runs the whole suite on a backend.
func Run(t *testing.T, under Backend) {
	RunScenarios(t, under, Scenarios()...)
	told := stories
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
// its name. Every packet must have the outcome that the scenario wants and the oracle predicts.
// Package netnstest builds the networks. Every host serves on ports [scenario.PortA] and
// [scenario.PortB], over TCP, UDP and SCTP, and answers as "pod1/8080".
func RunScenarios(t *testing.T, under Backend, scenarios ...scenario.Scenario) {
	under.need(t)
	ws := newWorlds(t, under)
	for _, s := range scenarios {
		if !under.asks(&s) {
			continue
		}
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			ws.run(t, &s)
		})
	}
}
