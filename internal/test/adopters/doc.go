// Package adopters has the scenarios of programs that could import kernlb, on nftables and with
// packets, and what an import costs them. docs/adopters.md describes them.
package adopters
