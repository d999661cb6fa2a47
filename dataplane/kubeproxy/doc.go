// Package kubeproxy deletes the objects that kube-proxy left in the kernel, in each of its Linux
// modes, and nothing else. It supports the versions 1.28 to 1.36 of Kubernetes. [Find] lists the
// objects, [Cleanup] deletes them, and [Running] reports whether a kube-proxy is running.
//
// # Handing over
//
// Add the new rules before you delete the old rules, so that services work all the time:
//
//  1. Stop kube-proxy; otherwise it recreates everything. [Running] says whether a kube-proxy is
//     still running.
//  2. Apply the services with a backend of kernlb. Both sets of rules are then in place, and one of
//     them balances each new connection.
//  3. Call [Cleanup].
//
// Established connections continue, because conntrack keeps their destination, whichever program
// wrote the rules. In the ipvs mode, they end with their virtual servers, because IPVS itself
// forwards their packets. But kernlb's ipvs backend can take over the virtual servers with their
// connections (ipvs.Config.TakeOver).
//
// kernlb's iptables backend takes over kube-proxy's chains if it uses the same prefix, which is its
// default. These chains then belong to kernlb and are kept; Cleanup deletes only chains that kernlb
// does not use.
//
// # The objects of kube-proxy
//
//   - iptables mode: the chains KUBE-SERVICES, KUBE-EXTERNAL-SERVICES, KUBE-NODEPORTS,
//     KUBE-POSTROUTING, KUBE-MARK-MASQ, KUBE-FORWARD, KUBE-PROXY-FIREWALL and KUBE-PROXY-CANARY, in
//     each table where kube-proxy creates them, and the chains of services and endpoints:
//     KUBE-SVC-, KUBE-SVL-, KUBE-EXT-, KUBE-FW- and KUBE-SEP- with a hash; the rules with
//     kube-proxy's comments that jump to them from base chains; and the counters
//     ct_state_invalid_dropped_pkts and localhost_nps_accepted_pkts of nfnetlink_acct.
//   - nftables mode: the tables ip kube-proxy and ip6 kube-proxy.
//   - ipvs mode: further chains, the IP sets KUBE-… and KUBE-6-…, the device kube-ipvs0, and the
//     virtual servers that the sets list, or that are at an address of the device.
//
// The package examines both families and all modes, because kube-proxy may have run in several
// modes on a node.
//
// # Objects that stay
//
// Tables and base chains of iptables are kept, because no single program owns them. So are all
// other chains: the kubelet's (KUBE-FIREWALL, which kube-proxy also creates and never deletes,
// KUBE-KUBELET-CANARY, KUBE-IPTABLES-HINT, KUBE-MARK-DROP), chains of network policies
// (KUBE-ROUTER-…, KUBE-NWPLCY-…), and virtual servers and IP sets of other programs. [Plan.Left]
// lists objects that are kept for a reason other than their name:
//
//   - chains to which rules of other programs jump, and the chains to which these chains jump: the
//     CNI plugin portmap can be configured to use KUBE-MARK-MASQ
//   - KUBE-FIREWALL, if chains of kube-proxy are deleted beside it
//   - KUBE-MARK-MASQ and KUBE-POSTROUTING, if there is a KUBE-MARK-DROP: a kubelet before 1.27
//     creates all three
//   - chains that kernlb has taken over, and a device kube-ipvs0 with addresses of kernlb
//   - chains in legacy tables of iptables, which the package only reads; see [ErrLegacy]
//   - sysctls that kube-proxy has set, such as net.ipv4.conf.all.route_localnet and
//     net.ipv4.vs.conntrack, because their earlier values are not known
//
// The package needs Linux 5.10 or newer, with nf_tables.
package kubeproxy
