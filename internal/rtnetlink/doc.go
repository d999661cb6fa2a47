// Package rtnetlink reads and changes links, addresses, routes and rules in the kernel, and
// subscribes to notifications about them.
package rtnetlink
