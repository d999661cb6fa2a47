// Package keepalived converts the LVS half of a configuration of keepalived, its virtual servers,
// into a file of the load balancer.
//
// Every statement is converted, or named with its line. It is an error if the result would balance
// differently from keepalived: virtual servers by firewall mark, forwarding by GUE, and unknown
// keywords. A file that the load balancer would refuse is also an error, such as a file with a
// sorry server at a loopback address: the error names the statement. It is a warning if a part is
// left out: checks that run programs, notifications, and everything of VRRP. A configuration with
// an error is not converted at all.
//
// # Differences
//
//   - keepalived counts a server as up until it has failed. Here its first check decides, unless
//     the server is in use already. So alpha is always on.
//   - keepalived removes a failed server, and its connections hang. Here the connections continue
//     (connections: leave), as with inhibit_on_failure.
//   - A connection's timeout (connect_timeout) bounds the whole check here.
//   - A server fails after one failure more than retry, and comes back after one success: fall is
//     retry + 1, rise is 1.
//   - Several URLs of a checker, or hosts of an SMTP_CHECK, are several checks, asked side by side.
//   - UDP_CHECK without a payload sends an empty datagram. In an expected answer with digits X,
//     only the bytes before the first X are compared, and not the length.
//   - Source addresses are never masqueraded, as with LVS.
//   - A virtual server without a protocol is UDP, as in keepalived since 1.3.6.
//   - With DR and TUN, a server gets packets at the port of the virtual server. Checks keep the
//     server's own port.
//   - lvs_timeouts become timeouts, which need -backend ipvs.
//   - A check of a virtual address (connect_ip) is a warning, because checks have no mark (fwmark)
//     that directs them to the server. It is an error if a virtual server answers there.
//   - Names are made from addresses: virtual_server 192.0.2.1 80 becomes 192.0.2.1-80-tcp.
//   - A TCP server whose only check is a MISC_CHECK, or another check that is not converted, gets a
//     check that connects to its port, or to the check's connect_ip and connect_port, with the
//     check's times and number of retries (misc_timeout is its timeout). Other such servers are
//     always up, and a warning names them. The warning about the check covers misc_path,
//     misc_dynamic, user, helo_name, type, name, track_file and weight.
//   - alpha, ip_family, inhibit_on_failure, sorry_server_inhibit and enable_sni need no field, and
//     no message names them: the load balancer always works this way.
//
// The output of ipvsadm-save -n is converted, too. Such servers have no checks.
//
// A configuration is read as keepalived 2.2 does: with the files of include, parameters ($NAME, of
// one line or several) and conditions (@ID). Sequences (~SEQ, ~LST), ${_RANDOM} and braces in the
// pattern of an include are not read, which is an error where it matters.
package keepalived
