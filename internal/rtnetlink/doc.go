// Package rtnetlink asks the kernel for links, addresses, routes and rules, changes them, and
// subscribes to notices about them.
package rtnetlink
