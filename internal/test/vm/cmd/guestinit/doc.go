// Command guestinit is process 1 of the virtual machines that package vmtest
// boots: it mounts what tests expect, runs the programs of its plan, reports to
// the host and powers off.
//
// It is a Go program and not a shell script because it must reap orphans, keep a
// binary protocol, and report every one of its own failures to the host.
package main
