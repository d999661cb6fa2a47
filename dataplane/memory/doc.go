// Package memory is a dataplane backend without a kernel, for the tests of programs that embed
// kernlb. It runs on every operating system, needs no privileges, and imports only the model and
// package dataplane.
//
//	kernel := &memory.Kernel{}
//	engine := dataplane.New(memory.New(kernel), nil)
//	// … the program under test …
//	decision := kernel.Table().Decide(packet, nil) // nil: no node ports are asked about
//
// The contents of the [Kernel] outlive a [Backend], as with a real kernel, so a test can restart
// its program. [Backend.Fail], [Backend.Before] and [Backend.Refuse] let calls fail or wait, or
// refuse services. [Kernel.Touch], [Kernel.Lose], [Kernel.Flush] and [Kernel.AddDrift] change the
// kernel like other programs.
package memory
