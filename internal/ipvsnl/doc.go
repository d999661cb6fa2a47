// Package ipvsnl is kernlb's client of IPVS, the load balancer of the Linux kernel, over generic
// netlink. It knows virtual services, their destinations, timeouts and statistics as in
// include/uapi/linux/ip_vs.h, except the sync daemon, flushing and zeroing. The caller decides
// which services should exist.
//
// # Reading and writing
//
// Desired and existing objects have different types: [Service] and [Destination] are desired
// objects, [ObservedService] and [ObservedDestination] embed them and add fields that only the
// kernel knows. The embedded values can be compared with ==. If they are equal, there is nothing to
// change.
//
// An [Op] is a change; [Client.Submit] sends many. IPVS has no transactions: each command succeeds
// or fails separately, and the error names the failed commands. Commands are pipelined: one system
// call carries hundreds of commands and one answer acknowledges all of them. So the time for many
// commands is the kernel's time for the work.
//
// [Client.Services] and [Client.Destinations] read; their lists are sorted by key.
//
// Package rawnl has the messages, attributes and sockets, and the type of the kernel's refusals.
// Package ipvsfake is an IPVS in memory that speaks the same messages, for tests on kernels without
// IPVS.
//
// # Errors of the kernel
//
// These are the errors of net/netfilter/ipvs/ip_vs_ctl.c in Linux 5.10 to 7.2, in the order of its
// checks:
//
//	any command
//	  EPERM         no CAP_NET_ADMIN in the initial user namespace
//	  ENOENT        the module was unloaded since Dial
//	about a service
//	  EINVAL        the service is not named, or not described in full
//	  EAFNOSUPPORT  an IPv6 service, and the kernel has no IPv6 or was booted without
//	  ESRCH         no such service, except for new service
//	new service
//	  EEXIST        there is one with the key
//	new, set service
//	  ENOENT        no such scheduler or persistence engine
//	  EINVAL        an IPv6 netmask that is not 1 to 128
//	  ENOMEM        also from the scheduler's tables, which sh, mh, lblc and lblcr have
//	new, set destination
//	  EINVAL        not named, or not described in full
//	  EINVAL        of another family than the service, and not by tunnel, or the sync daemon runs
//	  ERANGE        a weight above 2147483647, or a lower threshold above the upper
//	  EINVAL        an upper threshold above 2147483647 (recent stable kernels); gue without port
//	new destination
//	  EEXIST        the service has it
//	  EINVAL        no unicast address: multicast, broadcast, 0.0.0.0, ::, IPv6 link-local unless
//	                it is one of this machine
//	set, del destination
//	  ENOENT        the service has it not
//	set config
//	  EINVAL        a timeout above 2147483647 clock ticks
//	get service
//	  ESRCH         no such service
//
// Listing the destinations of a service that does not exist is no error: the list is empty.
package ipvsnl
