// Package dataplanetest proves with real packets that a backend does what kernlb promises.
//
// Every backend must pass the suite unchanged. Call [Run] in a test:
//
//	func TestConformance(t *testing.T) { dataplanetest.Run(t, scenario.Backend{Open: open}) }
//
// The suite builds networks out of namespaces (pods on the node, pods on another node, clients
// outside, the node itself), applies states through an engine on the backend, and sends TCP
// connections, UDP datagrams and SCTP chunks from everywhere to everywhere. It compares the fate of
// each packet with the right one, which comes from two sides:
//
//   - each [scenario.Scenario] says it in so many words. Most of them are made from a matrix that
//     restates the behaviour of kube-proxy's nftables mode, row by row; see behaviour.md beside
//     this file.
//   - the oracle, [servicemodel.Table.Decide], says what the resolved table means. It is asked
//     about every packet of every scenario, and about the packets of random states ([Random]).
//
// It needs Linux, and root or an unprivileged user namespace; otherwise its tests skip themselves
// and say why.
//
// [RunScenarios] runs other scenarios in the same networks. Tests that need no kernel use package
// memory instead.
package dataplanetest
