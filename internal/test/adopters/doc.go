// Package adopters tests the scenarios of programs that could import kernlb, on nftables and with
// packets, and measures the cost of an import. docs/adopters.md describes the programs.
package adopters
