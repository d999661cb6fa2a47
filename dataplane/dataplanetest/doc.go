// Package dataplanetest tests with real packets that a backend does what kernlb promises.
//
// Every backend must pass the suite unchanged. Call [Run] in a test:
//
//	func TestConformance(t *testing.T) { dataplanetest.Run(t, scenario.Backend{Open: open}) }
//
// The suite builds networks from namespaces (pods on the node, pods on another node, clients
// outside, the node itself), applies states through an engine on the backend, and sends TCP
// connections, UDP datagrams and SCTP chunks from everywhere to everywhere. The expected fate of
// each packet comes from two sources:
//
//   - each [scenario.Scenario] states it. Most scenarios come from a matrix that restates the
//     behaviour of kube-proxy's nftables mode, row by row; see behaviour.md in this directory.
//   - the oracle, [servicemodel.Table.Decide], defines the meaning of the resolved table. The suite
//     consults it for every packet of every scenario, and for the packets of random states
//     ([Random]).
//
// It needs Linux, and root or an unprivileged user namespace; otherwise its tests are skipped with
// a reason.
//
// [RunScenarios] runs other scenarios in the same networks. Tests that need no kernel use package
// memory instead.
package dataplanetest
