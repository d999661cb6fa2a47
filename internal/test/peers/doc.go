// Peers runs kube-proxy 1.36.3 and kernlb side by side: the same Services and EndpointSlices, each
// in a network of namespaces of its own.
//
//	peers measure  [-n 100,1000,10000] [-endpoints 10] [-o figures.json] [PEER …]
//	peers plot     [-from figures.json] [-o DIRECTORY]
//	peers compare  [-v] [PEER …]
//	peers handover [PEER …]
//	peers vm       [-kernel 6.1] measure|compare|handover …
//
// measure measures syncs of a mix of services or of services of one size, first packets and
// established connections, and plot draws these figures. compare shows the packets whose outcome
// differs from kernlb's. handover cleans up after kube-proxy, and shows every difference from the
// state before. vm runs measure, compare or handover in a virtual machine, which has IPVS.
//
// The peers are kube-proxy's own proxiers, taken from k8s.io/kubernetes as a library and run by
// their own commands (kube-proxy-nftables, kube-proxy-iptables with iptables-nft,
// kube-proxy-iptables-legacy, kube-proxy-ipvs), and kernlb's backends (kernlb-nftables,
// kernlb-iptables, kernlb-ipvs). Each runs as a process of its own inside the namespace of the
// node. The time of a sync begins with the first delivered object and ends when the proxier returns
// from its sync. It includes neither the decoding of objects nor kube-proxy's rate limit.
// For syncs, kube-proxy runs for IPv4 only, while kernlb always serves both families.
//
// kube-proxy 1.37.2 is in a separate program, peers-1.37 (v137), because a program has only one
// version of a module. That program is in the directory of this one, and measure starts it as
// kube-proxy-1.37-nftables.
//
// Peers is a module of its own: kernlb does not depend on Kubernetes. "make peers" builds it, and
// runs measure, compare and handover. It needs root and the programs nft, iptables, ipset and
// conntrack. README.md has figures.
package main
