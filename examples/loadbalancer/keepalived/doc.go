// Package keepalived converts the virtual servers of a configuration of keepalived, its LVS half,
// into a file of the load balancer.
//
// Everything in the file is understood, or named with its line: what would be balanced otherwise
// than by keepalived is an error (virtual servers by firewall mark, forwarding by GUE, what nobody
// knows), what is not done is a warning (checks that run programs, notifications, everything of
// VRRP). A configuration that has an error is not converted at all.
//
// # What differs
//
//   - keepalived counts a server as up until it has failed; here its first check decides, unless
//     it is in use already. So alpha is always on.
//   - keepalived removes a server that failed, and its connections hang; here they go on
//     (connections: leave), as with inhibit_on_failure.
//   - A connection's timeout (connect_timeout) bounds the whole check here.
//   - One failure more than retry says makes a server fail, one success brings it back: fall is
//     retry + 1, rise is 1.
//   - Several URLs of a checker are several checks, asked side by side.
//   - Source addresses are never masqueraded, as with LVS.
//   - Names are made of addresses: virtual_server 192.0.2.1 80 is 192.0.2.1-80-tcp.
//
// It reads one file: include, conditions (@) and parameters ($) are errors. keepalived can resolve
// them itself.
package keepalived
