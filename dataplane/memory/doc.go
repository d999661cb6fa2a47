// Package memory is a dataplane backend without a kernel, for the tests of programs that embed
// kernlb. It runs on every system, needs no privileges, and imports nothing but the model.
//
//	kernel := &memory.Kernel{}
//	engine := dataplane.New(memory.New(kernel), nil)
//	// … the program under test …
//	decision := kernel.Table().Decide(packet, nil) // nil: no node ports are asked about
//
// What the [Kernel] holds outlives a [Backend], as with a real one, so that a test can restart its
// program. [Backend.Fail], [Backend.Before] and [Backend.Refuse] make calls fail, wait, and refuse
// services; [Kernel.Touch], [Kernel.Lose], [Kernel.Break], [Kernel.Flush] and [Kernel.AddDrift] do
// what others do to a kernel.
package memory
