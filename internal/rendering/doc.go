// Package rendering has the code that the backends share. It writes a frontend into the kernel as a
// comment, and the rules of a node as lines of settings. It commits a change set that is too large
// for one transaction in parts. It switches the sysctl route_localnet for loopback addresses.
package rendering
